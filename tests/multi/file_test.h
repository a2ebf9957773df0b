/* SPDX-License-Identifier: MIT
 *
 * For tests of the file service: a folder of the test's own, files whose bytes tell their version and place, and what was read from the
 * disk.
 */
#ifndef WEFT_FILE_TEST_H
#define WEFT_FILE_TEST_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster_test.h"
#include "pattern.h"

#define DEFAULT_TIME WEFT_TIMEOUT_DEFAULT
#define PIECE        ((uint64_t)WEFT_FILE_PIECE)

static char folder[200]; /* of the test that runs */

static inline char *in_folder(const char *name)
{
    static _Thread_local char path[4][256];
    static _Thread_local unsigned next;
    char *to = path[next++ % 4];
    snprintf(to, sizeof path[0], "%s/%s", folder, name);
    return to;
}

static inline int folder_make_in(const char *place)
{
    snprintf(folder, sizeof folder, "%s/weft-test-file-XXXXXX", place);
    return mkdtemp(folder) ? 0 : -1;
}

static inline int folder_make(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR"); /* the runner's, which removes it if this test is killed */
    return folder_make_in(tmp ? tmp : "/tmp");
}

static inline int folder_remove(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        execlp("rm", "rm", "-rf", "--", folder, (char *)NULL);
        _exit(1);
    }
    int status;
    return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

static inline void write_file(const char *path, uint64_t seed, uint64_t bytes, int flags)
{
    static uint8_t some[1 << 20];
    int fd = open(path, O_WRONLY | O_CREAT | flags, 0600);
    CHECK(fd >= 0);
    for (uint64_t at = 0; at < bytes; at += sizeof some) {
        size_t n = bytes - at < sizeof some ? (size_t)(bytes - at) : sizeof some;
        fill(some, seed, at, n);
        CHECK(write(fd, some, n) == (ssize_t)n);
    }
    close(fd);
}

/* Bytes that this process has read by read(2) and its like, from wherever. */
static inline uint64_t read_so_far(pid_t pid)
{
#if defined(__linux__)
    char path[64];
    unsigned long long n = 0;
    snprintf(path, sizeof path, "/proc/%d/io", (int)pid);
    FILE *f = fopen(path, "r");
    CHECK(f && fscanf(f, "rchar: %llu", &n) == 1);
    fclose(f);
    return n;
#else
    (void)pid;
    return 0;
#endif
}

static inline weft_file_cache cache_of(weft_node *w)
{
    weft_file_cache c;
    OK(weft_file_cache_stat(w, 0, &c, sizeof c, DEFAULT_TIME));
    return c;
}

static inline void must_fail(weft_node *w, const char *path, uint32_t flags, int code, const char *says)
{
    weft_file *f = (weft_file *)1;
    int rc = weft_file_open(w, 0, path, flags, &f, DEFAULT_TIME);
    if (rc != code || !strstr(weft_error(), says))
        fprintf(stderr, "opening %s: %d, not %d: %s\n", path, rc, code, weft_error());
    CHECK(rc == code && !f && strstr(weft_error(), says));
}

#endif
