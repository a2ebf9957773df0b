/* SPDX-License-Identifier: MIT
 *
 * For tests of the file service with readers on several other hosts. Node 0 is the gateway.
 */
#ifndef FILE_HOSTS_TEST_H
#define FILE_HOSTS_TEST_H

#include "file_test.h"

#include <signal.h>
#include <stdatomic.h>

#include "gateway/file_handle.h"

#define PIECES 40u
#define BYTES  (PIECES * PIECE)
#define SEED   60
#define FEW    4u /* a node has room for copies of this many pieces, including those that are read ahead */

/* The pools have room for copies of 16 pieces. */
static const char *const HOSTS[] = {"WEFT_SERVE=file", "WEFT_POOL=128M", "WEFT_FILE_CACHE=64M", "WEFT_LOG=error", NULL};

struct hosts_board {
    _Atomic uint32_t opened, half, done, pid, gone;
    uint64_t given, passed;
    bool by_device; /* the copies of the silent node were read by its device */
};

/* Writes over a copy of a piece. Other nodes may be reading it, as the tests intend; so the thread sanitizer must not look. */
static __attribute__((no_sanitize("thread"), noinline, unused)) void spoil(uint8_t *copy)
{
    for (volatile uint8_t *p = copy; p < copy + PIECE; p++)
        *p = 0xee;
}

/* Reads some pieces and checks them. */
static inline void read_pieces(weft_file *f, uint64_t from, uint64_t to)
{
    static uint8_t some[WEFT_FILE_PIECE];
    size_t n;
    for (uint64_t i = from; i < to; i++) {
        OK(weft_file_read(f, some, PIECE, i * PIECE, &n, DEFAULT_TIME));
        CHECK(n == PIECE && right(some, SEED, i * PIECE, n));
    }
}

/* All have it open before any of them reads, so the gateway knows that they are several. */
static inline weft_file *open_together(weft_node *w, struct hosts_board *b)
{
    weft_file *f;
    OK(weft_file_open(w, 0, in_folder("file"), 0, &f, DEFAULT_TIME));
    meet(&b->opened, weft_size(w) - 1);
    return f;
}

/* Copies that a silent node has: an RDMA device reads them while the node's process is stopped. No bytes come if the process is needed for
 * them, as over TCP, or if the device has no cable. */
enum silence { STOPPED, CUT_OFF };

/* The silent node must not count as dead. */
static const char *const SILENCE[] = {"WEFT_SERVE=file", "WEFT_POOL=128M",     "WEFT_FILE_CACHE=64M",
                                      "WEFT_LOG=error",  "WEFT_RECONNECT=60s", NULL};

static inline void make_silent(enum silence how, const struct hosts_board *b)
{
    if (how == STOPPED)
        stop_asleep((pid_t)atomic_load(&b->pid));
    else
        softverbs("fault pull 1:sv0");
}

static inline void end_silence(enum silence how, const struct hosts_board *b)
{
    if (how == STOPPED)
        CHECK(kill((pid_t)atomic_load(&b->pid), SIGCONT) == 0);
    else
        softverbs("fault plug 1:sv0");
}

/* Node 2 has read the file while node 1, which has copies of the first FEW pieces at least, was silent. */
static inline void note_silence(weft_node *w, enum silence how, struct hosts_board *b)
{
    b->by_device = how == STOPPED && strcmp(stats(w, 1).transport, "rc") == 0 && stats(w, 1).fetched_bytes >= FEW * PIECE;
}

static inline void check_silence(enum silence how, const struct hosts_board *b)
{
    assert_int_equal(b->by_device, how == STOPPED && !getenv("TEST_NAMESPACES"));
    if (!b->by_device) /* the gateway has given to node 2 what node 1 has, too */
        assert_true(b->given >= BYTES + FEW * PIECE);
}

/* Only an emulated device can lose its cable. */
static inline bool can_cut_off(void)
{
    bool can = getenv("SOFTVERBS_FABRIC");
    if (!can)
        print_message("no device here has a cable to pull\n");
    return can;
}

/* On a busy machine, too, everybody waits for copies that are under way. */
static inline void be_patient(weft_node *w)
{
    atomic_store(&gateway_in(w)->file_patience, patience_ns(60));
}

static inline bool gateway_is_far(weft_node *w)
{
    return !weft_ptr(w, weft_gaddr_make(0, 0, w->heap_offset), 1);
}

static inline void wait_for_no_copies(weft_node *w)
{
    weft_pool_stats s;
    int64_t deadline = now_ns() + patience_ns(20);
    do {
        OK(weft_pool_stat(w, &s, sizeof s));
        CHECK(now_ns() < deadline);
        usleep(10000);
    } while (s.file_bytes);
}

#endif
