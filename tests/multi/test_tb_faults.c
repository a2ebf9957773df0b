/* SPDX-License-Identifier: MIT
 *
 * The tb transport while messages are lost, damaged or late, and completions are withheld: mixed operations, compared with a shadow copy of
 * the memory that they change. No byte may be wrong, no operation lost or executed twice.
 * Run by over_softverbs.py on a fabric of tb5-strict. Arguments: NODES [table | soak SECONDS].
 *
 * Each node has a part of every other node's pool that only it changes, and records the expected bytes in memory that all test processes
 * share. Between operations on the same bytes there is a fence or a flush.
 *
 * WEFT_TEST_LONG=1: a million operations. WEFT_TEST_SEED=N: another sequence of operations.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "cluster_test.h"

enum {
    NODES = 4,
    BIGGEST = 2 << 20,
    DATA = 3 << 20, /* bytes of a part: data, then words */
    WORDS = 64,
    PART = DATA + WORDS * 8,
    COUNT_WORD = WORDS - 1, /* the word of a part in which signals are counted */
    ARENA = 8 << 20,        /* bytes of the memory that operations under way read and write, in the pool and outside */
    WINDOW = 24,            /* the most operations under way */
    HANDLER = 3,
};
#define LONG patience_ns(100)

struct fault {
    const char *kind, *chance, *more;
};
static const struct fault FAULTS[] = {
    {"drop", "0.05%", ""},
    {"drop", "1%", ""},
    {"drop", "5%", ""},
    {"corrupt", "0.05%", ""},
    {"corrupt", "1%", ""},
    {"corrupt", "5%", ""},
    {"delay", "0.05%", " --time 1ms"},
    {"delay", "1%", " --time 1ms"},
    {"delay", "5%", " --time 1ms"},
    {"withhold", "0.05%", " --time 2ms"},
    {"withhold", "1%", " --time 2ms"},
    {"withhold", "5%", " --time 2ms"},
};
enum { FAULT_COUNT = sizeof FAULTS / sizeof FAULTS[0] };

/* Shared by all nodes and their parent. */
struct stage {
    uint32_t phases;
    const struct fault *fault[FAULT_COUNT + 1]; /* the fault of each phase; NULL: none */
    uint32_t ops;                               /* operations of a node in a phase */
    bool soak; /* instead: operations until the time `until`, while another process makes faults, stops and kills */
    _Atomic int64_t until;
    uint64_t seed;
    bool deaths; /* a node may be killed */
    _Atomic uint32_t go;
    _Atomic uint32_t begun[FAULT_COUNT + 1], done[FAULT_COUNT + 1], read[FAULT_COUNT + 1], ready, left;
    _Atomic uint32_t dead; /* bit i: node i was killed */
    _Atomic int pid[NODES];
    _Atomic uint64_t ops_done, bytes_done, refused;
    _Atomic uint32_t sent[NODES][NODES]; /* messages: [sender][receiver] */
    _Atomic uint64_t added[NODES];       /* written at the end: how much each node has added to the word that all share */
    uint8_t shadow[NODES][NODES][PART];  /* the expected bytes: [writer][node whose pool it is] */
};

enum kind { PUT, GET, ADD, SWAP, COMPARE, SIGNAL, KINDS };

struct op {
    weft_op op;
    bool busy;
    enum kind kind;
    uint32_t node;
    uint64_t at, len;       /* the range in the part, which no later operation may touch before a fence */
    uint64_t old, expected; /* an atomic's result, and the expected one */
    uint8_t *came, *right;  /* a get's bytes, and the expected ones */
};

struct range {
    uint64_t at, len;
};

struct driver {
    weft_node *w;
    struct stage *s;
    uint32_t me, n;
    uint64_t random;
    weft_gaddr area; /* the parts, one for each writing node; then the word to which all add */
    struct op ops[WINDOW];
    uint8_t *pool, *outside, *wanted; /* ARENA each */
    uint64_t pool_used, outside_used, wanted_used;
    struct range touched[NODES][256]; /* ranges that were changed since the last fence to that node */
    uint32_t touched_count[NODES];
    uint32_t heard[NODES]; /* received messages, by sender */
    _Atomic bool wrong;
    bool gone[NODES];
};

static uint64_t dice(struct driver *d, uint64_t sides)
{
    return random_next(&d->random) % sides;
}

static uint32_t message_bytes(uint32_t number)
{
    return number % 7 == 0 ? WEFT_PAYLOAD_MAX : number * 37 % 600;
}

static void on_message(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t len, void *arg)
{
    struct driver *d = arg;
    const uint8_t *p = payload;
    uint32_t number;
    (void)w;
    if (from >= NODES || header_len != sizeof number) {
        d->wrong = true;
        return;
    }
    memcpy(&number, header, sizeof number);
    bool wrong = number != d->heard[from] || len != message_bytes(number);
    for (size_t i = 0; i < len && !wrong; i++)
        wrong = p[i] != (uint8_t)(number * 7 + i);
    if (wrong && !d->wrong)
        fprintf(stderr, "node %u: message %u of node %u, %zu bytes, where %u was next\n", d->me, number, from, len, d->heard[from]);
    if (wrong)
        d->wrong = true;
    /* release: pairs with the acquire in all_heard() */
    __atomic_store_n(&d->heard[from], number + 1, __ATOMIC_RELEASE);
}

/* Checks what an operation to `node` returned. True: it succeeded. Only a node that was killed may be gone. */
static bool went(struct driver *d, uint32_t node, int rc)
{
    if (rc == 0)
        return true;
    /* -ENETDOWN: the dead node's neighbours noticed the death before this node did, and reported that there is no route. */
    if ((rc == -ECONNRESET || rc == -ENETDOWN) && d->s->deaths) {
        for (int i = 0; i < 10000 && !(atomic_load(&d->s->dead) >> node & 1); i++) /* the killing process may be about to set `dead` */
            usleep(1000);
        if (atomic_load(&d->s->dead) >> node & 1) {
            d->gone[node] = true;
            atomic_fetch_add(&d->s->refused, 1);
            return false;
        }
    }
    fprintf(stderr, "node %u: to node %u: %d: %s\n", d->me, node, rc, weft_error());
    _exit(1);
}

static void finish(struct driver *d, struct op *o)
{
    if (!o->busy)
        return;
    o->busy = false;
    int rc = weft_wait(d->w, &o->op, LONG);
    if (!went(d, o->node, rc))
        return;
    if (o->kind == GET && memcmp(o->came, o->right, o->len) != 0) {
        uint64_t i = 0;
        while (o->came[i] == o->right[i])
            i++;
        fprintf(stderr, "node %u: get of %llu bytes at %llu from node %u: byte %llu is wrong\n", d->me, (unsigned long long)o->len,
                (unsigned long long)o->at, o->node, (unsigned long long)i);
        _exit(1);
    }
    if ((o->kind == ADD || o->kind == SWAP || o->kind == COMPARE) && o->old != o->expected) {
        fprintf(stderr, "node %u: atomic at %llu of node %u found %#llx, not %#llx\n", d->me, (unsigned long long)o->at, o->node,
                (unsigned long long)o->old, (unsigned long long)o->expected);
        _exit(1);
    }
}

static void finish_all(struct driver *d)
{
    for (uint32_t i = 0; i < WINDOW; i++)
        finish(d, &d->ops[i]);
    d->pool_used = d->outside_used = d->wanted_used = 0;
}

static uint8_t *take(uint8_t *base, uint64_t *used, uint64_t len)
{
    CHECK(*used + len <= ARENA);
    uint8_t *p = base + *used;
    *used += len;
    return p;
}

/* Call before an operation on these bytes: fences or flushes earlier operations on them. */
static void order(struct driver *d, uint32_t node, uint64_t at, uint64_t len)
{
    bool meets = d->touched_count[node] == sizeof d->touched[0] / sizeof d->touched[0][0];
    for (uint32_t i = 0; i < d->touched_count[node] && !meets; i++)
        meets = at < d->touched[node][i].at + d->touched[node][i].len && d->touched[node][i].at < at + len;
    if (meets) {
        if (dice(d, 4) == 0)
            (void)went(d, node, weft_flush(d->w, node, LONG));
        else
            (void)went(d, node, weft_fence(d->w, node));
        d->touched_count[node] = 0;
    }
    d->touched[node][d->touched_count[node]++] = (struct range){at, len};
}

static uint64_t some_bytes(struct driver *d)
{
    switch (dice(d, 16)) {
    case 0: return 1 + dice(d, BIGGEST);
    case 1:
    case 2: return 1 + dice(d, 256 << 10);
    case 3:
    case 4:
    case 5: return 1 + dice(d, 16 << 10);
    case 6: return 4096u << dice(d, 8);
    default: return 1 + dice(d, 300);
    }
}

static void atomic_op(struct driver *d, struct op *o, weft_gaddr there, uint8_t *shadow)
{
    uint64_t word = dice(d, COUNT_WORD), was, next, expected;
    o->at = DATA + word * 8;
    o->len = 8;
    order(d, o->node, o->at, 8);
    memcpy(&was, shadow + o->at, 8);
    expected = dice(d, 2) ? was : was + 1;
    uint64_t value = random_next(&d->random);
    next = o->kind == ADD ? was + value : o->kind == SWAP || expected == was ? value : was;
    o->expected = was;
    int rc = o->kind == ADD    ? weft_fetch_add(d->w, there + o->at, value, &o->old, &o->op)
             : o->kind == SWAP ? weft_swap(d->w, there + o->at, value, &o->old, &o->op)
                               : weft_compare_swap(d->w, there + o->at, expected, value, &o->old, &o->op);
    if ((o->busy = went(d, o->node, rc)))
        memcpy(shadow + o->at, &next, 8);
}

static void data_op(struct driver *d, struct op *o, weft_gaddr there, uint8_t *shadow)
{
    o->len = some_bytes(d);
    if (o->kind == SIGNAL && dice(d, 4) == 0)
        o->len = 0;
    o->at = dice(d, DATA - o->len + 1);
    bool inside = dice(d, 2);
    uint64_t *used = inside ? &d->pool_used : &d->outside_used;
    if (*used + o->len > ARENA || (o->kind == GET && d->wanted_used + o->len > ARENA))
        finish_all(d);
    uint8_t *mine = take(inside ? d->pool : d->outside, used, o->len);
    order(d, o->node, o->at, o->len);
    int rc;
    if (o->kind == GET) {
        o->came = mine;
        o->right = take(d->wanted, &d->wanted_used, o->len);
        memcpy(o->right, shadow + o->at, o->len);
        memset(mine, 0x55, o->len);
        rc = weft_get(d->w, mine, there + o->at, o->len, &o->op);
    } else {
        uint64_t fill = random_next(&d->random);
        for (uint64_t i = 0; i < o->len; i++)
            mine[i] = (uint8_t)(fill >> (i & 7) * 8) ^ (uint8_t)(i >> 3);
        memcpy(shadow + o->at, mine, o->len);
        rc = o->kind == PUT ? weft_put(d->w, there + o->at, mine, o->len, &o->op)
                            : weft_put_signal(d->w, there + o->at, mine, o->len, there + DATA + COUNT_WORD * 8, 3, &o->op);
        if (rc == 0 && o->kind == SIGNAL) {
            uint64_t count;
            memcpy(&count, shadow + DATA + COUNT_WORD * 8, 8);
            count += 3;
            memcpy(shadow + DATA + COUNT_WORD * 8, &count, 8);
        }
    }
    o->busy = went(d, o->node, rc);
    atomic_fetch_add(&d->s->bytes_done, o->len);
}

static void send_message(struct driver *d, uint32_t node)
{
    uint8_t payload[WEFT_PAYLOAD_MAX];
    uint32_t number = atomic_load(&d->s->sent[d->me][node]), len = message_bytes(number);
    for (uint32_t i = 0; i < len; i++)
        payload[i] = (uint8_t)(number * 7 + i);
    int rc = weft_send(d->w, node, HANDLER, &number, sizeof number, payload, len, NULL);
    if (went(d, node, rc))
        atomic_store(&d->s->sent[d->me][node], number + 1);
    atomic_fetch_add(&d->s->bytes_done, len);
}

static void one_op(struct driver *d)
{
    uint32_t node = (d->me + 1 + (uint32_t)dice(d, d->n - 1)) % d->n;
    if (d->gone[node])
        return;
    weft_gaddr there = on_node(d->area, node) + (uint64_t)d->me * PART;
    uint8_t *shadow = d->s->shadow[d->me][node];
    struct op *o = &d->ops[dice(d, WINDOW)];
    finish(d, o);
    o->node = node;
    switch (dice(d, 20)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
        o->kind = PUT;
        data_op(d, o, there, shadow);
        break;
    case 5:
    case 6:
    case 7:
        o->kind = GET;
        data_op(d, o, there, shadow);
        break;
    case 8:
    case 9:
        o->kind = SIGNAL;
        data_op(d, o, there, shadow);
        break;
    case 10:
    case 11:
        o->kind = ADD;
        atomic_op(d, o, there, shadow);
        break;
    case 12:
        o->kind = SWAP;
        atomic_op(d, o, there, shadow);
        break;
    case 13:
        o->kind = COMPARE;
        atomic_op(d, o, there, shadow);
        break;
    case 14:
    case 15:
    case 16: send_message(d, node); break;
    case 17: /* all nodes add to this word */
        if (went(d, node, weft_fetch_add(d->w, on_node(d->area, node) + NODES * (uint64_t)PART, 1, NULL, NULL)))
            atomic_fetch_add(&d->s->added[node], 1);
        break;
    case 18:
        if (went(d, node, weft_fence(d->w, node)))
            d->touched_count[node] = 0;
        break;
    default:
        if (dice(d, 4) == 0 && went(d, node, weft_flush(d->w, node, LONG)))
            d->touched_count[node] = 0;
    }
    atomic_fetch_add(&d->s->ops_done, 1);
}

/* All nodes that are alive meet, even if one dies meanwhile. */
static void all_meet(struct driver *d, _Atomic uint32_t *word)
{
    atomic_fetch_or(word, 1u << d->me);
    while ((atomic_load(word) | atomic_load(&d->s->dead)) != (1u << d->n) - 1)
        usleep(500);
}

/* Checks that all messages that were sent have arrived, and no others. */
static void all_heard(struct driver *d)
{
    for (uint32_t from = 0; from < d->n; from++) {
        if (from == d->me)
            continue;
        for (int i = 0; i < 100000 && __atomic_load_n(&d->heard[from], __ATOMIC_ACQUIRE) < atomic_load(&d->s->sent[from][d->me]) &&
                        !(atomic_load(&d->s->dead) >> from & 1);
             i++)
            usleep(1000);
        if (!(atomic_load(&d->s->dead) >> from & 1))
            CHECK(__atomic_load_n(&d->heard[from], __ATOMIC_ACQUIRE) == atomic_load(&d->s->sent[from][d->me]));
    }
    CHECK(!d->wrong);
}

/* Checks that this node's memory equals the shadows of the other nodes. */
static void compare(struct driver *d)
{
    for (uint32_t by = 0; by < d->n; by++) {
        if (by == d->me || (atomic_load(&d->s->dead) >> by & 1))
            continue;
        const uint8_t *is = weft_ptr(d->w, on_node(d->area, d->me) + (uint64_t)by * PART, PART), *want = d->s->shadow[by][d->me];
        if (memcmp(is, want, PART) != 0) {
            uint32_t i = 0, count = 0, first;
            while (is[i] == want[i])
                i++;
            for (first = i; i < PART; i++)
                count += is[i] != want[i];
            fprintf(stderr, "node %u: %u bytes that node %u wrote are wrong, from %u on\n", d->me, count, by, first);
            _exit(1);
        }
    }
    uint64_t sum;
    memcpy(&sum, weft_ptr(d->w, on_node(d->area, d->me) + NODES * (uint64_t)PART, 8), 8);
    CHECK(atomic_load(&d->s->dead) || sum == atomic_load(&d->s->added[d->me]));
}

static const char *name(const struct fault *f, char text[64])
{
    snprintf(text, 64, "%s%s%s%s", f ? f->chance : "nothing", f ? " " : "", f ? f->kind : "", f ? f->more : "");
    return text;
}

static void phase(struct driver *d, uint32_t k)
{
    struct stage *s = d->s;
    char words[160], text[64];
    if (d->me == 0 && !s->soak) {
        softverbs("fault clear");
        if (s->fault[k]) {
            snprintf(words, sizeof words, "fault add %s --chance %s%s", s->fault[k]->kind, s->fault[k]->chance, s->fault[k]->more);
            softverbs(words);
        }
    }
    all_meet(d, &s->begun[k]);
    int64_t began = now_ns();
    uint64_t ops = atomic_load(&s->ops_done), bytes = atomic_load(&s->bytes_done);
    for (uint32_t i = 0; s->soak ? now_ns() < atomic_load(&s->until) : i < s->ops; i++)
        one_op(d);
    finish_all(d);
    for (uint32_t node = 0; node < d->n; node++)
        if (node != d->me && !d->gone[node] && went(d, node, weft_flush(d->w, node, LONG)))
            d->touched_count[node] = 0;
    all_meet(d, &s->done[k]);
    if (d->me == 0 && !s->soak) {
        double seconds = (double)(now_ns() - began) / 1e9;
        ops = atomic_load(&s->ops_done) - ops;
        bytes = atomic_load(&s->bytes_done) - bytes;
        printf("  %-24s %7llu ops %8.1f MB %7.2f s %9.0f ops/s %8.1f MB/s\n", name(s->fault[k], text), (unsigned long long)ops,
               (double)bytes / 1e6, seconds, (double)ops / seconds, (double)bytes / 1e6 / seconds);
        fflush(stdout);
    }
    all_heard(d);
    compare(d);
    all_meet(d, &s->read[k]); /* no node writes before all have compared */
}

static void drive(weft_node *w, void *arg)
{
    struct stage *s = arg;
    struct driver *d = calloc(1, sizeof *d);
    CHECK(d);
    d->w = w;
    d->s = s;
    d->me = weft_rank(w);
    d->n = weft_size(w);
    d->random = s->seed * 1000 + d->me;
    OK(weft_handle(w, HANDLER, on_message, d));
    d->area = symmetric_alloc(w, NODES * (size_t)PART + 8);
    weft_gaddr arena;
    OK(weft_alloc(w, ARENA, &arena));
    d->pool = weft_ptr(w, arena, ARENA);
    d->outside = malloc(ARENA);
    d->wanted = malloc(ARENA);
    CHECK(d->pool && d->outside && d->wanted);
    atomic_store(&s->pid[d->me], getpid());
    all_meet(d, &s->ready);
    if (s->soak)
        wait_for(&s->go, 1);
    for (uint32_t k = 0; k < s->phases; k++)
        phase(d, k);
    if (d->me == 0 && !s->soak)
        softverbs("fault clear"); /* the nodes leave without faults */
    all_meet(d, &s->left);
    free(d->outside);
    free(d->wanted);
}

static uint32_t nodes;

static struct stage *stage_new(void)
{
    struct stage *s = shared_words(sizeof *s);
    const char *seed = getenv("WEFT_TEST_SEED");
    s->seed = seed ? strtoull(seed, NULL, 0) : 1;
    return s;
}

static const char *const SETTINGS[] = {"WEFT_LOG=error", "WEFT_DEADLINE=100s", NULL};

static void test_faults(void **state)
{
    (void)state;
    struct stage *s = stage_new();
    bool enough = getenv("WEFT_TEST_LONG");
    s->phases = FAULT_COUNT;
    for (uint32_t i = 0; i < FAULT_COUNT; i++)
        s->fault[i] = &FAULTS[i];
    s->ops = (enough ? 1000000 / FAULT_COUNT : 2400) / nodes;
    if (enough)
        setenv("TEST_HANG", "7200", 1);
    assert_int_equal(nodes_failed_with((int)nodes, drive, s, SETTINGS), 0);
}

/* --- how throughput falls with loss --- */

static int table(void)
{
    struct stage *s = stage_new();
    int status[NODES_MAX], failed = 0;
    s->fault[s->phases++] = NULL;
    for (uint32_t i = 0; i < 3; i++)
        s->fault[s->phases++] = &FAULTS[i];
    s->ops = 20000 / nodes;
    nodes_run((int)nodes, drive, s, SETTINGS, status);
    for (uint32_t i = 0; i < nodes; i++)
        failed |= status[i];
    return failed != 0;
}

/* --- soaking --- */

struct round {
    struct stage *s;
    uint64_t random;
    int64_t length;
    bool stops, kills;
    /* counts of what was done; written by the process that does it */
    _Atomic uint32_t stopped, killed, faults; /* killed: node + 1 */
};

static uint64_t roll(struct round *r, uint64_t sides)
{
    return random_next(&r->random) % sides;
}

/* Runs in a process of its own: adds and removes faults, stops and continues nodes, kills one. */
static void disturb(struct round *r)
{
    struct stage *s = r->s;
    char words[160];
    while (atomic_load(&s->ready) != (1u << nodes) - 1)
        usleep(1000);
    int64_t end = now_ns() + r->length, kill_at = r->kills ? now_ns() + (int64_t)roll(r, (uint64_t)r->length) : INT64_MAX;
    atomic_store(&s->until, end);
    atomic_store(&s->go, 1);
    while (now_ns() < end) {
        softverbs("fault clear");
        for (uint64_t k = roll(r, 3); k > 0; k--) {
            const struct fault *f = &FAULTS[roll(r, FAULT_COUNT)];
            snprintf(words, sizeof words, "fault add %s --chance %s%s --seed %u", f->kind, f->chance, f->more, (unsigned)roll(r, 1000));
            softverbs(words);
            r->faults++;
        }
        uint32_t node = (uint32_t)roll(r, nodes);
        if (r->stops && roll(r, 2) && !(atomic_load(&s->dead) >> node & 1)) {
            kill(s->pid[node], SIGSTOP);
            usleep((useconds_t)(1000 + roll(r, roll(r, 4) ? 300000 : 2500000)));
            kill(s->pid[node], SIGCONT);
            r->stopped++;
        }
        usleep((useconds_t)roll(r, 400000));
        if (now_ns() >= kill_at && now_ns() < end) { /* after the end its number may be another process's */
            node = (uint32_t)roll(r, nodes);
            atomic_fetch_or(&s->dead, 1u << node); /* first: the others may see it dead before this process goes on */
            kill(s->pid[node], SIGKILL);
            r->killed = node + 1;
            kill_at = INT64_MAX;
        }
    }
    softverbs("fault clear");
    _exit(0);
}

static int soak(int64_t seconds)
{
    int64_t end = now_ns() + seconds * WEFT_SECOND;
    struct stage *s = stage_new();
    uint64_t first = s->seed, ops = 0, bytes = 0, stops = 0, kills = 0, faults = 0, rounds = 0;
    int failed = 0;
    struct round *r = shared_words(sizeof *r);
    for (; now_ns() < end && !failed; rounds++) {
        int status[NODES_MAX], ended;
        memset(s, 0, sizeof *s);
        memset(r, 0, sizeof *r);
        s->soak = true;
        s->phases = 1;
        s->seed = r->random = first + rounds;
        int64_t left = end - now_ns();
        r->s = s;
        r->length = 2 * WEFT_SECOND + (int64_t)roll(r, 10000) * WEFT_MS;
        r->length = left < r->length ? left : r->length;
        r->stops = rounds % 3 != 0;
        r->kills = s->deaths = rounds % 3 == 2;
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0)
            disturb(r);
        nodes_run((int)nodes, drive, s, SETTINGS, status);
        if (!atomic_load(&s->go)) /* the nodes have not even met */
            kill(pid, SIGKILL);
        waitpid(pid, &ended, 0);
        failed |= ended;
        for (uint32_t i = 0; i < nodes; i++) {
            bool killed = r->killed == i + 1 && WIFSIGNALED(status[i]) && WTERMSIG(status[i]) == SIGKILL;
            bool right = killed || status[i] == 0; /* one that is to be killed may end just before */
            if (!right)
                fprintf(stderr, "node %u ended with %#x\n", i, (unsigned)status[i]);
            failed |= !right;
        }
        printf("  seed %llu: %.1f s, %llu ops, %.0f MB; %u faults, %u stops", (unsigned long long)s->seed, (double)r->length / 1e9,
               (unsigned long long)atomic_load(&s->ops_done), (double)atomic_load(&s->bytes_done) / 1e6, r->faults, r->stopped);
        if (r->killed) {
            char words[32];
            snprintf(words, sizeof words, "reboot %u", r->killed - 1); /* frees what the killed node had on its devices */
            printf(", node %u killed, %llu ops refused", r->killed - 1, (unsigned long long)atomic_load(&s->refused));
            fflush(stdout);
            softverbs(words);
        }
        printf("%s\n", failed ? ": WRONG (WEFT_TEST_SEED)" : "");
        ops += atomic_load(&s->ops_done);
        bytes += atomic_load(&s->bytes_done);
        stops += r->stopped;
        kills += r->killed != 0;
        faults += r->faults;
    }
    printf("%u nodes, %llu rounds: %llu ops, %.1f GB; %llu faults, %llu stops, %llu kills: %s\n", nodes, (unsigned long long)rounds,
           (unsigned long long)ops, (double)bytes / 1e9, (unsigned long long)faults, (unsigned long long)stops, (unsigned long long)kills,
           failed ? "FAILED" : "all bytes are correct, no operation was lost or repeated");
    return failed != 0;
}

int main(int argc, char **argv)
{
    nodes = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
    if (nodes < 2 || nodes > NODES) {
        fprintf(stderr, "usage: %s NODES [table | soak SECONDS], 2 to %d nodes\n", argv[0], NODES);
        return 2;
    }
    if (argc > 2 && strcmp(argv[2], "table") == 0)
        return table();
    if (argc > 3 && strcmp(argv[2], "soak") == 0)
        return soak(atoll(argv[3]));
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
