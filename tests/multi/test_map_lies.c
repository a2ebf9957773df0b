/* SPDX-License-Identifier: MIT
 *
 * A node of `weft map` that writes or sends wrong values. A table lists one wrong value for each field of each record; each job has one of
 * them. The job may fail with an error text, but no node may crash, hang, or allocate memory for a length that is only claimed.
 *
 * The nodes are this program: the engine of the command, some of whose library calls are replaced here (the linker's --wrap). Node 0 runs
 * no piece while node 1 is alive.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "cluster_test.h"
#include "map/job.h"
#include "map/order.h"
#include "queue/queue.h"

enum record {              /* the record with the wrong value, and the node that writes it */
              RESULT,      /* node 1: weft_result of a piece */
              OUTCOME,     /* node 1: struct map_outcome, in its pool */
              PART,        /* node 1: the first part of an outcome */
              SUM,         /* node 1: the same, with the outcome's total changed to match */
              REFUSED,     /* node 1: an outcome whose completion is refused: its slot drops it, and the piece runs again */
              TASK,        /* node 0: weft_task */
              ASK,         /* either node: struct map_ask */
              FILE_ASK,    /* node 1: the same, about a file */
              ANSWER,      /* node 0: the value that its answer adds to the word of the asking node */
              FILE_ANSWER, /* node 0: the same, when the bytes are of a file */
              SPILL,       /* node 1: such a value, in answers about the spill file */
              ORDER_AT,    /* node 0: address and length of the job's description */
              ORDER,       /* node 0: the head of the job's description (order.c) */
              RELEASE,     /* node 0: addresses that node 1 may free */
              PRINTS,      /* node 0 */
              TALLY,       /* node 1: struct map_tally */
};

#define FORKS   1u /* the nodes are forks of the owner */
#define HOSTS   2u /* the nodes are on separate hosts */
#define COMMAND 4u
#define KERNEL  8u /* wc, whose results are folded */
#define ALL     (FORKS | HOSTS | COMMAND | KERNEL)

struct lie {
    const char *name;
    enum record record;
    unsigned jobs;
    size_t at, bytes; /* the field */
    uint64_t value;   /* the wrong value */
    bool add;         /* add it to the correct value instead of storing it */
};

#define FIELD(type, field) offsetof(struct type, field), sizeof(((struct type *)0)->field)
#define TYPED(type, field) offsetof(type, field), sizeof(((type *)0)->field)
#define SET(record, jobs, where, value)                                    \
    {                                                                      \
#record " " #where " = " #value, record, jobs, where, value, false \
    }
#define ADD(record, jobs, where, value)                                    \
    {                                                                      \
#record " " #where " += " #value, record, jobs, where, value, true \
    }
#define OC(field)          FIELD(map_outcome, field)
#define PT(field)          FIELD(map_part, field)
#define RS(field)          TYPED(weft_result, field)
#define TK(field)          TYPED(weft_task, field)
#define ARG(i)             offsetof(weft_task, arg) + 8 * (i), 8
#define AK(field)          FIELD(map_ask, field)
#define TL(field)          FIELD(map_tally, field)
#define WORD(offset, size) offset, size
#define TOP                (UINT64_C(1) << 63)

static const struct lie lies[] = {
    SET(OUTCOME, ALL, OC(kind), 99),
    SET(OUTCOME, COMMAND | FORKS | HOSTS, OC(kind), MAP_NO_START),
    SET(OUTCOME, COMMAND | FORKS | HOSTS, OC(kind), MAP_EXITED),
    SET(OUTCOME, COMMAND | FORKS | HOSTS, OC(kind), MAP_NO_SPACE),
    SET(OUTCOME, COMMAND | HOSTS, OC(code), 0x80000000),
    ADD(OUTCOME, ALL, OC(parts), 1),
    SET(OUTCOME, COMMAND | FORKS | HOSTS, OC(parts), 0),
    SET(OUTCOME, COMMAND | FORKS | HOSTS, OC(parts), UINT32_MAX),
    SET(OUTCOME, COMMAND | FORKS | HOSTS, OC(error_len), UINT32_MAX),
    SET(OUTCOME, ALL, OC(tail_len), UINT32_MAX),
    SET(OUTCOME, COMMAND | HOSTS, OC(zero), UINT32_MAX),
    SET(OUTCOME, ALL, OC(output_len), 0),
    SET(OUTCOME, ALL, OC(output_len), 8),
    SET(OUTCOME, KERNEL | FORKS | HOSTS, OC(output_len), UINT64_C(1) << 32),
    SET(OUTCOME, ALL, OC(output_len), UINT64_MAX),
    SET(PART, COMMAND | FORKS | HOSTS, PT(at), 0),
    SET(PART, COMMAND | FORKS | HOSTS, PT(at), UINT64_MAX),
    SET(PART, COMMAND | FORKS | HOSTS, PT(at), (UINT64_C(9) << 48) + 65536),
    ADD(PART, COMMAND | FORKS | HOSTS, PT(at), UINT64_C(1) << 40),
    ADD(PART, COMMAND | FORKS | HOSTS, PT(at), 1),
    SET(PART, COMMAND | FORKS | HOSTS, PT(len), 0),
    ADD(PART, COMMAND | FORKS | HOSTS, PT(len), 1),
    SET(PART, COMMAND | FORKS | HOSTS, PT(len), UINT64_C(1) << 45),
    SET(PART, COMMAND | FORKS | HOSTS, PT(len), TOP | UINT64_C(1) << 45),
    SET(PART, COMMAND | FORKS | HOSTS, PT(len), TOP),
    SET(PART, COMMAND | FORKS | HOSTS, PT(len), UINT64_MAX),
    SET(SUM, COMMAND | FORKS | HOSTS, PT(len), 0),
    SET(SUM, COMMAND | FORKS | HOSTS, PT(len), TOP | UINT64_C(1) << 45),
    SET(SUM, COMMAND | FORKS | HOSTS, PT(len), TOP | UINT64_C(1) << 62),
    SET(RESULT, COMMAND | FORKS | HOSTS, RS(status), 0x80000000),
    SET(RESULT, COMMAND | FORKS, RS(status), (uint32_t)-EPIPE),
    SET(RESULT, COMMAND | FORKS | HOSTS, RS(status), MAP_STATUS_SPILLED),
    SET(RESULT, COMMAND | FORKS | HOSTS, RS(status), MAP_STATUS_HOME),
    SET(RESULT, COMMAND | FORKS | HOSTS, RS(result), 0),
    SET(RESULT, COMMAND | FORKS | HOSTS, RS(result), UINT64_MAX),
    SET(RESULT, COMMAND | FORKS | HOSTS, RS(result_len), 0),
    SET(RESULT, COMMAND | FORKS | HOSTS, RS(result_len), sizeof(struct map_outcome)),
    SET(RESULT, COMMAND | FORKS | HOSTS, RS(result_len), UINT64_C(1) << 36),
    SET(RESULT, COMMAND | FORKS | HOSTS, RS(result_len), UINT64_MAX),
    SET(REFUSED, COMMAND | FORKS | HOSTS, OC(parts), UINT32_MAX),
    SET(TASK, COMMAND | FORKS | HOSTS, TK(kind), UINT32_MAX),
    SET(TASK, COMMAND | FORKS | HOSTS, ARG(0), UINT64_MAX),
    SET(TASK, ALL, ARG(1), UINT32_MAX),
    SET(TASK, ALL, ARG(1), (uint64_t)MAP_IN_POOL << 32),
    SET(TASK, ALL, ARG(1), (uint64_t)MAP_IN_SPOOL << 32),
    SET(TASK, ALL, ARG(1), (uint64_t)MAP_IN_CACHE << 32),
    SET(TASK, ALL, ARG(1), UINT64_C(77) << 32),
    SET(TASK, ALL, ARG(2), UINT64_C(1) << 40),
    SET(TASK, ALL, ARG(2), UINT64_MAX),
    SET(TASK, ALL, ARG(3), UINT64_C(1) << 36),
    SET(TASK, ALL, ARG(3), TOP),
    SET(TASK, ALL, ARG(3), UINT64_MAX / 9 * 8 + 4096), /* so large that an eighth more overflows to a small number */
    SET(TASK, ALL, ARG(3), UINT64_MAX),
    SET(TASK, ALL, ARG(3), 0),
    SET(TASK, ALL, ARG(4), UINT64_MAX),
    SET(ASK, COMMAND | HOSTS, AK(what), MAP_ASK_SPOOL),
    SET(ASK, COMMAND | HOSTS, AK(what), MAP_ASK_SPILL),
    SET(ASK, COMMAND | HOSTS, AK(input), UINT32_MAX),
    SET(ASK, COMMAND | HOSTS, AK(offset), UINT64_MAX),
    SET(ASK, COMMAND | HOSTS, AK(len), MAP_CHUNK_BYTES),
    SET(ANSWER, COMMAND | HOSTS, WORD(0, 8), 1 | (uint64_t)EINPROGRESS << 32),
    SET(ANSWER, COMMAND | HOSTS, WORD(0, 8), 1 | (uint64_t)ECONNRESET << 32),
    SET(ANSWER, COMMAND | HOSTS, WORD(0, 8), 1 | (uint64_t)ENETDOWN << 32),
    SET(ANSWER, COMMAND | HOSTS, WORD(0, 8), 1 | (uint64_t)UINT32_MAX << 32),
    SET(ANSWER, COMMAND | HOSTS, WORD(0, 8), 1 | TOP),
    SET(ANSWER, COMMAND | HOSTS, WORD(0, 8), 5),
    SET(FILE_ASK, COMMAND | KERNEL | HOSTS, AK(what), MAP_ASK_SPOOL),
    SET(FILE_ASK, COMMAND | KERNEL | HOSTS, AK(what), MAP_ASK_SPILL),
    SET(FILE_ASK, COMMAND | KERNEL | HOSTS, AK(input), UINT32_MAX),
    SET(FILE_ASK, COMMAND | KERNEL | HOSTS, AK(file), 1),
    SET(FILE_ASK, COMMAND | KERNEL | HOSTS, AK(offset), UINT64_MAX),
    SET(FILE_ASK, COMMAND | KERNEL | HOSTS, AK(offset), UINT64_C(1) << 40),
    SET(FILE_ANSWER, COMMAND | KERNEL | HOSTS, WORD(0, 8), 1 | (uint64_t)EINPROGRESS << 32),
    SET(FILE_ANSWER, COMMAND | KERNEL | HOSTS, WORD(0, 8), 1 | (uint64_t)ESTALE << 32),
    SET(FILE_ANSWER, COMMAND | KERNEL | HOSTS, WORD(0, 8), 5),
    SET(SPILL, COMMAND | HOSTS, WORD(0, 8), 1 | (uint64_t)EINPROGRESS << 32),
    SET(SPILL, COMMAND | HOSTS, WORD(0, 8), 1 | (uint64_t)ECONNRESET << 32),
    SET(SPILL, COMMAND | HOSTS, WORD(0, 8), 1 | (uint64_t)ENETDOWN << 32),
    SET(SPILL, COMMAND | HOSTS, WORD(0, 8), 1 | (uint64_t)UINT32_MAX << 32),
    SET(SPILL, COMMAND | HOSTS, WORD(0, 8), 1 | TOP),
    SET(SPILL, COMMAND | HOSTS, WORD(0, 8), 5),
    SET(ORDER_AT, COMMAND | HOSTS, WORD(0, 8), UINT64_MAX),
    SET(ORDER_AT, COMMAND | HOSTS, WORD(8, 8), 1),
    SET(ORDER_AT, COMMAND | HOSTS, WORD(8, 8), UINT64_MAX),
    SET(ORDER, COMMAND | HOSTS, WORD(8, 4), UINT32_MAX),     /* bytes */
    SET(ORDER, COMMAND | HOSTS, WORD(12, 4), MAP_SLOTS_MAX), /* slots */
    SET(ORDER, COMMAND | HOSTS, WORD(16, 4), UINT32_MAX),    /* retries */
    SET(ORDER, COMMAND | HOSTS, WORD(20, 4), UINT32_MAX),    /* inputs */
    SET(ORDER, COMMAND | HOSTS, WORD(24, 4), 1),             /* names */
    SET(ORDER, COMMAND | HOSTS, WORD(28, 4), UINT32_MAX),    /* argc */
    SET(ORDER, COMMAND | HOSTS, WORD(40, 8), INT64_MAX),     /* timeout_ns */
    SET(ORDER, COMMAND | HOSTS, WORD(48, 8), INT64_MAX),     /* lease_ns */
    SET(ORDER, COMMAND | HOSTS, WORD(56, 8), UINT64_MAX),    /* given */
    SET(ORDER, COMMAND | HOSTS, WORD(64, 8), UINT64_MAX),    /* tallies */
    SET(RELEASE, COMMAND | FORKS | HOSTS, WORD(0, 8), UINT64_MAX),
    ADD(RELEASE, COMMAND | FORKS | HOSTS, WORD(0, 8), 8),
    SET(PRINTS, COMMAND | HOSTS, WORD(0, 4), UINT32_MAX),
    SET(TALLY, COMMAND | HOSTS, TL(busy), UINT64_MAX),
    SET(TALLY, COMMAND | HOSTS, TL(busy_ns), UINT64_MAX),
    SET(TALLY, COMMAND | HOSTS, TL(command_ns), UINT64_MAX),
    SET(TALLY, COMMAND | HOSTS, TL(spilled), UINT64_MAX),
};
#define LIES (sizeof lies / sizeof lies[0])

static const struct lie *lie;  /* the wrong value of this job */
static _Atomic uint32_t *told; /* shared: whether it was written */

static bool lies_in(enum record record)
{
    return lie && lie->record == record;
}

static void tell(void *record)
{
    uint64_t value = 0;
    uint8_t *at = (uint8_t *)record + lie->at;
    memcpy(&value, at, lie->bytes);
    value = lie->add ? value + lie->value : lie->value;
    memcpy(at, &value, lie->bytes); /* the low bytes: little-endian, as weft is */
    atomic_store(told, 1);
}

/* --- replaced library calls --- */

int __real_weft_claim(weft_queue *q, weft_lease *out, uint32_t max, int64_t timeout_ns);
int __wrap_weft_claim(weft_queue *q, weft_lease *out, uint32_t max, int64_t timeout_ns);
int __wrap_weft_claim(weft_queue *q, weft_lease *out, uint32_t max, int64_t timeout_ns)
{
    /* Node 0 leaves the pieces to node 1. Once that has lied, node 0 takes pieces, too: those that have failed on node 1 wait for it. */
    if (q->w->rank != 0 || atomic_load(&q->shut) || !weft_alive(q->w, 1) || atomic_load(told))
        return __real_weft_claim(q, out, max, timeout_ns);
    if (timeout_ns)
        usleep(5000);
    return -ETIMEDOUT;
}

int __real_weft_complete(weft_queue *q, const weft_lease *claims, const weft_result *results, uint32_t count, bool *accepted);
int __wrap_weft_complete(weft_queue *q, const weft_lease *claims, const weft_result *results, uint32_t count, bool *accepted);
int __wrap_weft_complete(weft_queue *q, const weft_lease *claims, const weft_result *results, uint32_t count, bool *accepted)
{
    weft_result r = *results;
    struct map_outcome *oc = r.status == 0 ? weft_ptr(q->w, r.result, r.result_len) : NULL;
    if (q->w->rank == 1 && lies_in(RESULT))
        tell(&r);
    if (q->w->rank == 1 && oc && lies_in(OUTCOME))
        tell(oc);
    if (q->w->rank == 1 && oc && oc->parts && (lies_in(PART) || lies_in(SUM))) {
        struct map_part *part = (struct map_part *)(void *)(oc + 1);
        uint64_t before = part->len & ~MAP_SPILLED;
        tell(part);
        if (lies_in(SUM))
            oc->output_len += (part->len & ~MAP_SPILLED) - before;
    }
    if (q->w->rank == 1 && oc && lies_in(REFUSED) && !atomic_load(told)) {
        tell(oc);
        *accepted = false;
        return weft_release(q, claims);
    }
    return __real_weft_complete(q, claims, &r, count, accepted);
}

int __real_weft_submit(weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t timeout_ns);
int __wrap_weft_submit(weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t timeout_ns);
int __wrap_weft_submit(weft_queue *q, const weft_task *tasks, uint32_t count, uint64_t *ids, int64_t timeout_ns)
{
    weft_task t = *tasks;
    if (lies_in(TASK))
        tell(&t);
    return __real_weft_submit(q, &t, count, ids, timeout_ns);
}

int __real_weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);
int __wrap_weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op);
int __wrap_weft_put_signal(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_gaddr signal, uint64_t add, weft_op *op)
{
    if (lies_in(w->rank ? SPILL : ANSWER) || (!w->rank && lies_in(FILE_ANSWER)))
        tell(&add);
    return __real_weft_put_signal(w, dst, src, len, signal, add, op);
}

int __real_weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
int __wrap_weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op);
int __wrap_weft_put(weft_node *w, weft_gaddr dst, const void *src, size_t len, weft_op *op)
{
    struct map_tally t;
    if (len != sizeof t || !lies_in(TALLY))
        return __real_weft_put(w, dst, src, len, op);
    memcpy(&t, src, sizeof t);
    tell(&t);
    int rc = __real_weft_put(w, dst, &t, len, op);
    if (!rc)
        weft_wait(w, op, WEFT_TIMEOUT_DEFAULT);
    return rc;
}

int __real_weft_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                     size_t payload_len, weft_op *op);
int __wrap_weft_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                     size_t payload_len, weft_op *op);
int __wrap_weft_send(weft_node *w, uint32_t node, uint32_t id, const void *header, size_t header_len, const void *payload,
                     size_t payload_len, weft_op *op)
{
    static _Thread_local uint64_t head[WEFT_HEADER_MAX / 8], body[WEFT_PAYLOAD_MAX / 8];
    if (header_len)
        memcpy(head, header, header_len);
    if (payload_len)
        memcpy(body, payload, payload_len);
    bool of_file = id == MAP_HANDLER_ASK && w->rank == 1 && ((struct map_ask *)(void *)head)->what == MAP_ASK_FILE;
    if ((id == MAP_HANDLER_ASK && lies_in(ASK)) || (of_file && lies_in(FILE_ASK)) || (id == MAP_HANDLER_PRINTS && lies_in(PRINTS)) ||
        (id == MAP_HANDLER_ORDER && lies_in(ORDER_AT)))
        tell(head);
    if (id == MAP_HANDLER_ORDER && lies_in(ORDER))
        tell(weft_ptr(w, head[0], head[1]));
    if (id == MAP_HANDLER_RELEASE && payload_len && lies_in(RELEASE))
        tell(body);
    return __real_weft_send(w, node, id, head, header_len, body, payload_len, op);
}

/* --- one job --- */

static char directory[] = "/tmp/weft-map-lies-XXXXXX";
static char input[64], errors[64];

/* The outputs of this command are larger than a pool, so a part is written to the spill file; 60 KB are in the outcome itself. */
static char *const command[] = {"sh", "-c", "cat; head -c 6060000 /dev/zero; echo this is said >&2", NULL};

/* For these, the pieces are those of standard input, which are not in the file service's cache. */
static bool asks_for_input(void)
{
    return lie && (lie->record == ASK || lie->record == ANSWER);
}

static int node_main(unsigned jobs, int rank, const char *coord)
{
    char *files[] = {asks_for_input() ? (char *)(uintptr_t) "-" : input};
    struct map_options o = {.files = files,
                            .file_count = 1,
                            .command = jobs & KERNEL ? NULL : command,
                            .kernel = jobs & KERNEL ? "wc" : NULL,
                            .nodes = 2,
                            .slots = 1,
                            .memory_bytes = 16 << 20,
                            .memory = "16M",
                            .block_bytes = 1 << 20,
                            .retries = 1,
                            .timeout_ns = 60 * WEFT_SECOND,
                            .output = "/dev/null",
                            .stats = true,
                            .progress = MAP_NEVER,
                            .apart = jobs & HOSTS,
                            .emulated = jobs & HOSTS};
    if (jobs & HOSTS) {
        setenv("WEFT_RANK", rank ? "1" : "0", 1);
        setenv("WEFT_SIZE", "2", 1);
        setenv("WEFT_COORD", coord, 1);
        setenv("WEFT_POOL", "8M", 1);
    }
    return rank ? map_serve() : map_run(&o);
}

/* Waits for a node's end, and gets its status. False: it has not ended in time. */
static bool wait_end(pid_t pid, int *status, struct rusage *used, int64_t until_ns)
{
    while (now_ns() < until_ns) {
        if (wait4(pid, status, WNOHANG, used) == pid)
            return true;
        usleep(500);
    }
    return false;
}

static void say_errors(void)
{
    char text[16384];
    int fd = open(errors, O_RDONLY);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : 0;
    if (n > 0)
        fprintf(stderr, "%.*s", (int)n, text);
    close(fd);
}

static bool said(const char *words)
{
    static char text[1 << 20];
    int fd = open(errors, O_RDONLY);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    text[n > 0 ? n : 0] = '\0';
    close(fd);
    return strstr(text, words);
}

static bool job(unsigned jobs)
{
    static unsigned number;
    char coord[64];
    snprintf(coord, sizeof coord, "unix:@weft-lies-%d-%u", (int)getpid(), number++);
    pid_t pids[2] = {0, 0};
    int count = jobs & HOSTS ? 2 : 1, status[2] = {0, 0};
    struct rusage used[2];
    unlink(errors);
    for (int rank = 0; rank < count; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL}; /* remove cmocka's handlers, which would go on with the tests */
            for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
                signal(faults[i], SIG_DFL);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            int err = open(errors, O_WRONLY | O_CREAT | O_APPEND, 0600), null = open("/dev/null", O_RDWR);
            int in = asks_for_input() ? open(input, O_RDONLY) : dup(null);
            dup2(in, STDIN_FILENO);
            close(in);
            dup2(null, STDOUT_FILENO);
            dup2(err, STDERR_FILENO);
            close(err);
            close(null);
            exit(node_main(jobs, rank, coord));
        }
    }
    const char *wrong = NULL;
    int64_t end = now_ns() + patience_ns(60);
    for (int rank = 0; rank < count; rank++) {
        if (!wait_end(pids[rank], &status[rank], &used[rank], end)) {
            wrong = "does not end";
            fprintf(stderr, "node %d:\n", rank);
            for (int other = rank; other < count; other++) /* the node may wait for the other one */
                show_threads(pids[other]);
            kill(pids[rank], SIGKILL);
            waitpid(pids[rank], NULL, 0);
        } else if (WIFSIGNALED(status[rank]) && !(rank && WTERMSIG(status[rank]) == SIGTERM)) { /* node 1: the owner has ended */
            wrong = "is killed by a signal";
        } else if (WIFEXITED(status[rank]) && WEXITSTATUS(status[rank]) > 1 && WEXITSTATUS(status[rank]) != 126) {
            wrong = "ends with a status that weft map never uses";
        } else if (used[rank].ru_maxrss > 1 << 20) { /* KiB */
            wrong = "took a gigabyte";
        } else if (rank == 0 && WEXITSTATUS(status[rank]) == 1 && !said("weft map: ")) {
            wrong = "does not say why it failed";
        }
    }
    if (!wrong && (said("Sanitizer") || said("runtime error")))
        wrong = "caused a report of the sanitizer";
    if (!wrong && (said("was killed by signal") || said(") ended with status")))
        wrong = "has lost node 1";
    if (wrong) {
        fprintf(stderr, "--- %s, %s, %s: a node %s (%#x, %#x)\n", lie ? lie->name : "no lie", jobs & HOSTS ? "apart" : "forks",
                jobs & KERNEL ? "kernel" : "command", wrong, (unsigned)status[0], (unsigned)status[1]);
        say_errors();
    }
    return !wrong && (lie || (status[0] == 0 && status[1] == 0));
}

static const char *only; /* run only lies whose name begins with this */

static void test_lies(void **state)
{
    (void)state;
    unsigned failed = 0, wasted = 0;
    for (size_t i = 0; i < LIES; i++) {
        if (only && strncmp(lies[i].name, only, strlen(only)))
            continue;
        for (unsigned where = FORKS; where <= HOSTS; where <<= 1)
            for (unsigned what = COMMAND; what <= KERNEL; what <<= 1) {
                if (!(lies[i].jobs & where) || !(lies[i].jobs & what))
                    continue;
                lie = &lies[i];
                atomic_store(told, 0);
                failed += !job(where | what);
                /* The wrong value was never written, because this job has no such record: an error in the table. (A kernel's outcome has no
                 * parts.) */
                if (!atomic_load(told)) {
                    fprintf(stderr, "--- %s: was not told\n", lie->name);
                    wasted++;
                }
            }
    }
    lie = NULL;
    assert_int_equal(failed, 0);
    assert_int_equal(wasted, 0);
}

static void test_truth(void **state)
{
    (void)state;
    assert_true(job(FORKS | COMMAND));
    assert_true(job(FORKS | KERNEL));
    assert_true(job(HOSTS | COMMAND));
    assert_true(job(HOSTS | KERNEL));
}

/* A file that is cut short while a kernel reads it. */
static void test_cut_short(void **state)
{
    (void)state;
    struct map_mapped m;
    int fd = open(errors, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 5 << 20), 0);
    assert_int_equal(pwrite(fd, "last", 4, (5 << 20) - 4), 4);
    assert_int_equal(map_mapped_open(&m, fd, 5000, (5 << 20) - 5000), 0);
    assert_memory_equal(m.bytes + (5 << 20) - 5004, "last", 4);
    assert_false(map_mapped_close(&m));
    assert_int_equal(map_mapped_open(&m, fd, 5000, (5 << 20) - 5000), 0);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    unsigned sum = 0;
    for (size_t i = 0; i < (5 << 20) - 5000; i += 512)
        sum += m.bytes[i];
    assert_int_equal(sum, 0);
    assert_true(map_mapped_close(&m));
    assert_int_equal(map_mapped_open(&m, fd, 5000, 2 << 20), -ENODATA);
    close(fd);
}

static int setup(void **state)
{
    (void)state;
    told = shared_words(sizeof *told);
    if (!mkdtemp(directory))
        return -1;
    setenv("TMPDIR", directory, 1);
    snprintf(input, sizeof input, "%s/input", directory);
    snprintf(errors, sizeof errors, "%s/errors", directory);
    FILE *f = fopen(input, "w");
    for (int i = 0; f && i < 200000; i++)
        fprintf(f, "line %d\n", i);
    return f ? fclose(f) : -1;
}

static int teardown(void **state)
{
    (void)state;
    unlink(input);
    unlink(errors);
    return rmdir(directory);
}

int main(int argc, char **argv)
{
    only = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_truth), cmocka_unit_test(test_cut_short), cmocka_unit_test(test_lies)};
    return cmocka_run_group_tests_name("map lies", tests, setup, teardown);
}
