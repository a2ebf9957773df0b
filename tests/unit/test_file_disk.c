/* SPDX-License-Identifier: MIT
 *
 * Reading a piece of a file that changes during the read itself: pread() is replaced by one that changes the file when it has read some.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gateway/file.h"

#define BYTES 65536

static char path[] = "/tmp/weft-test-file-disk-XXXXXX";
static void (*during)(int fd); /* called in the middle of the next read */

ssize_t __real_pread64(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread64(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);

ssize_t __wrap_pread64(int fd, void *to, size_t n, off_t at)
{
    void (*now)(int) = during;
    during = NULL;
    ssize_t got = __real_pread64(fd, to, now ? n / 2 : n, at);
    if (now) {
        int other = open(path, O_RDWR);
        now(other);
        close(other);
    }
    return got;
}

ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
    return __wrap_pread64(fd, to, n, at);
}

static void rewrite(int fd)
{
    uint8_t other[BYTES];
    memset(other, 'b', sizeof other);
    assert_int_equal(pwrite(fd, other, sizeof other, 0), BYTES);
}

static void cut(int fd)
{
    assert_int_equal(ftruncate(fd, 100), 0);
}

static void grow(int fd)
{
    assert_int_equal(ftruncate(fd, 2 * BYTES), 0);
}

static void nothing(int fd)
{
    (void)fd;
}

/* Opens the file, then reads it. */
static int read_while(void (*change)(int fd), uint8_t got[BYTES])
{
    static struct files none = {.root.fd = -1};
    struct file_job *opened = file_job_new(&none, FILE_TASK_OPEN, NULL), *job = file_job_new(&none, FILE_TASK_READ, NULL);
    int fd = open(path, O_WRONLY | O_TRUNC);
    uint8_t bytes[BYTES];
    memset(bytes, 'a', sizeof bytes);
    assert_true(opened && job && fd >= 0);
    assert_int_equal(write(fd, bytes, sizeof bytes), BYTES);
    close(fd);
    snprintf(opened->path, sizeof opened->path, "%s", path);
    opened->work.run(&opened->work);
    assert_int_equal(opened->result, 0);
    assert_int_equal(opened->is.bytes, BYTES);
    job->fd = opened->fd;
    job->is = opened->is;
    job->memory = got;
    job->bytes = BYTES;
    during = change;
    job->work.run(&job->work);
    assert_null(during);
    int rc = job->result;
    file_job_free(job);
    file_job_free(opened);
    return rc;
}

static void it_is_seen(void **state)
{
    (void)state;
    uint8_t got[BYTES];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(read_while(nothing, got), 0);
    assert_true(got[0] == 'a' && got[BYTES - 1] == 'a');
    assert_int_equal(read_while(rewrite, got), -ESTALE);
    assert_true(got[0] == 'a' && got[BYTES - 1] == 'b'); /* a mixture, which nobody gets */
    assert_int_equal(read_while(cut, got), -ESTALE);
    assert_int_equal(read_while(grow, got), -ESTALE);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
