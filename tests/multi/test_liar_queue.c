/* SPDX-License-Identifier: MIT
 *
 * A node that lies (liar.h) to two honest ones about a queue: by its messages, and by what it writes into their shards.
 *
 * While it lies, tasks of that queue may be lost or done twice, because every node may write to every slot. But no honest node crashes or
 * writes to a wrong place, no call exceeds its time-out, and a queue that the honest nodes open later does all its work.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "liar.h"
#include "queue/queue.h"

enum { SLOTS = 64, SLOT_BITS = 7 /* as messages contain it */, KEEP = 512 };
enum { OPENED, DONE_ALL, CLOSED }; /* points at which the honest nodes meet */

static bool borne(int rc)
{
    return rc >= 0 || rc == -ETIMEDOUT || rc == -ENOENT || rc == -ECONNRESET || rc == -ESHUTDOWN || rc == -ESTALE || rc == -EPROTO;
}

/* --- what the honest ones do --- */

/* Submits and does tasks as usual, whatever happens to them; at most KEEP are outstanding. */
static void work_meanwhile(weft_queue *q, uint64_t *tag)
{
    weft_task tasks[8];
    weft_lease claims[8];
    weft_done dones[8];
    weft_result results[8] = {0};
    weft_queue_stats s;
    memset(tasks, 0, sizeof tasks);
    OK(weft_queue_stat(q, &s, sizeof s));
    for (int i = 0; i < 8; i++)
        tasks[i].tag = ++*tag;
    if (s.outstanding < KEEP)
        CHECK(borne(weft_submit(q, tasks, 8, NULL, WEFT_MS)));
    int n = weft_claim(q, claims, 8, WEFT_MS);
    CHECK(borne(n) && n <= 8);
    for (int i = 0; i < n; i++) {
        CHECK(claims[i].submitter < NODES);
        CHECK(borne(weft_renew(q, &claims[i])));
    }
    if (n > 0)
        CHECK(borne(weft_complete(q, claims, results, (uint32_t)n - 1, NULL)) && borne(weft_release(q, &claims[n - 1])));
    CHECK(borne(weft_reap(q, dones, 8, WEFT_MS)));
    CHECK(borne(weft_drain(q, 0)));
}

/* All tasks are done, each once. */
static void work_afterwards(weft_node *w, struct told *t)
{
    enum { TASKS = 300 };
    static bool seen[TASKS];
    weft_queue *q;
    OK(weft_queue_open(w, "after", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = SLOTS}, &q));
    meet(&t->met[OPENED], NODES - 1);
    uint32_t submitted = 0, reaped = 0;
    while (reaped < TASKS || t->met[DONE_ALL] < NODES - 1) {
        weft_task task = {.tag = submitted};
        weft_lease claims[16];
        weft_result results[16] = {0};
        weft_done dones[16];
        if (submitted < TASKS && weft_submit(q, &task, 1, NULL, 0) == 1)
            submitted++;
        int n = weft_claim(q, claims, 16, 0);
        if (n > 0)
            CHECK(weft_complete(q, claims, results, (uint32_t)n, NULL) == n);
        n = weft_reap(q, dones, 16, 0);
        for (int i = 0; i < n; i++) {
            CHECK(dones[i].tag < TASKS && !seen[dones[i].tag]);
            seen[dones[i].tag] = true;
        }
        reaped += n > 0 ? (uint32_t)n : 0;
        if (n > 0 && reaped == TASKS)
            t->met[DONE_ALL]++;
    }
    OK(weft_drain(q, 100 * WEFT_SECOND));
    meet(&t->met[CLOSED], NODES - 1);
    OK(weft_queue_close(q));
}

/* Wherever the liar claims its shard to be, the shards that are used are in its pool. */
static void check_views(weft_node *w, weft_queue *q, const struct told *t)
{
    base_spin_lock(&w->progress); /* handlers run with this lock held */
    const struct queue_view *next = q->retired;
    for (const struct queue_view *v = atomic_load(&q->views[LIAR]); v; v = next, next = v ? v->retired : NULL) {
        uint64_t offset = weft_gaddr_offset(v->at), bytes = slot_shard_bytes(v->shard.slots), pool = w->links[LIAR].pool_bytes;
        CHECK(weft_gaddr_node(v->at) == LIAR && weft_gaddr_space(v->at) == 0 && offset % BASE_CACHE_LINE == 0 && offset >= FAB_NULL_BYTES);
        CHECK(v->at != t->cut_short);
        CHECK(v->shard.slots <= SLOT_COUNT_MAX && offset <= pool && bytes <= pool - offset);
        if (v->shard.mem)
            CHECK((const void *)v->shard.mem == weft_ptr(w, v->at, bytes));
    }
    CHECK(atomic_load(&q->serving_count) <= NODES);
    base_spin_unlock(&w->progress);
}

typedef void (*liar_fn)(weft_node *w, struct told *t, weft_queue *q);

static void with_queue(weft_node *w, struct told *t, liar_fn lie)
{
    weft_queue *q;
    OK(weft_queue_open(w, "lies", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = SLOTS, .lease_ns = 100 * WEFT_MS}, &q));
    meet(&t->here, NODES);
    if (weft_rank(w) == LIAR) {
        for (uint32_t node = 0; node < LIAR; node++)
            while (!queue_view_of(q, node))
                usleep(1000);
        lie(w, t, q);
        atomic_store(&t->over, 1);
        return; /* its queue stays open, and its lies are not taken back */
    }
    for (uint64_t tag = 0; !t->over;)
        work_meanwhile(q, &tag);
    while (weft_alive(w, LIAR))
        usleep(1000);
    check_views(w, q, t);
    OK(weft_queue_close(q));
    work_afterwards(w, t);
}

/* --- messages --- */

struct message_to {
    weft_node *w;
    struct told *t;
    uint32_t node, opened;
    struct queue_message header; /* the correct header of a message whose payload is wrong */
};

static bool sent(int rc)
{
    return rc == 0 || rc == -ETIMEDOUT || rc == -ECONNRESET;
}

static void tell_header(const void *record, size_t bytes, const char *what, void *arg)
{
    struct message_to *to = arg;
    struct queue_done_message none[2];
    memset(none, 0, sizeof none);
    note(to->t, what);
    CHECK(sent(fab_send(to->w, to->node, QUEUE_HANDLER, record, bytes, none, to->header.type == QUEUE_DONES ? sizeof none : 0, NULL)));
}

/* Lies about a queue that it has just opened, because the other nodes ignore announcements of a queue that they know already. */
static void tell_opening(const void *record, size_t bytes, const char *what, void *arg)
{
    struct message_to *to = arg;
    struct queue_message m = to->header;
    memcpy(&m, record, bytes);
    m.incarnation = ++to->opened;
    if (bytes < sizeof m)
        m.shard = to->t->cut_short;
    note(to->t, what);
    CHECK(sent(fab_send(to->w, to->node, QUEUE_HANDLER, &m, bytes, NULL, 0, NULL)));
}

static void tell_payload(const void *record, size_t bytes, const char *what, void *arg)
{
    struct message_to *to = arg;
    note(to->t, what);
    CHECK(sent(fab_send(to->w, to->node, QUEUE_HANDLER, &to->header, sizeof to->header, record, bytes, NULL)));
}

static const struct lie_field MESSAGE[] = {
    LIE_FIELD(struct queue_message, type),  LIE_FIELD(struct queue_message, shut),        LIE_FIELD(struct queue_message, slot_bits),
    LIE_FIELD(struct queue_message, count), LIE_FIELD(struct queue_message, incarnation), LIE_FIELD(struct queue_message, to),
    LIE_FIELD(struct queue_message, key),   LIE_FIELD(struct queue_message, shard),       LIE_FIELD(struct queue_message, name),
};

static const struct lie_field SHARD[] = {LIE_FIELD(struct queue_message, slot_bits), LIE_FIELD(struct queue_message, shard)};

static const struct lie_field DONE[] = {
    LIE_FIELD(struct queue_done_message, id),     LIE_FIELD(struct queue_done_message, slot),
    LIE_FIELD(struct queue_done_message, word),   LIE_FIELD(struct queue_done_message, result),
    LIE_FIELD(struct queue_done_message, status), LIE_FIELD(struct queue_done_message, result_len),
};

static const struct lie_field SETTLE[] = {
    LIE_FIELD(struct queue_settle_message, from),
    LIE_FIELD(struct queue_settle_message, to),
    LIE_FIELD(struct queue_settle_message, slot),
    LIE_FIELD(struct queue_settle_message, then),
};

static void lie_by_message(weft_node *w, struct told *t, weft_queue *q)
{
    for (uint32_t node = 0; node < LIAR; node++) {
        struct queue_view *v = queue_view_of(q, node);
        struct message_to to = {
            w,
            t,
            node,
            q->incarnation,
            {.slot_bits = SLOT_BITS, .incarnation = q->incarnation, .to = v->incarnation, .key = q->key, .shard = q->own->at}};
        memcpy(to.header.name, q->name, sizeof to.header.name);
        atomic_store(&t->cut_short, q->own->at + UINT64_C(5) * BASE_CACHE_LINE);
        static const uint8_t openings[] = {QUEUE_HELLO, QUEUE_ANSWER, QUEUE_ASK};
        for (size_t i = 0; i < LIE_COUNT(openings); i++) {
            to.header.type = openings[i];
            lie_about(&to.header, sizeof to.header, SHARD, LIE_COUNT(SHARD), tell_opening, &to);
            for (size_t k = 0; k < LIE_COUNT(LIE_VALUES); k++) { /* an address elsewhere in the liar's pool, or beyond its end */
                struct queue_message m = to.header;
                m.shard += (LIE_VALUES[k] & ((UINT64_C(1) << 44) - 1)) - weft_gaddr_offset(m.shard);
                tell_opening(&m, sizeof m, "offset of the shard", &to);
            }
            struct queue_message m = to.header; /* a shard that begins in the pool and ends beyond it */
            m.shard += w->links[node].pool_bytes - 2 * BASE_CACHE_LINE - weft_gaddr_offset(m.shard);
            tell_opening(&m, sizeof m, "a shard past the end", &to);
        }
        for (uint8_t type = QUEUE_HELLO; type <= QUEUE_NONE; type++) {
            to.header.type = type;
            to.header.count = type == QUEUE_DONES ? 2 : 0;
            lie_about(&to.header, sizeof to.header, MESSAGE, LIE_COUNT(MESSAGE), tell_header, &to);
        }
        to.header.type = QUEUE_DONES;
        to.header.count = 1;
        for (uint32_t slot = 0; slot < SLOTS; slot += SLOTS / 4) {
            struct queue_done_message done = {.id = slot, .slot = queue_slot_address(v, slot)};
            OK(weft_get_blocking(w, &done.word, done.slot, sizeof done.word));
            lie_about(&done, sizeof done, DONE, LIE_COUNT(DONE), tell_payload, &to);
        }
        to.header.type = QUEUE_SETTLE;
        for (uint32_t then = SLOT_FREE; then <= SLOT_DONE; then++) {
            uint64_t word;
            OK(weft_get_blocking(w, &word, queue_slot_address(v, then), sizeof word));
            struct queue_settle_message settle = {.from = word, .to = slot_next_same(word, SLOT_READY), .slot = then, .then = then};
            lie_about(&settle, sizeof settle, SETTLE, LIE_COUNT(SETTLE), tell_payload, &to);
        }
        OK(weft_flush(w, node, WEFT_TIMEOUT_DEFAULT));
    }
}

static void messages(weft_node *w, void *arg)
{
    with_queue(w, arg, lie_by_message);
}

static void test_messages(void **state)
{
    (void)state;
    run_with_liar(messages);
}

/* --- shards --- */

static int swap_word(weft_node *w, weft_gaddr at, uint64_t value)
{
    return weft_swap_blocking(w, at, value, NULL);
}

static void lie_in_word(weft_node *w, struct told *t, weft_gaddr at)
{
    uint64_t truth;
    OK(weft_get_blocking(w, &truth, at, sizeof truth));
    lie_about_word(&(struct word_to){w, t, at, swap_word, 100}, truth);
    OK(swap_word(w, at, truth));
}

/* Every word of the header, and every word of two slots: states, ids, submitters, tasks. */
static void lie_by_shard(weft_node *w, struct told *t, weft_queue *q)
{
    static const uint32_t header[] = {SLOT_TAIL, SLOT_HEAD, SLOT_IDLE, SLOT_SUBMITTED, SLOT_COMPLETED, SLOT_CLOSED};
    for (uint32_t node = 0; node < LIAR; node++) {
        struct queue_view *v = queue_view_of(q, node);
        for (size_t i = 0; i < LIE_COUNT(header); i++)
            lie_in_word(w, t, v->at + 8 * header[i]);
        for (uint32_t slot = 0; slot < 2; slot++)
            for (uint32_t i = 0; i < SLOT_WORDS - SLOT_TASK_WORDS; i++)
                lie_in_word(w, t, queue_slot_address(v, slot) + 8 * i);
    }
}

static void shards(weft_node *w, void *arg)
{
    with_queue(w, arg, lie_by_shard);
}

static void test_shards(void **state)
{
    (void)state;
    run_with_liar(shards);
}

/* --- openings and questions without end --- */

/* A node that opens a queue anew without end, and asks without end where the others' shards are, does not fill their memory. */
static void opened_anew(weft_node *w, void *arg)
{
    struct told *t = arg;
    weft_queue *q;
    OK(weft_queue_open(w, "lies", &(weft_queue_config){.bytes = sizeof(weft_queue_config), .slots = SLOTS}, &q));
    meet(&t->here, NODES);
    if (weft_rank(w) == LIAR) {
        while (!queue_view_of(q, 0))
            usleep(1000);
        struct queue_message m = {
            .type = QUEUE_ANSWER, .slot_bits = SLOT_BITS, .incarnation = q->incarnation, .key = q->key, .shard = q->own->at};
        memcpy(m.name, q->name, sizeof m.name);
        for (uint32_t i = 0; i < QUEUE_VIEWS_MAX + 1000; i++) {
            m.incarnation++;
            OK(fab_send(w, 0, QUEUE_HANDLER, &m, sizeof m, NULL, 0, NULL));
        }
        OK(weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT));
        note(t, "opened too often");
        atomic_fetch_add(&t->lies, 1000);
        atomic_store(&t->over, 1);
        return;
    }
    wait_for(&t->over, 1);
    while (weft_alive(w, LIAR))
        usleep(1000);
    if (weft_rank(w) == 0) {
        uint32_t views = 1;
        base_spin_lock(&w->progress); /* handlers run with this lock held */
        for (const struct queue_view *v = q->retired; v; v = v->retired)
            views++;
        base_spin_unlock(&w->progress);
        CHECK(views == QUEUE_VIEWS_MAX);
        /* Answers that found no room. */
        for (uint32_t i = 0; i < 1000; i++)
            queue_keep(q, 1, QUEUE_ANSWER, 0, NULL, 0, 0);
        base_spin_lock(&q->unsent_lock);
        CHECK(queue_unsent_count(q) <= 2); /* one message waits, and another is being sent; it stays in the list meanwhile */
        base_spin_unlock(&q->unsent_lock);
    }
    OK(weft_queue_close(q));
    work_afterwards(w, t);
}

static void test_opened_anew(void **state)
{
    (void)state;
    run_with_liar(opened_anew);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages), cmocka_unit_test(test_shards), cmocka_unit_test(test_opened_anew)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
