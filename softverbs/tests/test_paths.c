/* SPDX-License-Identifier: MIT
 *
 * Files that programs look for beside libibverbs (lib/paths.c), by each of libc's calls for that. Run by `softverbs run` on a host of the
 * built-in switch, whose only device is sv0.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* A sanitizer reads the path itself before the call, so it would end the test at an invalid address. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

/* Declared by the linker's names, because headers may replace one by the other. */
int plain_stat(const char *, struct stat *) __asm__("stat");
int large_stat(const char *, struct stat *) __asm__("stat64");
int plain_lstat(const char *, struct stat *) __asm__("lstat");
int large_lstat(const char *, struct stat *) __asm__("lstat64");
int plain_fstatat(int, const char *, struct stat *, int) __asm__("fstatat");
int large_fstatat(int, const char *, struct stat *, int) __asm__("fstatat64");
int plain_open(const char *, int, ...) __asm__("open");
int large_open(const char *, int, ...) __asm__("open64");
int plain_openat(int, const char *, int, ...) __asm__("openat");
int large_openat(int, const char *, int, ...) __asm__("openat64");
FILE *plain_fopen(const char *, const char *) __asm__("fopen");
FILE *large_fopen(const char *, const char *) __asm__("fopen64");

static const char node[] = "/dev/infiniband/uverbs0", type[] = "/sys/class/infiniband/sv0/ports/1/gid_attrs/types/1";
static const char guid[] = "/sys/class/infiniband/sv0/node_guid";

/* With this machine's own libibverbs there is nothing to test. */
static int is_ours(void **state)
{
    (void)state;
    if (getenv("SOFTVERBS_FABRIC"))
        return 0;
    print_error("run it by `softverbs run`\n");
    return -1;
}

typedef int stat_call(const char *, struct stat *);

static int stat_by_fstatat(const char *path, struct stat *s)
{
    return plain_fstatat(AT_FDCWD, path, s, 0);
}

static int stat_by_fstatat64(const char *path, struct stat *s)
{
    return large_fstatat(-1, path, s, 0); /* an absolute path: the directory does not matter */
}

static int stat_by_version(const char *path, struct stat *s)
{
    int (*call)(int, const char *, struct stat *) = (int (*)(int, const char *, struct stat *))dlsym(RTLD_DEFAULT, "__xstat");

    assert_non_null(call);
    return call(1, path, s);
}

static int stat_by_version64(const char *path, struct stat *s)
{
    int (*call)(int, const char *, struct stat *) = (int (*)(int, const char *, struct stat *))dlsym(RTLD_DEFAULT, "__xstat64");

    assert_non_null(call);
    assert_int_equal(call(7, path, s), -1);
    assert_int_equal(errno, EINVAL);
    return call(1, path, s);
}

static int lstat_by_version64(const char *path, struct stat *s)
{
    int (*call)(int, const char *, struct stat *) = (int (*)(int, const char *, struct stat *))dlsym(RTLD_DEFAULT, "__lxstat64");

    assert_non_null(call);
    return call(1, path, s);
}

static int stat_by_statx(const char *path, struct stat *s)
{
    struct statx x;
    int result = statx(AT_FDCWD, path, AT_STATX_SYNC_AS_STAT, STATX_BASIC_STATS, &x);

    if (!result)
        *s = (struct stat){.st_mode = x.stx_mode,
                           .st_size = (off_t)x.stx_size,
                           .st_rdev = makedev(x.stx_rdev_major, x.stx_rdev_minor),
                           .st_ino = x.stx_ino};
    return result;
}

static stat_call *const stats[] = {plain_stat, large_stat, stat_by_fstatat, stat_by_fstatat64, stat_by_version, stat_by_version64,
                                   /* the last three do not follow links */
                                   stat_by_statx, plain_lstat, large_lstat, lstat_by_version64};
enum { FOLLOWING = 7 };

static void what_stat_says(void **state)
{
    static const char *const nothing[] = {"/dev/infiniband/uverbs1",
                                          "/dev/infiniband/uverbs00",
                                          "/dev/infiniband/uverbs",
                                          "/dev/infiniband/uverbs0x",
                                          "/sys/class/infiniband/sv0/none",
                                          "/sys/class/infiniband/sv1/node_guid",
                                          "/sys/class/infiniband/sv00/node_guid"};
    struct stat s, t;

    (void)state;
    for (size_t i = 0; i < sizeof stats / sizeof *stats; i++) {
        memset(&s, 0xff, sizeof s);
        assert_int_equal(stats[i](node, &s), 0);
        assert_true(S_ISCHR(s.st_mode));
        assert_int_equal(major(s.st_rdev), 231);
        assert_int_equal(minor(s.st_rdev), 192);
        assert_int_equal(stats[i](type, &s), 0);
        assert_true(S_ISREG(s.st_mode));
        for (size_t k = 0; k < sizeof nothing / sizeof *nothing; k++) {
            errno = 0;
            assert_int_equal(stats[i](nothing[k], &s), -1);
            assert_int_equal(errno, ENOENT);
        }
        assert_int_equal(stats[i]("/proc/self/exe", &s), 0); /* for other files, the same as libc's result */
        assert_int_equal(fstat(STDERR_FILENO, &t), 0);
        assert_int_equal(stats[i]("/proc/self/fd/2", &s), 0);
        if (i < FOLLOWING)
            assert_memory_equal(&s.st_ino, &t.st_ino, sizeof s.st_ino);
        else
            assert_true(S_ISLNK(s.st_mode));
#if !SANITIZED
        assert_int_equal(stats[i]((const char *)(uintptr_t)16, &s), -1);
        assert_int_equal(errno, EFAULT);
#endif
    }
}

static void what_access_says(void **state)
{
    (void)state;
    assert_int_equal(access(node, F_OK), 0);
    assert_int_equal(access(node, R_OK | W_OK), 0);
    assert_int_equal(faccessat(AT_FDCWD, node, R_OK | W_OK, 0), 0);
    assert_int_equal(access(type, R_OK), 0);
    assert_int_equal(access(node, X_OK), -1);
    assert_int_equal(errno, EACCES);
    assert_int_equal(access(type, W_OK), -1);
    assert_int_equal(errno, EACCES);
    assert_int_equal(access("/dev/infiniband/uverbs1", F_OK), -1);
    assert_int_equal(errno, ENOENT);
#if !SANITIZED
    assert_int_equal(access((const char *)(uintptr_t)16, F_OK), -1);
    assert_int_equal(errno, EFAULT);
#endif
}

static void reads(int fd, const char *expected)
{
    char text[64] = "";

    assert_true(fd >= 0);
    assert_int_equal(read(fd, text, sizeof text - 1), strlen(expected));
    assert_string_equal(text, expected);
    assert_int_equal(read(fd, text, sizeof text), 0);
    assert_int_equal(close(fd), 0);
}

static void what_open_gives(void **state)
{
    char path[] = "/tmp/softverbs-paths-XXXXXX", line[64];
    FILE *(*const fopens[])(const char *, const char *) = {plain_fopen, large_fopen};
    struct stat s;
    FILE *stream;
    int fd;

    (void)state;
    reads(plain_open(type, O_RDONLY), "RoCE v2\n");
    reads(large_open(type, O_RDONLY | O_CLOEXEC), "RoCE v2\n");
    reads(plain_openat(AT_FDCWD, type, O_RDONLY), "RoCE v2\n");
    reads(large_openat(-1, type, O_RDONLY), "RoCE v2\n");
    fd = plain_open(type, O_RDONLY | O_CLOEXEC);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
    fd = plain_open(type, O_RDONLY);
    assert_int_equal(fcntl(fd, F_GETFD), 0);
    close(fd);
    assert_int_equal(plain_open(type, O_RDWR), -1);
    assert_int_equal(errno, EACCES);
    assert_int_equal(plain_open(node, O_RDWR), -1);
    assert_int_equal(errno, ENXIO);
    assert_int_equal(plain_open("/sys/class/infiniband/sv0/none", O_RDONLY), -1);
    assert_int_equal(errno, ENOENT);

    for (size_t i = 0; i < 2; i++) {
        stream = fopens[i](guid, "re");
        assert_non_null(stream);
        assert_non_null(fgets(line, sizeof line, stream));
        assert_int_equal(strlen(line), 20); /* xxxx:xxxx:xxxx:xxxx and a newline */
        assert_int_equal(fclose(stream), 0);
        assert_null(fopens[i](guid, "w"));
        assert_null(fopens[i](guid, "r+"));
    }

    /* For other files, the same as libc's result, with the mode that was asked for. */
    fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    unlink(path);
    umask(0);
    fd = large_open(path, O_CREAT | O_EXCL | O_WRONLY, 0640);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0640);
    close(fd);
    unlink(path);
}

static const char *const directories[] = {
    "/sys/class/infiniband",
    "/sys/class/infiniband/",
    "/sys/class/infiniband/sv0",
    "/sys/class/infiniband/sv0/ports/1/",
    "/sys/class/infiniband/sv0/ports/1/gid_attrs/types",
};

static void what_directories_say(void **state)
{
    static const char *const nothing[] = {"/sys/class/infiniband0", "/sys/class/infiniband/sv1", "/sys/class/infiniband/sv0/ports/2"};
    struct stat s;

    (void)state;
    for (size_t i = 0; i < sizeof stats / sizeof *stats; i++) {
        for (size_t k = 0; k < sizeof directories / sizeof *directories; k++) {
            memset(&s, 0xff, sizeof s);
            assert_int_equal(stats[i](directories[k], &s), 0);
            assert_true(S_ISDIR(s.st_mode));
        }
        for (size_t k = 0; k < sizeof nothing / sizeof *nothing; k++) {
            errno = 0;
            assert_int_equal(stats[i](nothing[k], &s), -1);
            assert_int_equal(errno, ENOENT);
        }
    }
    assert_int_equal(access(directories[0], R_OK | X_OK), 0);
    assert_int_equal(access(directories[0], W_OK), -1);
    assert_int_equal(errno, EACCES);
}

/* Collects the names, each followed by a blank. */
static void names_of(DIR *stream, char *text, size_t bytes)
{
    struct dirent *e;

    *text = '\0';
    for (errno = 0; (e = readdir(stream)) != NULL;)
        snprintf(text + strlen(text), bytes - strlen(text), "%s ", e->d_name);
    assert_int_equal(errno, 0);
}

static int not_dot(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Walks a directory tree, and checks that each entry is of the kind that it claims to be. Returns the number of files. */
static unsigned walk(const char *path)
{
    struct dirent **list = NULL;
    char below[600];
    struct stat s;
    unsigned files = 0;
    int count = scandir(path, &list, not_dot, alphasort);

    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        snprintf(below, sizeof below, "%s/%s", path, list[i]->d_name);
        assert_int_equal(stat(below, &s), 0);
        assert_int_equal(s.st_mode & S_IFMT, list[i]->d_type == DT_DIR ? S_IFDIR : S_IFREG);
        files += list[i]->d_type == DT_DIR ? walk(below) : 1;
        assert_true(i == 0 || strcmp(list[i - 1]->d_name, list[i]->d_name) < 0);
    }
    while (count > 0)
        free(list[--count]);
    free(list);
    return files;
}

static void what_is_listed(void **state)
{
    char text[256];
    struct dirent **list = NULL;
    DIR *stream, *other;

    (void)state;
    for (int i = 0; i < 100; i++) { /* more than may be open at the same time */
        stream = opendir("/sys/class/infiniband");
        assert_non_null(stream);
        other = opendir("/sys/class/infiniband/sv0/ports/");
        assert_non_null(other);
        names_of(stream, text, sizeof text);
        assert_string_equal(text, ". .. sv0 ");
        names_of(other, text, sizeof text);
        assert_string_equal(text, ". .. 1 ");
        names_of(stream, text, sizeof text);
        assert_string_equal(text, "");
        rewinddir(stream);
        names_of(stream, text, sizeof text);
        assert_string_equal(text, ". .. sv0 ");
        assert_int_equal(closedir(stream), 0);
        assert_int_equal(closedir(other), 0);
    }
    assert_true(walk("/sys/class/infiniband") > 10);
    errno = 0;
    assert_null(opendir("/sys/class/infiniband/sv1"));
    assert_int_equal(errno, ENOENT);
    errno = 0;
    assert_int_equal(scandir("/sys/class/infiniband/sv0/none", &list, NULL, NULL), -1);
    assert_int_equal(errno, ENOENT);

    /* For other directories, the same as libc's result. */
    stream = opendir("/proc/self");
    assert_non_null(stream);
    for (struct dirent *e = NULL; (e = readdir(stream)) == NULL || strcmp(e->d_name, "exe");)
        assert_non_null(e);
    assert_int_equal(closedir(stream), 0);
    int count = scandir("/proc/self", &list, not_dot, NULL);
    assert_true(count > 5);
    while (count > 0)
        free(list[--count]);
    free(list);
}

/* Runs a program that is not part of this project, and compares its output. */
static void says(const char *command, const char *expected)
{
    char text[256] = "";
    FILE *stream = popen(command, "re");

    assert_non_null(stream);
    fread(text, 1, sizeof text - 1, stream);
    assert_int_equal(pclose(stream), 0);
    assert_string_equal(text, expected);
}

static void what_ls_says(void **state)
{
    (void)state;
    says("ls /sys/class/infiniband", "sv0\n");
    says("ls /sys/class/infiniband/sv0/ports", "1\n");
    says("ls -d /sys/class/infiniband/sv0/node_guid", "/sys/class/infiniband/sv0/node_guid\n");
    says("ls -l /sys/class/infiniband/sv0/ports/ | sed 1d | cut -c 1-10", "dr-xr-xr-x\n");
}

/* Programs compare what they find in these files with the answers of libibverbs. */
static void the_same_as_libibverbs(void **state)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    char path[600], read_there[8] = "";
    struct stat s;

    (void)state;
    assert_non_null(list);
    assert_non_null(list[0]);
    snprintf(path, sizeof path, "/dev/infiniband/%s", list[0]->dev_name);
    assert_int_equal(stat(path, &s), 0);
    snprintf(path, sizeof path, "%s/ports/1/gid_attrs/types/1", list[0]->ibdev_path);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, read_there, 7), 7);
    assert_string_equal(read_there, "RoCE v2");
    close(fd);
    ibv_free_device_list(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_stat_says),         cmocka_unit_test(what_access_says), cmocka_unit_test(what_open_gives),
        cmocka_unit_test(what_directories_say),   cmocka_unit_test(what_is_listed),   cmocka_unit_test(what_ls_says),
        cmocka_unit_test(the_same_as_libibverbs),
    };

    return cmocka_run_group_tests(tests, is_ours, NULL);
}
