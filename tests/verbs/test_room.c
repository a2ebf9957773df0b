/* SPDX-License-Identifier: MIT
 *
 * src/verbs/ on a software device: opening, registering, connecting; errors have a reason, and no object is left.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ground.h"
#include "verbs/verbs.h"

static struct verbs_device *ready(void)
{
    struct verbs_device *d;
    if (verbs_device_open(&d, NULL, -1) || verbs_device_use(d))
        fail_msg("%s", base_error());
    return d;
}

static uint8_t *memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    return p;
}

static void finds_devices(void **state)
{
    (void)state;
    struct verbs_device *all;
    uint32_t count;
    assert_int_equal(verbs_devices(&all, &count, -1), 0);
    assert_int_equal(count, 1);
    const struct verbs_device *d = &all[0];
    assert_string_equal(d->why_not, "");
    assert_int_equal(d->usable, 0);
    assert_true(d->gbits >= 40);
    assert_int_equal(d->chosen.gid.index, 1); /* on these fabrics entry 1 is the IPv4-mapped GID */
    if (ground_is_thunderbolt()) {
        assert_string_equal(d->name, "rdma_en2");
        assert_string_equal(d->interface, "en2");
        assert_int_equal(d->traits.link, VERBS_THUNDERBOLT);
        assert_false(d->traits.rc);
        assert_int_equal(d->traits.qps, 10);
    } else {
        assert_true(d->traits.rc && d->traits.uc && d->traits.read && d->traits.write && d->traits.atomics);
        assert_int_equal(d->gids[1].kind, VERBS_GID_ROCE_V2);
    }
    verbs_devices_close(all, count);
}

static void says_what_there_is(void **state)
{
    (void)state;
    struct verbs_device *d;
    assert_int_equal(verbs_device_open(&d, "mlx5_7", -1), -ENODEV);
    assert_non_null(strstr(base_error(), "no device mlx5_7; there is "));
    assert_int_equal(verbs_device_open(&d, NULL, 14), -ENODEV);
    assert_non_null(strstr(base_error(), "GID index 14, which was asked for, is not set"));
    assert_int_equal(verbs_device_open(&d, NULL, 0), 0);
    assert_int_equal(d->chosen.gid.index, 0);
    assert_null(d->pd);
    verbs_device_close(d);
    verbs_device_close(NULL);
}

static void a_port_that_is_down(void **state)
{
    (void)state;
    struct verbs_device *d;
    const char *device = ground_is_thunderbolt() ? "0:rdma_en2" : "0:sv0";
    char words[128];
    assert_int_equal(verbs_device_open(&d, NULL, -1), 0);
    snprintf(words, sizeof words, "fault pull %s >/dev/null", device);
    assert_int_equal(ground_softverbs(words), 0);
    assert_int_equal(verbs_device_use(d), -ENETDOWN); /* the port went down after the device was opened */
    assert_non_null(strstr(base_error(), "port 1 is down"));
    verbs_device_close(d);
    assert_int_equal(verbs_device_open(&d, NULL, -1), -ENODEV);
    assert_non_null(strstr(base_error(), "port 1 is down"));
    snprintf(words, sizeof words, "fault plug %s >/dev/null", device);
    assert_int_equal(ground_softverbs(words), 0);
    verbs_device_close(ready());
}

static void registers_within_its_budget(void **state)
{
    (void)state;
    struct verbs_device *d = ready();
    struct verbs_regions r;
    size_t bytes = (size_t)5 << 29; /* 2.5 GiB */
    uint8_t *base = memory(bytes);
    assert_int_equal(verbs_register(&r, d, base, bytes, 2), -ENOSPC);
    assert_non_null(strstr(base_error(), "2.5 GiB need 3 regions of 1 GiB, and only 2 are available"));
    if (verbs_register(&r, d, base, bytes, 0))
        fail_msg("%s", base_error());
    assert_int_equal(r.count, 3);
    assert_int_equal(verbs_lkey(&r, VERBS_SEGMENT - 1), r.mr[0]->lkey);
    assert_int_equal(verbs_lkey(&r, VERBS_SEGMENT), r.mr[1]->lkey);
    assert_int_equal(verbs_lkey(&r, bytes - 1), r.mr[2]->lkey);
    assert_int_equal(r.mr[2]->length, VERBS_SEGMENT / 2);
    verbs_unregister(&r);
    verbs_unregister(&r);
    munmap(base, bytes);
    verbs_device_close(d);
}

static void unregisters_what_it_has_when_one_fails(void **state)
{
    (void)state;
    struct verbs_device *d = ready();
    struct verbs_regions r;
    size_t bytes = (size_t)5 << 29;
    uint8_t *base = memory(bytes);
    assert_int_equal(ground_softverbs("fault add refuse --verb reg_mr --nth 3 --errno ENOMEM >/dev/null"), 0);
    assert_int_equal(verbs_register(&r, d, base, bytes, 0), -ENOMEM);
    assert_non_null(strstr(base_error(), "refuses memory region 3 of 3 (512 MiB): errno 12"));
    assert_null(r.mr);
    assert_int_equal(ground_softverbs("fault clear >/dev/null"), 0);
    munmap(base, bytes);
    verbs_device_close(d); /* ground_remove() checks that no region is left */
}

static void the_flags_that_the_device_takes(void **state)
{
    (void)state;
    struct verbs_device *d = ready();
    struct verbs_regions r;
    uint8_t *base = memory(65536);
    /* the first attempt is refused, as by a device that accepts only LOCAL_WRITE */
    assert_int_equal(ground_softverbs("fault add refuse --verb reg_mr --nth 1 --errno EINVAL >/dev/null"), 0);
    int rc = verbs_register(&r, d, base, 65536, 0);
    if (strcmp(ground_profile(), "tb5-strict") == 0) { /* this profile needs all three access flags */
        assert_int_equal(rc, -EINVAL);
    } else {
        assert_int_equal(rc, 0);
        assert_int_equal(r.access, d->traits.access_else);
        verbs_unregister(&r);
    }
    assert_int_equal(ground_softverbs("fault clear >/dev/null"), 0);
    munmap(base, 65536);
    verbs_device_close(d);
}

static struct ibv_cq *queue(struct verbs_device *d)
{
    struct ibv_cq *cq = d->lib->create_cq(d->context, 64, NULL, NULL, 0);
    assert_non_null(cq);
    return cq;
}

static struct verbs_qp_options options_for(struct verbs_device *d, struct ibv_cq *cq)
{
    return (struct verbs_qp_options){.type = d->traits.rc ? IBV_QPT_RC : IBV_QPT_UC,
                                     .send_cq = cq,
                                     .recv_cq = cq,
                                     .send_depth = 32,
                                     .recv_depth = 32,
                                     .sge = 1,
                                     .inline_bytes = 128,
                                     .signal_all = true};
}

static void grants_are_read_back(void **state)
{
    (void)state;
    struct verbs_device *d = ready();
    struct ibv_cq *cq = queue(d);
    struct verbs_qp_options o = options_for(d, cq);
    struct verbs_qp q;
    if (verbs_qp_create(&q, d, &o))
        fail_msg("%s", base_error());
    assert_int_equal(q.send_depth, ground_is_thunderbolt() ? 1023 : 32);
    assert_true(ground_is_thunderbolt() ? q.inline_bytes == 0 : q.inline_bytes >= 128);
    assert_true(verbs_address_valid(&q.here));
    assert_int_equal(q.here.gid_index, d->chosen.gid.index);
    verbs_qp_destroy(&q);
    verbs_qp_destroy(&q);
    o.send_depth = o.recv_depth = UINT32_MAX; /* more than possible: the most possible is granted */
    o.inline_bytes = UINT32_MAX;
    if (verbs_qp_create(&q, d, &o))
        fail_msg("%s", base_error());
    assert_int_equal(q.send_depth, d->traits.depth);
    verbs_qp_destroy(&q);
    d->lib->destroy_cq(cq);
    verbs_device_close(d);
}

static void explains_what_cannot_be_made(void **state)
{
    (void)state;
    struct verbs_device *d = ready();
    struct ibv_cq *cq = queue(d);
    struct verbs_qp_options o = options_for(d, cq);
    struct verbs_qp q[16];
    if (ground_is_thunderbolt()) {
        o.type = IBV_QPT_RC;
        assert_int_equal(verbs_qp_create(&q[0], d, &o), -EOPNOTSUPP);
        assert_string_equal(base_error(), "device rdma_en2 has no RC queue pairs; use another device (WEFT_DEVICE)");
        o.type = IBV_QPT_UC;
        for (unsigned i = 0; i < d->traits.qps; i++)
            assert_int_equal(verbs_qp_create(&q[i], d, &o), 0);
        assert_int_equal(verbs_qp_create(&q[10], d, &o), -EBUSY);
        assert_non_null(strstr(base_error(), "errno 16"));
        assert_non_null(strstr(base_error(), "All of its 10 queue pairs"));
        for (unsigned i = 0; i < d->traits.qps; i++)
            verbs_qp_destroy(&q[i]);
    }
    d->lib->destroy_cq(cq);
    verbs_device_close(d);
}

static void explains_what_cannot_be_connected(void **state)
{
    (void)state;
    struct verbs_device *d = ready();
    struct ibv_cq *cq = queue(d);
    struct verbs_qp_options o = options_for(d, cq);
    struct verbs_qp q;
    assert_int_equal(verbs_qp_create(&q, d, &o), 0);
    struct verbs_address peer = q.here;
    static const uint8_t nowhere[16] = {0x20, 1, 0xd, 0xb8, [15] = 7};
    memcpy(peer.gid, nowhere, 16);
    snprintf(peer.device, sizeof peer.device, "other0");
    assert_int_equal(verbs_qp_connect(&q, &peer), -EINVAL);
    char here[128];
    snprintf(here, sizeof here, "here %s port 1, GID ::ffff:", d->name);
    assert_non_null(strstr(base_error(), "INIT to RTR: errno 22"));
    assert_non_null(strstr(base_error(), here));
    assert_non_null(strstr(base_error(), "there other0 port 1, GID 2001:db8::7 (index 1)"));
    assert_non_null(strstr(base_error(), "never set"));
    peer.mtu = 9;
    assert_int_equal(verbs_qp_connect(&q, &peer), -EINVAL);
    assert_non_null(strstr(base_error(), "sent an invalid address"));
    verbs_qp_destroy(&q);
    d->lib->destroy_cq(cq);
    verbs_device_close(d);
}

static void trade(int fd, const struct verbs_address *mine, struct verbs_address *theirs)
{
    assert_int_equal(write(fd, mine, sizeof *mine), sizeof *mine);
    assert_int_equal(read(fd, theirs, sizeof *theirs), sizeof *theirs);
}

enum { BYTES = 65536, MESSAGE = 8192 };

static void poll_one(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int64_t end = base_deadline(INT64_C(10000000000));
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0 && base_now_ns() < end)
        base_sleep_ns(20000);
    assert_int_equal(n, 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
}

/* One process's end of a connection, with all objects that it needs. */
struct side {
    int fd; /* a socket to the other process */
    struct verbs_device *d;
    struct verbs_regions r;
    struct verbs_qp q;
    struct ibv_cq *cq;
    uint8_t *base;
};

/* Returns the result of verbs_qp_connect(). `gid` -1: the GID that verbs chooses. */
static int side_open(struct side *s, int fd, int gid)
{
    struct verbs_address peer;
    s->fd = fd;
    if (verbs_device_open(&s->d, NULL, gid) || verbs_device_use(s->d))
        fail_msg("%s", base_error());
    s->base = memory(BYTES);
    s->cq = queue(s->d);
    struct verbs_qp_options o = options_for(s->d, s->cq);
    if (verbs_register(&s->r, s->d, s->base, BYTES, 0) || verbs_qp_create(&s->q, s->d, &o))
        fail_msg("%s", base_error());
    trade(fd, &s->q.here, &peer);
    return verbs_qp_connect(&s->q, &peer);
}

/* Waits until both processes are here. */
static void side_meet(struct side *s)
{
    char go = 'g';
    assert_int_equal(write(s->fd, &go, 1), 1);
    assert_int_equal(read(s->fd, &go, 1), 1);
}

static void side_close(struct side *s)
{
    side_meet(s); /* both have finished before one destroys its queue pair */
    verbs_qp_destroy(&s->q);
    verbs_unregister(&s->r);
    s->d->lib->destroy_cq(s->cq);
    verbs_device_close(s->d);
    munmap(s->base, BYTES);
}

/* Sends a message from one process to the other. With a `gid` the connection must fail. */
static void message(int fd, bool sends, int gid)
{
    struct side s;
    int rc = side_open(&s, fd, gid);
    if (gid == 0) {
        assert_int_equal(rc, -ETIMEDOUT);
        assert_non_null(strstr(base_error(), "errno 60"));
        assert_non_null(strstr(base_error(), "cannot be reached on this link"));
    } else if (rc) {
        fail_msg("%s", base_error());
    } else {
        uint8_t *base = s.base;
        struct ibv_sge sge = {(uintptr_t)(base + MESSAGE), MESSAGE, verbs_lkey(&s.r, MESSAGE)};
        struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
        struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;
        memset(base + MESSAGE, sends ? 0x5a : 0, MESSAGE);
        if (!sends)
            assert_int_equal(ibv_post_recv(s.q.qp, &receive, &bad_receive), 0);
        side_meet(&s);
        if (sends)
            assert_int_equal(ibv_post_send(s.q.qp, &send, &bad_send), 0);
        poll_one(s.cq);
        assert_int_equal(base[MESSAGE], 0x5a);
        assert_int_equal(base[2 * MESSAGE - 1], 0x5a);
        assert_int_equal(base[MESSAGE - 1] + base[2 * MESSAGE], 0);
    }
    side_close(&s);
}

/* --- regions of dmabufs; here a memfd, which softverbs accepts as a dmabuf --- */

enum { OFFSET = 8192, LENGTH = 20000 };
/* Their addresses are not valid in this process, as those of a GPU's memory may be. */
#define NAMED ((uint8_t *)(uintptr_t)UINT64_C(0x7d0000000000))

/* RDMA between this process's memory and the other process's dmabuf. */
static void move(struct side *s, enum ibv_wr_opcode what, uint8_t *local, uint32_t lkey, uint32_t bytes, uint8_t *remote, uint32_t rkey)
{
    struct ibv_sge sge = {.addr = (uintptr_t)local, .length = bytes, .lkey = lkey};
    struct ibv_send_wr *bad,
        wr = {.sg_list = &sge, .num_sge = 1, .opcode = what, .wr.rdma = {.remote_addr = (uintptr_t)remote, .rkey = rkey}};
    assert_int_equal(ibv_post_send(s->q.qp, &wr, &bad), 0);
    poll_one(s->cq);
}

/* A message from one dmabuf to another; if the device supports them, also a write and a read. */
static void dmabuf(int side_fd, bool sends, int gid)
{
    struct side s;
    struct verbs_regions r;
    uint32_t rkey;
    if (side_open(&s, side_fd, gid))
        fail_msg("%s", base_error());
    int fd = base_memory_fd("weft-test", BYTES, false);
    uint8_t *seen = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(fd >= 0 && seen != MAP_FAILED);
    if (verbs_register_dmabuf(&r, s.d, fd, OFFSET, NAMED, LENGTH, 0))
        fail_msg("%s", base_error());
    close(fd); /* the region stays valid without the descriptor */
    memset(seen, 0, BYTES);
    memset(seen + OFFSET, sends ? 0x5a : 0, LENGTH);
    rkey = r.mr[0]->rkey;
    assert_int_equal(write(side_fd, &rkey, sizeof rkey), sizeof rkey);
    assert_int_equal(read(side_fd, &rkey, sizeof rkey), sizeof rkey);

    struct ibv_sge sge = {(uintptr_t)(NAMED + 4096), 4096, verbs_lkey(&r, 4096)};
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;
    if (!sends)
        assert_int_equal(ibv_post_recv(s.q.qp, &receive, &bad_receive), 0);
    side_meet(&s);
    uint8_t *there = seen + OFFSET;
    if (sends) {
        move(&s, IBV_WR_SEND, NAMED + 4096, verbs_lkey(&r, 4096), 4096, NULL, 0);
    } else {
        poll_one(s.cq);
        assert_true(there[4095] == 0 && there[4096] == 0x5a && there[8191] == 0x5a && there[8192] == 0);
    }
    side_meet(&s); /* both have checked the bytes: they may be overwritten now */
    if (s.d->traits.write) {
        if (sends) {
            memset(s.base, 0x33, LENGTH);
            move(&s, IBV_WR_RDMA_WRITE, s.base, verbs_lkey(&s.r, 0), LENGTH, NAMED, rkey);
            s.base[100] = 0;
            move(&s, IBV_WR_RDMA_READ, s.base, verbs_lkey(&s.r, 0), 100, NAMED + 8192 + 7, rkey);
            assert_true(s.base[0] == 0x33 && s.base[99] == 0x33 && s.base[100] == 0);
            move(&s, IBV_WR_RDMA_WRITE, NAMED + 50, verbs_lkey(&r, 50), 60, NAMED + 100, rkey); /* from one dmabuf to the other */
        }
        side_meet(&s);
        if (!sends) {
            for (int i = 0; i < LENGTH; i++)
                assert_int_equal(there[i], i >= 100 && i < 160 ? 0x5a : 0x33);
            assert_int_equal(seen[OFFSET - 1] + seen[OFFSET + LENGTH], 0);
        }
    }
    munmap(seen, BYTES);
    verbs_qp_destroy(&s.q);
    verbs_unregister(&r);
    side_close(&s);
}

/* Each host needs a process of its own, because a process is on one host. */
static const struct work {
    const char *name;
    void (*run)(int fd, bool sends, int gid);
} works[] = {{"message", message}, {"dmabuf", dmabuf}};

static void two_hosts(const struct work *work, int gid)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fds[0]);
        setenv("SOFTVERBS_HOST", "1", 1);
        char *self = getenv("ROOM_SELF"), number[2][16];
        snprintf(number[0], 16, "%d", fds[1]);
        snprintf(number[1], 16, "%d", gid);
        if (!self)
            _exit(127);
        execl(self, self, work->name, number[0], number[1], (char *)NULL);
        _exit(126);
    }
    close(fds[1]);
    work->run(fds[0], true, gid);
    close(fds[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void moves_a_message(void **state)
{
    (void)state;
    two_hosts(&works[0], -1);
}

static void a_gid_that_is_not_reached(void **state)
{
    (void)state;
    if (strcmp(ground_profile(), "tb5-strict") == 0)
        two_hosts(&works[0], 0);
}

static void moves_by_dmabuf(void **state)
{
    (void)state;
    if (strcmp(ground_profile(), "tb5-strict") != 0)
        two_hosts(&works[1], -1);
}

static void refuses_what_is_no_dmabuf(void **state)
{
    (void)state;
    struct verbs_device *d = ready();
    struct verbs_regions r;
    int fd = base_memory_fd("weft-test", BYTES, false), ends[2];
    assert_true(fd >= 0);
    if (strcmp(ground_profile(), "tb5-strict") == 0) {
        assert_int_equal(verbs_register_dmabuf(&r, d, fd, OFFSET, NAMED, LENGTH, 0), -EOPNOTSUPP);
        assert_non_null(strstr(base_error(), "driver does not register dmabufs"));
    } else {
        assert_int_equal(pipe(ends), 0);
        assert_true(verbs_register_dmabuf(&r, d, ends[0], 0, NAMED, LENGTH, 0) < 0);
        close(ends[0]);
        close(ends[1]);
        assert_int_equal(verbs_register_dmabuf(&r, d, fd, OFFSET, NAMED, BYTES, 0), -EINVAL); /* more bytes than the dmabuf has */
        assert_non_null(strstr(base_error(), "does not have these bytes"));
        /* An internal errno of the kernel, as a GPU's driver returns it if its memory cannot be registered. */
        assert_int_equal(ground_softverbs("fault add refuse --verb reg_mr --errno 524 >/dev/null"), 0);
        assert_int_equal(verbs_register_dmabuf(&r, d, fd, OFFSET, NAMED, LENGTH, 0), -EOPNOTSUPP);
        assert_non_null(strstr(base_error(), "errno 524 (Operation not supported). The device's driver does not register dmabufs"));
        assert_int_equal(ground_softverbs("fault clear >/dev/null"), 0);
    }
    assert_int_equal(verbs_register_dmabuf(&r, d, fd, 4, NAMED, LENGTH, 0), -EINVAL);
    assert_non_null(strstr(base_error(), "same remainder modulo the page size"));
    assert_int_equal(verbs_register_dmabuf(&r, d, -1, 0, NAMED, LENGTH, 0), -EBADF);
    /* A library that is too old for dmabufs, and a device that does not support them. */
    struct verbs_library old = *d->lib;
    const struct verbs_library *lib = d->lib;
    old.reg_dmabuf_mr = NULL;
    d->lib = &old;
    assert_int_equal(verbs_register_dmabuf(&r, d, fd, 0, NAMED, LENGTH, 0), -EOPNOTSUPP);
    assert_non_null(strstr(base_error(), "has no ibv_reg_dmabuf_mr"));
    d->lib = lib;
    d->traits.dmabuf = false;
    assert_int_equal(verbs_register_dmabuf(&r, d, fd, 0, NAMED, LENGTH, 0), -EOPNOTSUPP);
    assert_non_null(strstr(base_error(), "cannot register dmabufs"));
    close(fd);
    verbs_device_close(d);
}

static const struct work *side_work;
static int side_fd, side_gid;

static void other_side(void **state)
{
    (void)state;
    side_work->run(side_fd, false, side_gid);
}

static int remove_ground(void **state)
{
    (void)state;
    return ground_remove();
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 4 && i < sizeof works / sizeof works[0]; i++)
        if (strcmp(argv[1], works[i].name) == 0)
            side_work = &works[i];
    if (side_work) {
        const struct CMUnitTest side[] = {cmocka_unit_test(other_side)};
        side_fd = atoi(argv[2]);
        side_gid = atoi(argv[3]);
        cmocka_set_message_output(CM_OUTPUT_STDOUT);
        return cmocka_run_group_tests(side, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_devices),
        cmocka_unit_test(says_what_there_is),
        cmocka_unit_test(a_port_that_is_down),
        cmocka_unit_test(registers_within_its_budget),
        cmocka_unit_test(unregisters_what_it_has_when_one_fails),
        cmocka_unit_test(the_flags_that_the_device_takes),
        cmocka_unit_test(grants_are_read_back),
        cmocka_unit_test(explains_what_cannot_be_made),
        cmocka_unit_test(explains_what_cannot_be_connected),
        cmocka_unit_test(moves_a_message),
        cmocka_unit_test(a_gid_that_is_not_reached),
        cmocka_unit_test(moves_by_dmabuf),
        cmocka_unit_test(refuses_what_is_no_dmabuf),
    };
    alarm(60);
    if (ground_make(argv, "mesh 2"))
        return 1;
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    setenv("ROOM_SELF", self, 1);
    return cmocka_run_group_tests(tests, NULL, remove_ground);
}
