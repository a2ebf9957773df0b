/* SPDX-License-Identifier: MIT
 *
 * Requests for services, apart from those to run programs (test_service.c): names, many requests at once, and records that the program
 * fills itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "cluster_test.h"

static const char *const OFFERS[] = {"WEFT_SERVE=process,name", NULL};

/* --- names, and many requests --- */

static void names(weft_node *w, void *arg)
{
    (void)arg;
    uint32_t me = weft_rank(w);
    weft_gaddr a;
    weft_name n, list[7];
    char name[32];
    OK(weft_alloc(w, 4096, &a));
    snprintf(name, sizeof name, "memory of %u", me);
    OK(weft_name_publish(w, 0, name, a, 4096, WEFT_TIMEOUT_DEFAULT));
    OK(weft_name_publish(w, 0, name, a, 4000, WEFT_TIMEOUT_DEFAULT)); /* publishing a name again is allowed */
    snprintf(name, sizeof name, "memory of %u", (me + 1) % 3);
    OK(weft_name_wait(w, 0, name, &n, WEFT_TIMEOUT_DEFAULT));
    CHECK(n.owner == (me + 1) % 3 && weft_gaddr_node(n.addr) == n.owner && strcmp(n.name, name) == 0);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    CHECK(weft_name_publish(w, 0, name, a, 1, WEFT_TIMEOUT_DEFAULT) == -EEXIST);
    CHECK(weft_name_withdraw(w, 0, name, WEFT_TIMEOUT_DEFAULT) == -EPERM);
    CHECK(weft_name_lookup(w, 0, "no such", &n, WEFT_TIMEOUT_DEFAULT) == -ENOENT && strstr(weft_error(), "no such"));
    CHECK(weft_name_wait(w, 0, "no such", &n, 20 * WEFT_MS) == -ETIMEDOUT);
    CHECK(weft_name_publish(w, 0, "", a, 1, WEFT_TIMEOUT_DEFAULT) == -EINVAL);
    CHECK(weft_name_publish(w, 0, "0123456789012345678901234567890123456789012345678901234567890123", a, 1, WEFT_TIMEOUT_DEFAULT) ==
          -EINVAL);
    CHECK(weft_name_publish(w, 0, "wrong", weft_gaddr_make(me, 0, 1ull << 43), 1, WEFT_TIMEOUT_DEFAULT) == -EFAULT);
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
    if (me == 2) {
        for (int i = 0; i < 100; i++) {
            snprintf(name, sizeof name, "many %d", i);
            OK(weft_name_publish(w, 0, name, a, (uint64_t)i, WEFT_TIMEOUT_DEFAULT));
        }
        uint64_t next = 0, seen[2] = {0, 0}, all = 0;
        do {
            uint32_t count;
            OK(weft_name_list(w, 0, list, 7, &count, &next, WEFT_TIMEOUT_DEFAULT));
            CHECK(count <= 7);
            for (uint32_t i = 0; i < count; i++, all++)
                if (sscanf(list[i].name, "many %31s", name) == 1) {
                    int k = atoi(name);
                    CHECK(list[i].owner == 2 && list[i].addr == a && list[i].bytes == (uint64_t)k);
                    seen[k / 64] |= 1ull << k % 64;
                }
        } while (next);
        CHECK(all == 103 && seen[0] == UINT64_MAX && seen[1] == (1ull << 36) - 1);
        for (int i = 0; i < 100; i++) {
            snprintf(name, sizeof name, "many %d", i);
            OK(weft_name_withdraw(w, 0, name, WEFT_TIMEOUT_DEFAULT));
        }
        CHECK(weft_name_withdraw(w, 0, name, WEFT_TIMEOUT_DEFAULT) == -ENOENT);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_names(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(3, names, NULL, OFFERS), 0);
}

/* 10,000 requests outstanding; half of them are cancelled. */
static void outstanding(weft_node *w, void *arg)
{
    (void)arg;
    enum { MANY = 10000 };
    if (weft_rank(w) == 1) {
        weft_op *ops = calloc(MANY, sizeof *ops);
        weft_name *found = calloc(MANY, sizeof *found), n;
        char name[32];
        weft_gaddr a;
        OK(weft_alloc(w, 64, &a));
        for (int i = 0; i < MANY; i++) {
            snprintf(name, sizeof name, "late %d", i / 2 % 100);
            OK(weft_name_lookup_start(w, 0, name, true, &found[i], 3600 * WEFT_SECOND, &ops[i]));
        }
        CHECK(weft_name_lookup(w, 0, "late 1", &n, WEFT_TIMEOUT_DEFAULT) == -ENOENT); /* the server answers other requests meanwhile */
        for (int i = 1; i < MANY; i += 2) {
            OK(weft_request_cancel(w, &ops[i]));
            CHECK(weft_test(w, &ops[i]) == -ECANCELED);
        }
        CHECK(weft_request_cancel(w, &ops[1]) == -ENOENT);
        for (int i = 0; i < 100; i++) {
            snprintf(name, sizeof name, "late %d", i);
            OK(weft_name_publish(w, 0, name, a, (uint64_t)i + 1, WEFT_TIMEOUT_DEFAULT));
        }
        for (int i = 0; i < MANY; i += 2) {
            OK(weft_wait(w, &ops[i], WEFT_TIMEOUT_DEFAULT));
            CHECK(found[i].bytes == (uint64_t)(i / 2 % 100) + 1 && found[i].addr == a && !found[i + 1].bytes);
        }
        /* more than WEFT_REQUESTS_MAX requests: the first one too many is refused with -EAGAIN */
        int rc = 0, sent = 0;
        weft_op *more = calloc(WEFT_REQUESTS_MAX + 1, sizeof *more);
        while (!rc && sent <= (int)WEFT_REQUESTS_MAX)
            rc = weft_name_lookup_start(w, 0, "never", true, &n, 3600 * WEFT_SECOND, &more[sent++]);
        CHECK(rc == -EAGAIN && sent > 1);
        for (int i = 0; i < sent - 1; i++)
            OK(weft_request_cancel(w, &more[i]));
        rc = weft_name_lookup_start(w, 0, "never", true, &n, 50 * WEFT_MS, &more[0]);
        CHECK(rc == 0 || (rc == -EAGAIN && strstr(weft_error(), "not answered yet"))); /* cancelled requests are answered a little later */
        CHECK(weft_wait(w, &more[0], WEFT_TIMEOUT_DEFAULT) < 0);
        free(more);
        free(ops);
        free(found);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_outstanding(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, outstanding, NULL, OFFERS), 0);
}

/* As many requests as there may be are not answered. A file that is closed meanwhile is closed at the gateway, too, when there is room
 * again: closing needs no caller who tries again. */
static void closed_when_full(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        weft_op *ops = calloc(WEFT_REQUESTS_MAX, sizeof *ops);
        weft_name n;
        weft_file *f;
        weft_file_cached c;
        OK(weft_file_open(w, 0, "/proc/self/exe", 0, &f, WEFT_TIMEOUT_DEFAULT));
        for (uint32_t i = 0; i < WEFT_REQUESTS_MAX; i++)
            OK(weft_name_lookup_start(w, 0, "never", true, &n, 3600 * WEFT_SECOND, &ops[i]));
        OK(weft_file_close(f));
        for (uint32_t i = 0; i < WEFT_REQUESTS_MAX; i++)
            OK(weft_request_cancel(w, &ops[i]));
        int64_t deadline = now_ns() + patience_ns(20);
        for (int rc = 0; rc != -ENOENT;) {
            uint64_t next = 0;
            rc = weft_file_list(w, 0, &c, sizeof c, &next, WEFT_TIMEOUT_DEFAULT);
            CHECK(now_ns() < deadline && (rc == 0 || rc == -ENOENT || rc == -EAGAIN));
            usleep(1000);
        }
        free(ops);
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_closed_when_full(void **state)
{
    (void)state;
    static const char *const files[] = {"WEFT_SERVE=name,file", NULL};
    assert_int_equal(nodes_failed_with(2, closed_when_full, NULL, files), 0);
}

/* Requests by records that the program fills itself. */
static void records(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 1) {
        weft_gaddr at, data;
        weft_op op;
        static const char block[] = "sh\0\0sh\0-c\0echo of a record; exit 3";
        OK(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &at));
        OK(weft_alloc(w, sizeof block, &data));
        weft_request *r = weft_ptr(w, at, sizeof *r);
        memset(r, 0, sizeof *r);
        memcpy(weft_ptr(w, data, sizeof block), block, sizeof block);
        *r = (weft_request){.version = WEFT_REQUEST_VERSION,
                            .service = WEFT_SERVICE_PROCESS,
                            .kind = WEFT_PROCESS_SPAWN,
                            .id = 1,
                            .flags = WEFT_SPAWN_STDOUT,
                            .data = data,
                            .data_bytes = sizeof block,
                            .arg = {3}};
        OK(weft_request_start(w, at, &op));
        OK(weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT));
        CHECK(r->answered == 1 && r->status == 0 && r->result[1] > 1);
        uint64_t handle = r->result[0];
        int rc;
        do {
            *r = (weft_request){.version = WEFT_REQUEST_VERSION,
                                .service = WEFT_SERVICE_PROCESS,
                                .kind = WEFT_PROCESS_OUTPUT,
                                .id = 2,
                                .handle = handle,
                                .arg = {1}};
            OK(weft_request_start(w, at, &op));
            rc = weft_test(w, &op);
        } while (rc == -EAGAIN);
        CHECK(rc == 0 && r->answered == 2 && r->result[1] == 12);
        CHECK(memcmp(weft_ptr(w, r->result[0], 12), "of a record\n", 12) == 0);
        *r = (weft_request){.version = WEFT_REQUEST_VERSION,
                            .service = WEFT_SERVICE_PROCESS,
                            .kind = WEFT_PROCESS_TAKE,
                            .id = 3,
                            .handle = handle,
                            .arg = {1, 13}};
        OK(weft_request_start(w, at, &op));
        CHECK(weft_test(w, &op) == -EINVAL && r->status == -EINVAL && r->answered == 3);
        r->arg[1] = 12;
        OK(weft_request_start(w, at, &op));
        r->kind = WEFT_PROCESS_WAIT;
        do {
            r->id++;
            OK(weft_request_start(w, at, &op));
            rc = weft_test(w, &op);
        } while (rc == -EAGAIN);
        CHECK(rc == 0 && r->result[0] == 3 && r->result[1] == 0);
        r->kind = WEFT_PROCESS_CLOSE;
        OK(weft_request_start(w, at, &op));
        OK(weft_request_start(w, at, &op));
        CHECK(weft_test(w, &op) == -ENOENT);
        /* invalid records */
        static const struct {
            size_t offset;
            uint64_t value;
            int rc;
        } wrong[] = {{0, 2, -EINVAL}, {4, 77, -EINVAL}, {8, 0, -EINVAL}, {16, 9, -EFAULT}, {40, 8, -EFAULT}, {48, 1ull << 40, -EINVAL}};
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            *r = (weft_request){.version = WEFT_REQUEST_VERSION,
                                .service = WEFT_SERVICE_PROCESS,
                                .kind = WEFT_PROCESS_SPAWN,
                                .id = 50,
                                .data = data,
                                .data_bytes = sizeof block,
                                .arg = {3}};
            memcpy((uint8_t *)r + wrong[i].offset, &wrong[i].value,
                   wrong[i].offset == 4                            ? 2
                   : wrong[i].offset == 0 || wrong[i].offset == 16 ? 4
                                                                   : 8);
            rc = weft_request_start(w, at, &op);
            CHECK((rc ? rc : weft_wait(w, &op, WEFT_TIMEOUT_DEFAULT)) == wrong[i].rc);
        }
        CHECK(weft_request_start(w, at + 4, &op) == -EFAULT);
        OK(weft_free(w, at));
        OK(weft_free(w, data));
    }
    OK(weft_barrier(w, WEFT_TIMEOUT_DEFAULT));
}

static void test_records(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(2, records, NULL, OFFERS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_outstanding),
        cmocka_unit_test(test_closed_when_full),
        cmocka_unit_test(test_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
