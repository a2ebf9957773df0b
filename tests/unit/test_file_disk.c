/* SPDX-License-Identifier: MIT
 *
 * Reading a piece of a file that changes during the read itself: pread() is replaced by one that changes the file when it has read some.
 * Syncing a file, by a replaced fsync(). And paths below a root, with openat2(2) and without.
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

/* --- syncing --- */

static int synced = -1, sync_error;

int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    synced = fd;
    errno = sync_error;
    return sync_error ? -1 : 0;
}

static void it_syncs(void **state)
{
    (void)state;
    static struct files none = {.root.fd = -1};
    struct file_job *job = file_job_new(&none, FILE_TASK_SYNC, NULL);
    assert_non_null(job);
    job->fd = 77;
    job->work.run(&job->work);
    assert_true(synced == 77 && job->result == 0);
    sync_error = EIO;
    job->work.run(&job->work);
    assert_int_equal(job->result, -EIO);
    file_job_free(job);
}

/* --- paths --- */

static bool without_openat2; /* as on systems that have none */

long __real_syscall(long number, long a, const char *b, void *c, size_t d);
long __wrap_syscall(long number, long a, const char *b, void *c, size_t d);

long __wrap_syscall(long number, long a, const char *b, void *c, size_t d)
{
    if (!without_openat2)
        return __real_syscall(number, a, b, c, d);
    errno = ENOSYS;
    return -1;
}

static void touch(const char *folder, const char *name)
{
    char to[256];
    snprintf(to, sizeof to, "%s/%s", folder, name);
    int fd = open(to, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static int try(const struct file_root *root, const char *name, int flags, bool *outside)
{
    int fd = file_path_open(root, name, flags, outside);
    if (fd >= 0)
        close(fd);
    return fd < 0 ? fd : 0;
}

static void paths(void **state)
{
    (void)state;
    char folder[] = "/tmp/weft-test-file-path-XXXXXX", root_path[256], whole[512], to[256];
    struct file_root root;
    bool outside;
    assert_non_null(mkdtemp(folder));
    snprintf(root_path, sizeof root_path, "%s/root", folder);
    snprintf(to, sizeof to, "%s/root/sub", folder);
    assert_true(mkdir(root_path, 0700) == 0 && mkdir(to, 0700) == 0);
    touch(folder, "secret");
    touch(folder, "root/file");
    touch(folder, "root/sub/file");
    snprintf(to, sizeof to, "%s/root/link", folder);
    assert_int_equal(symlink("../secret", to), 0);
    snprintf(to, sizeof to, "%s/root/up", folder);
    assert_int_equal(symlink("..", to), 0);
    snprintf(to, sizeof to, "%s/root/fifo", folder);
    assert_int_equal(mkfifo(to, 0600), 0);
    assert_int_equal(file_root_open(&root, root_path, NULL), 0);
    for (int i = 0; i < 2; i++) {
        without_openat2 = i;
        snprintf(whole, sizeof whole, "%s/sub//file", root_path);
        const char *const inside[] = {"file", "./sub/file", "sub//file", whole};
        for (unsigned k = 0; k < sizeof inside / sizeof inside[0]; k++)
            assert_int_equal(try(&root, inside[k], O_RDONLY, &outside), 0);
        assert_int_equal(try(&root, "new", O_RDWR | O_CREAT, &outside), 0);
        snprintf(whole, sizeof whole, "%s/secret", folder);
        const char *const refused[] = {"../secret", "sub/../../secret", "link", whole, "/etc/passwd"};
        for (unsigned k = 0; k < sizeof refused / sizeof refused[0]; k++)
            assert_true(try(&root, refused[k], O_RDONLY, &outside) == -EACCES && outside);
        assert_true(try(&root, "up/secret", O_RDONLY, &outside) < 0);
        assert_true(try(&root, "../made", O_RDWR | O_CREAT, &outside) == -EACCES && outside);
        assert_int_equal(try(&root, "fifo", O_RDONLY, &outside), -EINVAL);
        assert_int_equal(try(&root, "sub", O_RDONLY, &outside), -EISDIR);
        assert_int_equal(try(&root, root_path, O_RDONLY, &outside), -EISDIR);
        assert_int_equal(try(&root, "none", O_RDONLY, &outside), -ENOENT);
        assert_int_equal(try(&root, "file/x", O_RDONLY, &outside), -ENOTDIR);
        assert_false(outside);
    }
    file_root_close(&root);
    static const char *const made[] = {"root/new", "root/fifo", "root/up", "root/link", "root/sub/file",
                                       "root/sub", "root/file", "root",    "secret"};
    for (unsigned k = 0; k < sizeof made / sizeof made[0]; k++) {
        snprintf(to, sizeof to, "%s/%s", folder, made[k]);
        assert_int_equal(remove(to), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_is_seen), cmocka_unit_test(it_syncs), cmocka_unit_test(paths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
