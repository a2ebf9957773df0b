/* SPDX-License-Identifier: MIT
 *
 * The speed of the kernel's cross-memory copy between two processes, without anything else: the limit for a device that moves data in this
 * way.
 *
 *   write_bw   one process copies into the other's memory, again and again; the other sleeps
 *   check_bw   as write_bw, but both sum every byte, piece by piece, where it left and where it came, and the sums
 *              are compared: the limit of what is checked end to end
 *   write_lat  each in turn copies a few bytes into the other's memory, which the other polls: half a
 *              round trip
 *   send_lat   as write_lat, but then hands over a cache line of shared memory, and the other polls that
 *   frame_lat  as send_lat, up to a page, and both look at what they send and get: it is summed where it left and
 *              where it came, and the sum handed over
 *
 * A latency is the median of single round trips, each of which is timed, as in perftest's "typical".
 *
 * Buffers are made as perftest makes them: by posix_memalign(), in 4 KiB pages unless the system uses larger
 * ones, and accessed before the test begins.
 */
#include "../spec.h"
#include "base/hash.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE = 64, PAGE = 4096, PIECE = 512 << 10, AHEAD = 7 };

struct side {
    _Atomic uint64_t turn __attribute__((aligned(LINE))); /* how often the other side has handed over */
    uint64_t sum;                                         /* frame_lat: the sum that is handed over with the turn */
    void *buffer;                                         /* address of the buffer in that process */
    pid_t pid;
};

struct pair {
    struct side side[2];
    _Atomic int failed; /* an errno */
    _Atomic int ready;
    uint64_t sums[AHEAD]; /* of pieces, where they left */
};

static bool copy_to(const struct pair *p, int to, void *from, void *at, uint64_t bytes)
{
    struct iovec here = {from, bytes}, there = {at, bytes};
    return process_vm_writev(p->side[to].pid, &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

static bool copy(const struct pair *p, int to, void *from, uint64_t bytes)
{
    return copy_to(p, to, from, p->side[to].buffer, bytes);
}

static cpu_set_t allowed; /* the cores that this process may use, read at the start, before it restricts itself to one core */

static void place(int core)
{
    cpu_set_t one;
    int at = 0;
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &allowed) && at++ == core % CPU_COUNT(&allowed)) {
            CPU_ZERO(&one);
            CPU_SET(i, &one);
            sched_setaffinity(0, sizeof(one), &one);
            return;
        }
    }
}

/* Checks that the bytes that arrived are those that were sent. If not, the pair fails. */
static bool right(struct pair *p, int me, uint64_t bytes)
{
    if (base_hash(p->side[me].buffer, bytes, 0) != p->side[me].sum && !p->failed) {
        p->failed = EBADMSG;
    }
    return !p->failed;
}

/* How a side announces its turn: by the copied bytes themselves, by a line of shared memory, or by such a line with the sum of the bytes.
 */
enum told { BY_BYTES, BY_LINE, BY_SUM };

/* Runs the turns of one side. If `at` is not NULL, at[i] receives the time when turn i began. */
static bool turns(struct pair *p, int me, uint64_t from, uint64_t to, uint64_t bytes, enum told told, uint64_t *at)
{
    volatile uint8_t *mine = (volatile uint8_t *)p->side[me].buffer + bytes - 1;
    const bool shared = told != BY_BYTES;
    uint8_t source[PAGE];
    for (uint64_t i = from; i < to; i++) {
        memset(source, (int)(i % 251 + 1), bytes);
        if (at) {
            at[i - from] = spec_now_ns();
        }
        if (me == 1) { /* the other process begins */
            if (shared) {
                while (atomic_load_explicit(&p->side[1].turn, memory_order_acquire) != i + 1 && !p->failed) {
                }
            } else {
                while (*mine != source[0] && !p->failed) {
                }
            }
        }
        if (me == 1 && told == BY_SUM && !right(p, me, bytes)) {
            return false;
        }
        if (!copy(p, !me, source, bytes)) {
            p->failed = errno ? errno : EIO;
            return false;
        }
        if (told == BY_SUM) {
            p->side[!me].sum = base_hash(source, bytes, 0);
        }
        if (shared) {
            atomic_store_explicit(&p->side[!me].turn, i + 1, memory_order_release);
        }
        if (me == 0) {
            if (shared) {
                while (atomic_load_explicit(&p->side[0].turn, memory_order_acquire) != i + 1 && !p->failed) {
                }
            } else {
                while (*mine != source[0] && !p->failed) {
                }
            }
            if (told == BY_SUM && !right(p, me, bytes)) {
                return false;
            }
        }
    }
    return !p->failed;
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double latency(struct pair *p, const struct spec *s, enum told told)
{
    double value = -1;
    uint64_t *at = calloc(s->iterations, sizeof(*at));
    if (at && turns(p, 0, 0, s->warmup, s->bytes, told, NULL) && turns(p, 0, s->warmup, s->warmup + s->iterations, s->bytes, told, at)) {
        for (uint64_t i = 0; i + 1 < s->iterations; i++) {
            at[i] = at[i + 1] - at[i];
        }
        qsort(at, s->iterations - 1, sizeof(*at), by_size);
        value = spec_us(at[(s->iterations - 1) / 2], 2);
    }
    p->failed = value < 0 && !p->failed ? ENOMEM : p->failed; /* the other side must not wait for more */
    free(at);
    return value;
}

static uint64_t pieces_of(const struct spec *s)
{
    return (s->bytes + PIECE - 1) / PIECE;
}

static uint64_t sum_piece(const struct spec *s, const uint8_t *buffer, uint64_t i, uint64_t *at, uint64_t *bytes)
{
    *at = i % pieces_of(s) * PIECE;
    *bytes = s->bytes - *at < PIECE ? s->bytes - *at : PIECE;
    return buffer ? base_hash(buffer + *at, *bytes, 0) : 0;
}

/* Here a turn is a piece. Side 1 counts the pieces that have arrived; side 0 counts the pieces that are known to be right. */
static void judge_pieces(struct pair *p, const struct spec *s, const uint8_t *buffer)
{
    for (uint64_t i = 0, at, bytes; i < (s->warmup + s->iterations) * pieces_of(s); i++) {
        while (atomic_load_explicit(&p->side[1].turn, memory_order_acquire) <= i) {
        }
        if (sum_piece(s, buffer, i, &at, &bytes) != p->sums[i % AHEAD]) {
            p->failed = EBADMSG;
            return;
        }
        atomic_store_explicit(&p->side[0].turn, i + 1, memory_order_release);
    }
}

static bool send_pieces(struct pair *p, const struct spec *s, uint8_t *buffer, uint64_t from, uint64_t to)
{
    for (uint64_t i = from, at, bytes; i < to; i++) {
        while (i - atomic_load_explicit(&p->side[0].turn, memory_order_acquire) >= AHEAD && !p->failed) {
        }
        sum_piece(s, NULL, i, &at, &bytes);
        if (p->failed || !copy_to(p, 1, buffer + at, (uint8_t *)p->side[1].buffer + at, bytes)) {
            return false;
        }
        p->sums[i % AHEAD] = sum_piece(s, buffer, i, &at, &bytes);
        atomic_store_explicit(&p->side[1].turn, i + 1, memory_order_release);
    }
    while (atomic_load_explicit(&p->side[0].turn, memory_order_acquire) != to && !p->failed) {
    }
    return !p->failed;
}

static double checked(struct pair *p, const struct spec *s, uint8_t *buffer)
{
    uint64_t pieces = pieces_of(s);
    bool good = send_pieces(p, s, buffer, 0, s->warmup * pieces);
    uint64_t begin = spec_now_ns();
    good = good && send_pieces(p, s, buffer, s->warmup * pieces, (s->warmup + s->iterations) * pieces);
    return good ? spec_gbs(spec_now_ns() - begin, s->bytes, s->iterations) : -1;
}

static double measure(struct pair *p, const struct spec *s)
{
    const bool bandwidth = !strcmp(s->test, "write_bw"), check = !strcmp(s->test, "check_bw");
    const enum told told = !strcmp(s->test, "frame_lat") ? BY_SUM : !strcmp(s->test, "send_lat") ? BY_LINE : BY_BYTES;
    void *buffer;
    if (posix_memalign(&buffer, 4096, s->bytes < 4096 ? 4096 : s->bytes)) {
        return -1;
    }
    memset(buffer, 0, s->bytes < 4096 ? 4096 : s->bytes);
    memset(p, 0, sizeof(*p));
    p->side[0].pid = getpid();
    p->side[0].buffer = p->side[1].buffer = buffer; /* each has its own after the fork */
    /* If Yama keeps processes from tracing each other, this call lets the other process access this one. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        place(1);
        memset(buffer, 0, s->bytes < 4096 ? 4096 : s->bytes); /* pages of its own */
        p->side[1].pid = getpid();
        atomic_store(&p->ready, 1);
        if (check) {
            judge_pieces(p, s, buffer);
        }
        while (bandwidth || check) {
            pause();
        }
        _exit(!turns(p, 1, 0, s->warmup + s->iterations, s->bytes, told, NULL));
    }
    if (child < 0) {
        free(buffer);
        return -1;
    }
    place(0);
    while (!atomic_load(&p->ready)) {
        sched_yield();
    }
    double value = -1;
    if (check) {
        value = checked(p, s, buffer);
        kill(child, SIGKILL);
    } else if (bandwidth) {
        bool good = true;
        for (uint64_t i = 0; i < s->warmup && good; i++) {
            good = copy(p, 1, buffer, s->bytes);
        }
        uint64_t begin = spec_now_ns();
        for (uint64_t i = 0; i < s->iterations && good; i++) {
            good = copy(p, 1, buffer, s->bytes);
        }
        value = good ? spec_gbs(spec_now_ns() - begin, s->bytes, s->iterations) : -1;
        p->failed = good ? 0 : errno;
        kill(child, SIGKILL);
    } else {
        value = latency(p, s, told);
    }
    int status;
    waitpid(child, &status, 0);
    free(buffer);
    return value;
}

int main(int count, char **word)
{
    struct pair *p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    if (sched_getaffinity(0, sizeof(allowed), &allowed)) {
        CPU_ZERO(&allowed); /* the machine has more cores than the set can hold: let the system choose the core */
    }
    for (int i = 1; i < count; i++) {
        struct spec s;
        if (spec_parse(&s, word[i])) {
            return 2;
        }
        const bool large = !strcmp(s.test, "write_bw") || !strcmp(s.test, "check_bw");
        const uint64_t most = !strcmp(s.test, "write_lat") || !strcmp(s.test, "send_lat") ? LINE : !strcmp(s.test, "frame_lat") ? PAGE : 0;
        if (!s.bytes || (!large && (s.bytes > most || s.iterations < 2))) {
            spec_missing(&s, "no such test");
            continue;
        }
        double value = measure(p, &s);
        if (value < 0) {
            spec_missing(&s, p->failed ? strerror(p->failed) : "it could not be set up");
        } else {
            spec_value(&s, value);
        }
    }
    return 0;
}
