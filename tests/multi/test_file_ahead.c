/* SPDX-License-Identifier: MIT
 *
 * The file service: which pieces are requested in advance, for reads and for maps. Node 0 is the gateway.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>

#include "file_test.h"
#include "gateway/file_handle.h"

static const char *const USUAL[] = {"WEFT_SERVE=file", "WEFT_POOL=64M", "WEFT_LOG=error", NULL};

/* Maps pieces in order, backwards and in leaps through one handle; pieces that were mapped ahead and not used are given back. */
static void mapped_ahead(weft_node *w, void *arg)
{
    (void)arg;
    weft_file *f;
    weft_file_view v, kept;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    bool here = stats(w, 0).transport[0] == 's';
    OK(weft_file_open(w, 0, in_folder("big"), 0, &f, DEFAULT_TIME));
    for (unsigned round = 0; round < 3; round++)
        for (uint64_t i = 0; i < 9; i++) {
            OK(weft_file_map(f, i * PIECE, &v, DEFAULT_TIME));
            CHECK(right(v.at, 1, i * PIECE, PIECE));
            weft_file_unmap(f, &v);
        }
    for (uint64_t i = 9; i--;) {
        OK(weft_file_map(f, i * PIECE + 1, &v, DEFAULT_TIME));
        CHECK(right(v.at, 1, i * PIECE + 1, PIECE - 1));
        weft_file_unmap(f, &v);
    }
    OK(weft_file_map(f, 3 * PIECE, &kept, DEFAULT_TIME));
    OK(weft_file_map(f, 4 * PIECE, &v, DEFAULT_TIME)); /* now 5 and 6 are mapped ahead */
    int64_t deadline = now_ns() + patience_ns(10);
    while (here && cache_of(w).mapped_bytes != 4 * PIECE)
        CHECK(now_ns() < deadline);
    OK(weft_file_map(f, 8 * PIECE, &v, DEFAULT_TIME)); /* and now not any more */
    CHECK(right(kept.at, 1, 3 * PIECE, PIECE) && right(v.at, 1, 8 * PIECE, PIECE));
    CHECK(cache_of(w).mapped_bytes == (here ? 3 * PIECE : 0));
    OK(weft_file_close(f));
    deadline = now_ns() + patience_ns(10);
    while (cache_of(w).mapped_bytes)
        CHECK(now_ns() < deadline);
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_mapped_ahead(void **state)
{
    (void)state;
    write_file(in_folder("big"), 1, 9 * PIECE, O_TRUNC);
    assert_int_equal(
        nodes_failed_with(2, mapped_ahead, NULL, (const char *const[]){"WEFT_SERVE=file", "WEFT_POOL=128M", "WEFT_LOG=error", NULL}), 0);
}

/* --- reading ahead --- */

/* Two pieces in order: the next ones are read without anybody asking for them, and only these. */
static void read_ahead(weft_node *w, void *arg)
{
    (void)arg;
    static uint8_t some[3 * PIECE]; /* of four pieces */
    char byte;
    size_t n;
    weft_file *f;
    bool here = weft_ptr(w, weft_gaddr_make(0, 0, weft_gaddr_offset(symmetric_alloc(w, 8))), 8) != NULL;
    const unsigned ahead = here ? FILE_AHEAD_PIECES : FILE_AHEAD_FAR;
    if (weft_rank(w) == 1) {
        OK(weft_file_open(w, 0, in_folder("big"), 0, &f, DEFAULT_TIME));
        OK(weft_file_read(f, &byte, 1, 0, &n, DEFAULT_TIME));
        CHECK(cache_of(w).disk_reads == 1);
        OK(weft_file_read(f, &byte, 1, PIECE, &n, DEFAULT_TIME));
        int64_t deadline = now_ns() + patience_ns(10);
        while (cache_of(w).disk_reads != 2 + ahead)
            CHECK(now_ns() < deadline);
        OK(weft_file_read(f, &byte, 1, (ahead + 5) * PIECE, &n, DEFAULT_TIME)); /* not the next one: nothing is read ahead */
        CHECK(cache_of(w).disk_reads == 3 + ahead);
        OK(weft_file_close(f));
        /* One read of several pieces, somewhere: these are read, and nothing beyond the read's end. */
        OK(weft_file_open(w, 0, in_folder("other"), 0, &f, DEFAULT_TIME));
        OK(weft_file_read(f, some, sizeof some, 2 * PIECE + 100, &n, DEFAULT_TIME));
        CHECK(n == sizeof some && right(some, 2, 2 * PIECE + 100, n));
        OK(weft_file_close(f)); /* the gateway handles a handle's requests in order, so those of reads ahead are done now */
        CHECK(cache_of(w).disk_reads == 3 + ahead + 4);
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_read_ahead(void **state)
{
    (void)state;
    write_file(in_folder("big"), 1, (FILE_AHEAD_FAR + 10) * PIECE, O_TRUNC);
    write_file(in_folder("other"), 2, (FILE_AHEAD_FAR + 10) * PIECE, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, read_ahead, NULL, USUAL), 0);
}

static bool was_requested(struct file_line *line, uint64_t index)
{
    bool found = false;
    for (unsigned i = 0; i < FILE_SLOTS; i++)
        found = found || (file_slot_state(&line->slot[i]) != SLOT_FREE && line->slot[i].index == index);
    return found;
}

/* A program that reads the whole first piece of a file of another host will probably read the file, unless it has just read elsewhere: the
 * next piece is requested at once. The same if it begins again after the end, and if it maps the first piece. */
static void read_begins(weft_node *w, void *arg)
{
    (void)arg;
    static uint8_t some[PIECE];
    size_t n;
    weft_file_view v;
    weft_file *f;
    const bool far = weft_ptr(w, weft_gaddr_make(0, 0, weft_gaddr_offset(symmetric_alloc(w, 8))), 8) == NULL;
    const uint64_t pieces = FILE_AHEAD_FAR + 10;
    if (weft_rank(w) == 1) {
        OK(weft_file_open(w, 0, in_folder("big"), 0, &f, DEFAULT_TIME));
        OK(weft_file_read(f, some, PIECE, 0, &n, DEFAULT_TIME));
        CHECK(n == PIECE && right(some, 1, 0, n) && was_requested(&f->reads, 1) == far);
        for (uint64_t i = 1; i < pieces; i++)
            OK(weft_file_read(f, some, PIECE, i * PIECE, &n, DEFAULT_TIME));
        CHECK(n == PIECE && right(some, 1, (pieces - 1) * PIECE, n) && !was_requested(&f->reads, 1));
        OK(weft_file_read(f, some, PIECE, 0, &n, DEFAULT_TIME));
        CHECK(n == PIECE && right(some, 1, 0, n) && was_requested(&f->reads, 1) == far);
        OK(weft_file_read(f, some, PIECE, 1 * PIECE, &n, DEFAULT_TIME));
        CHECK(n == PIECE && right(some, 1, 1 * PIECE, n));
        OK(weft_file_close(f));
        OK(weft_file_open(w, 0, in_folder("big"), 0, &f, DEFAULT_TIME));
        OK(weft_file_read(f, some, 1, 5 * PIECE, &n, DEFAULT_TIME));
        OK(weft_file_read(f, some, PIECE, 0, &n, DEFAULT_TIME));
        CHECK(n == PIECE && right(some, 1, 0, n) && !was_requested(&f->reads, 1));
        OK(weft_file_map(f, 0, &v, DEFAULT_TIME));
        CHECK(right(v.at, 1, 0, PIECE) && was_requested(&f->maps_far, 1) == far);
        weft_file_unmap(f, &v);
        OK(weft_file_map(f, 5 * PIECE, &v, DEFAULT_TIME));
        weft_file_unmap(f, &v);
        OK(weft_file_map(f, 0, &v, DEFAULT_TIME));
        CHECK(right(v.at, 1, 0, PIECE) && !was_requested(&f->maps_far, 1));
        weft_file_unmap(f, &v);
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_read_begins(void **state)
{
    (void)state;
    write_file(in_folder("big"), 1, (FILE_AHEAD_FAR + 10) * PIECE, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, read_begins, NULL, USUAL), 0);
}

/* The lease of the piece that a thread is about to copy ends while it asks for the next pieces: its slot must not be taken for one of
 * them. */
static void slot_in_use(weft_node *w, void *arg)
{
    (void)arg;
    weft_file *f;
    struct file_slot *s;
    if (weft_rank(w) == 1) {
        OK(weft_file_open(w, 0, in_folder("big"), 0, &f, DEFAULT_TIME));
        OK(file_slot_get(f, &f->reads, 1, false, now_ns() + 30 * WEFT_SECOND, &s));
        uint64_t lease = s->lease;
        s->until = 0;
        file_slot_ahead(f, &f->reads, 1, true, false, f->info.bytes);
        CHECK(s->index == 1 && s->until == 0 && s->lease == lease && file_slot_state(s) == SLOT_READY);
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_slot_in_use(void **state)
{
    (void)state;
    write_file(in_folder("big"), 1, (FILE_AHEAD_FAR + 10) * PIECE, O_TRUNC);
    assert_int_equal(nodes_failed_with(2, slot_in_use, NULL, USUAL), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {TEST(test_mapped_ahead), TEST(test_read_ahead), TEST(test_read_begins), TEST(test_slot_in_use)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
