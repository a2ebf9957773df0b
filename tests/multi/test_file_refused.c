/* SPDX-License-Identifier: MIT
 *
 * The file service, where it refuses: names and requests that are wrong, files that the gateway's user may not read, and files outside the
 * root. Node 0 is the gateway, the others are the askers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "file_test.h"

static const char *const OPEN[] = {"WEFT_SERVE=file", "WEFT_POOL=64M", "WEFT_LOG=error", NULL};

static void errors(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    static char longest[WEFT_FILE_PATH_MAX + 2];
    weft_file *f;
    uint64_t next = 0;
    size_t n;
    weft_file_cached one;
    must_fail(w, in_folder("none"), 0, -ENOENT, "none at node 0: No such file");
    must_fail(w, folder, 0, -EISDIR, "this is a directory");
    must_fail(w, in_folder("fifo"), 0, -EINVAL, "not a regular file"); /* at once: nobody writes to it */
    must_fail(w, in_folder("fifo"), WEFT_FILE_WRITE, -EINVAL, "not a regular file");
    must_fail(w, in_folder("socket"), 0, -EINVAL, "not a regular file");
    must_fail(w, "/dev/zero", 0, -EINVAL, "not a regular file");
    if (access("/proc/version", R_OK) == 0)
        must_fail(w, "/proc/version", 0, -EINVAL, "does not tell its size"); /* and not an empty file */
    must_fail(w, in_folder("small/x"), 0, -ENOTDIR, "Not a directory");
    must_fail(w, "", 0, -EINVAL, "the path is empty");
    must_fail(w, "x", WEFT_FILE_CREATE, -EINVAL, "need WEFT_FILE_WRITE");
    must_fail(w, "x", 0x100, -EINVAL, "unknown");
    memset(longest, 'x', sizeof longest - 1);
    must_fail(w, longest, 0, -ENAMETOOLONG, "at most 3584");
    longest[WEFT_FILE_PATH_MAX] = '\0';
    must_fail(w, longest, 0, -ENAMETOOLONG, "too long");
    CHECK(weft_file_open(w, 7, "x", 0, &f, DEFAULT_TIME) == -EFAULT && !f);
    CHECK(weft_file_list(w, 0, &one, sizeof one, &next, DEFAULT_TIME) == -ENOENT && strstr(weft_error(), "has no file open or cached"));
    CHECK(weft_file_unpin(w, 0, "x", DEFAULT_TIME) == -ENOENT && strstr(weft_error(), "has not pinned x"));
    OK(weft_file_open(w, 0, in_folder("small"), 0, &f, DEFAULT_TIME));
    CHECK(weft_file_write(f, "x", 1, 0, &n, DEFAULT_TIME) == -EBADF && n == 0);
    CHECK(weft_file_sync(f, DEFAULT_TIME) == -EBADF);
    OK(weft_file_close(f));
    /* A record that names nothing. */
    weft_gaddr at;
    weft_op op;
    OK(weft_alloc(w, sizeof(weft_request), &at));
    *(weft_request *)weft_ptr(w, at, sizeof(weft_request)) =
        (weft_request){.version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_FILE, .kind = 1, .id = 1};
    OK(weft_request_start(w, at, &op));
    CHECK(weft_wait(w, &op, DEFAULT_TIME) == -EINVAL);
    OK(weft_free(w, at));
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_errors(void **state)
{
    (void)state;
    write_file(in_folder("small"), 1, 10, O_TRUNC);
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", in_folder("socket"));
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd);
    assert_int_equal(nodes_failed_with(2, errors, NULL, OPEN), 0);
}

/* The gateway's user may not read the file, though the asker's may. A gateway of root first becomes another user. */
static void other_user(weft_node *w, void *arg)
{
    (void)arg;
    const uid_t nobody = 65534;
    weft_file *f;
    char byte;
    size_t n;
    bool root = geteuid() == 0;
    if (weft_rank(w) == 0 && root)
        CHECK(setgroups(0, NULL) == 0 && setgid(nobody) == 0 && setuid(nobody) == 0);
    OK(weft_barrier(w, DEFAULT_TIME));
    if (weft_rank(w) == 1) {
        const char *const hidden[] = {in_folder("secret"), in_folder("closed/file")};
        for (unsigned i = 0; i < 2; i++) {
            must_fail(w, hidden[i], 0, -EACCES, "Permission denied");
            must_fail(w, hidden[i], WEFT_FILE_WRITE, -EACCES, "Permission denied");
        }
        must_fail(w, in_folder("public"), WEFT_FILE_WRITE, -EACCES, "Permission denied");
        OK(weft_file_open(w, 0, in_folder("public"), 0, &f, DEFAULT_TIME));
        OK(weft_file_read(f, &byte, 1, 0, &n, DEFAULT_TIME));
        CHECK(n == 1 && byte == (char)byte_of(1, 0));
        OK(weft_file_close(f));
    }
    OK(weft_barrier(w, DEFAULT_TIME));
}

/* In /tmp, because no other user may enter the runner's TMPDIR. */
static int public_folder_make(void **state)
{
    (void)state;
    return folder_make_in("/tmp");
}

static void test_other_user(void **state)
{
    (void)state;
    if (geteuid() == 0 && getenv("SOFTVERBS_FABRIC"))
        return; /* the emulated device moves bytes between processes of one user only; what is tested has nothing to do with it */
    write_file(in_folder("secret"), 1, 10, O_TRUNC);
    write_file(in_folder("public"), 1, 10, O_TRUNC);
    assert_int_equal(mkdir(in_folder("closed"), 0700), 0);
    write_file(in_folder("closed/file"), 1, 10, O_TRUNC);
    assert_int_equal(chmod(in_folder("secret"), 0), 0);
    assert_int_equal(chmod(in_folder("public"), 0444), 0);
    assert_int_equal(chmod(in_folder("closed"), 0), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(nodes_failed_with(2, other_user, NULL, OPEN), 0);
    assert_int_equal(chmod(in_folder("closed"), 0700), 0);
}

/* --- the root --- */

static void put_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

struct swapper {
    _Atomic bool over;
};

/* Changes root/turn from a folder to a symbolic link that leads out, and back, all the time. */
static void *swap(void *arg)
{
    struct swapper *s = arg;
    char turn[256], away[256], link[256];
    snprintf(turn, sizeof turn, "%s", in_folder("root/turn"));
    snprintf(away, sizeof away, "%s", in_folder("root/away"));
    snprintf(link, sizeof link, "%s", in_folder("root/link"));
    while (!atomic_load(&s->over)) {
        CHECK(rename(turn, away) == 0 && rename(link, turn) == 0);
        CHECK(rename(turn, link) == 0 && rename(away, turn) == 0);
    }
    return NULL;
}

static void rooted(weft_node *w, void *arg)
{
    (void)arg;
    if (weft_rank(w) == 0) {
        OK(weft_barrier(w, DEFAULT_TIME));
        return;
    }
    weft_file *f;
    char text[16];
    size_t n;
    const char *const inside[] = {
        "file", "./file", "folder/file", "folder/../file", in_folder("root/file"), in_folder("root//folder/file")};
    for (unsigned i = 0; i < sizeof inside / sizeof inside[0]; i++) {
        OK(weft_file_open(w, 0, inside[i], 0, &f, DEFAULT_TIME));
        OK(weft_file_read(f, text, sizeof text, 0, &n, DEFAULT_TIME));
        CHECK(n == 6 && memcmp(text, "inside", 6) == 0);
        OK(weft_file_close(f));
    }
    OK(weft_file_open(w, 0, "good-link", 0, &f, DEFAULT_TIME)); /* the link does not lead out of the root */
    OK(weft_file_close(f));
    const char *const outside[] = {"../secret",          "folder/../../secret", "bad-link",          "bad-folder/secret",
                                   "/etc/passwd",        "absolute-link",       in_folder("secret"), in_folder("root/../secret"),
                                   in_folder("rootless")};
    for (unsigned i = 0; i < sizeof outside / sizeof outside[0]; i++)
        must_fail(w, outside[i], 0, -EACCES, "only files below its WEFT_FILE_ROOT");
    must_fail(w, "../made", WEFT_FILE_WRITE | WEFT_FILE_CREATE, -EACCES, "only files below its WEFT_FILE_ROOT");
    must_fail(w, ".", 0, -EISDIR, "this is a directory");
    must_fail(w, in_folder("root"), 0, -EISDIR, "this is a directory");
    must_fail(w, "none", 0, -ENOENT, "No such file");
    CHECK(access(in_folder("made"), F_OK) != 0);
    /* Opens files while a folder is replaced by a link that leads out of the root, and back. */
    struct swapper s = {false};
    pthread_t thread;
    uint32_t opened = 0, refused = 0;
    CHECK(pthread_create(&thread, NULL, swap, &s) == 0);
    for (uint32_t i = 0; i < repeats(3000); i++) {
        int rc = weft_file_open(w, 0, "turn/secret", 0, &f, DEFAULT_TIME);
        CHECK(rc == 0 || rc == -EACCES || rc == -ENOENT || rc == -EAGAIN);
        if (rc) {
            refused++;
            continue;
        }
        opened++;
        rc = weft_file_read(f, text, sizeof text, 0, &n, DEFAULT_TIME);
        CHECK(rc == 0 && n == 6 && memcmp(text, "inside", 6) == 0);
        OK(weft_file_close(f));
    }
    atomic_store(&s.over, true);
    pthread_join(thread, NULL);
    CHECK(opened && refused);
    OK(weft_barrier(w, DEFAULT_TIME));
}

static void test_root(void **state)
{
    (void)state;
    char root[128];
    CHECK(mkdir(in_folder("root"), 0700) == 0 && mkdir(in_folder("root/folder"), 0700) == 0 && mkdir(in_folder("root/turn"), 0700) == 0);
    put_text(in_folder("root/file"), "inside");
    put_text(in_folder("root/folder/file"), "inside");
    put_text(in_folder("root/turn/secret"), "inside");
    put_text(in_folder("secret"), "secret");
    put_text(in_folder("rootless"), "secret");
    CHECK(symlink("folder/file", in_folder("root/good-link")) == 0 && symlink("../secret", in_folder("root/bad-link")) == 0);
    CHECK(symlink("..", in_folder("root/bad-folder")) == 0 && symlink("..", in_folder("root/link")) == 0);
    CHECK(symlink("/etc/passwd", in_folder("root/absolute-link")) == 0);
    snprintf(root, sizeof root, "WEFT_FILE_ROOT=%s", in_folder("root"));
    const char *const with_root[] = {"WEFT_SERVE=file", "WEFT_LOG=error", root, NULL};
    assert_int_equal(nodes_failed_with(2, rooted, NULL, with_root), 0);
}

static void wrong_settings(weft_node *w, void *arg)
{
    (void)w, (void)arg;
    weft_node *one;
    weft_config c = {.bytes = sizeof c, .size = 1, .pool_bytes = 16 << 20};
    static const char *const wrong[][2] = {{"WEFT_FILE_ROOT", "relative"},
                                           {"WEFT_FILE_ROOT", "/no/such/folder"},
                                           {"WEFT_FILE_ROOT", "/etc/passwd"},
                                           {"WEFT_FILE_CACHE", "1M"},
                                           {"WEFT_FILE_CACHE", "1G"}};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        setenv(wrong[i][0], wrong[i][1], 1);
        int rc = weft_open(&one, &c);
        CHECK(rc < 0 && strstr(weft_error(), wrong[i][0]));
        unsetenv(wrong[i][0]);
    }
}

static void test_settings(void **state)
{
    (void)state;
    assert_int_equal(nodes_failed_with(1, wrong_settings, NULL, OPEN), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {TEST(test_errors),
                                       cmocka_unit_test_setup_teardown(test_other_user, public_folder_make, folder_remove), TEST(test_root),
                                       TEST(test_settings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
