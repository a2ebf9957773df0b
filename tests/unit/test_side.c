/* SPDX-License-Identifier: MIT
 *
 * The side connection between two nodes of one host: descriptors and messages arrive in order and whole, wherever the reads cut the bytes.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fabric/fabric.h"

#define GIFTS 64u
#define GIFT  9u /* bytes of a message with a descriptor */

struct pair {
    struct weft_node w;
    struct fab_link link;
    int far; /* the peer's end */
    unsigned count, messages;
    uint64_t what[GIFTS];
    ino_t inode[GIFTS]; /* of the descriptors; 0: none */
};

static bool on_given(struct weft_node *w, uint32_t node, uint64_t what, int fd, void *arg)
{
    (void)w, (void)node;
    struct pair *p = arg;
    struct stat st = {.st_ino = 0};
    assert_true(p->count < GIFTS);
    if (fd >= 0)
        assert_int_equal(fstat(fd, &st), 0);
    p->what[p->count] = what;
    p->inode[p->count++] = st.st_ino;
    return false; /* the fabric closes the descriptor */
}

static void on_message(struct weft_node *w, struct fab_link *l, const void *bytes, size_t len)
{
    (void)l;
    struct pair *p = (struct pair *)(void *)w; /* its first member */
    assert_int_equal(len, 5);
    assert_memory_equal(bytes, "hello", 5);
    p->messages++;
}

static const char *on_broken(struct weft_node *w, struct fab_link *l)
{
    (void)w, (void)l;
    return NULL;
}

static struct pair *pair_open(void)
{
    static const struct fab_transport transport = {.name = "test", .broken = on_broken, .side = on_message};
    struct pair *p = calloc(1, sizeof *p);
    int fds[2];
    assert_non_null(p);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    p->link = (struct fab_link){.state = FAB_ALIVE, .transport = &transport, .pid_fd = -1, .side_fd = fds[0]};
    p->far = fds[1];
    p->w.size = p->w.founders = 1;
    p->w.links = &p->link;
    p->w.hooks[0] = (struct fab_hook){.given = on_given, .arg = p};
    p->w.hook_count = 1;
    return p;
}

static void pair_close(struct pair *p)
{
    fab_side_free(&p->link);
    close(p->link.side_fd);
    close(p->far);
    free(p);
}

static const char *pair_read(struct pair *p)
{
    bool died;
    return fab_side_read(&p->w, &p->link, 1000, &died);
}

static int descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* The peer sends a descriptor, cut in two after `first` bytes, or, if that is 0, byte by byte. Returns the descriptor's inode. */
static ino_t give(const struct pair *p, uint64_t what, size_t first)
{
    uint8_t bytes[GIFT] = {'d'};
    int fds[2];
    struct stat st;
    memcpy(bytes + 1, &what, sizeof what);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(fstat(fds[0], &st), 0);
    assert_int_equal(base_send_fds_nowait(p->far, bytes, first ? first : 1, fds, 1), 0);
    for (size_t at = first ? first : 1; at < GIFT; at += first ? GIFT : 1)
        assert_int_equal(write(p->far, bytes + at, first ? GIFT - at : 1), first ? (ssize_t)(GIFT - at) : 1);
    close(fds[0]);
    close(fds[1]);
    return st.st_ino;
}

static void expect_gifts(const struct pair *p, const ino_t *inode, unsigned count)
{
    assert_int_equal(p->count, count);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(p->what[i], 1000 + i);
        assert_true(p->inode[i] == inode[i]);
    }
}

static void test_cut(void **state)
{
    (void)state;
    int before = descriptors();
    for (size_t first = 0; first < GIFT; first++) {
        for (int at_once = 0; at_once < 2; at_once++) {
            struct pair *p = pair_open();
            ino_t inode[5];
            for (unsigned i = 0; i < 5; i++) {
                inode[i] = give(p, 1000 + i, first);
                if (i % 2)
                    assert_int_equal(write(p->far, "hwm\5\0hello", 10), 10);
                if (!at_once)
                    assert_null(pair_read(p));
            }
            assert_null(pair_read(p));
            expect_gifts(p, inode, 5);
            assert_int_equal(p->messages, 2);
            pair_close(p);
        }
    }
    assert_int_equal(descriptors(), before);
}

/* What the peer has sent in one go fills the reader's buffer so that it ends in the middle of a descriptor's message. */
static void test_full_buffer(void **state)
{
    (void)state;
    int before = descriptors();
    for (size_t filled = 1024 - GIFT - 1; filled <= 1024; filled++) {
        struct pair *p = pair_open();
        char wakes[1024];
        ino_t inode[3];
        memset(wakes, 'w', sizeof wakes);
        assert_int_equal(write(p->far, wakes, filled), (ssize_t)filled);
        for (unsigned i = 0; i < 3; i++)
            inode[i] = give(p, 1000 + i, GIFT);
        assert_null(pair_read(p));
        expect_gifts(p, inode, 3);
        pair_close(p);
    }
    assert_int_equal(descriptors(), before);
}

/* A 'd' without a descriptor gets none of a later message; a descriptor without a 'd' is invalid; one whose message never becomes whole is
 * closed with the link. */
static void test_wrong(void **state)
{
    (void)state;
    int before = descriptors();
    struct pair *p = pair_open();
    uint64_t what = 1000;
    ino_t inode[2] = {0, 0};
    assert_int_equal(write(p->far, "d", 1), 1);
    assert_null(pair_read(p));
    assert_int_equal(write(p->far, &what, sizeof what), (ssize_t)sizeof what);
    inode[1] = give(p, 1001, GIFT);
    assert_null(pair_read(p));
    expect_gifts(p, inode, 2);
    assert_int_equal(base_send_fds_nowait(p->far, "dabc", 4, &p->far, 1), 0);
    assert_null(pair_read(p));
    pair_close(p);
    p = pair_open();
    assert_int_equal(base_send_fds_nowait(p->far, "w", 1, &p->far, 1), 0);
    assert_non_null(strstr(pair_read(p), "invalid message"));
    pair_close(p);
    assert_int_equal(descriptors(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cut), cmocka_unit_test(test_full_buffer), cmocka_unit_test(test_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
