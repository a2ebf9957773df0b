/* SPDX-License-Identifier: MIT
 *
 * A target of weft cast gets wrong records. A file gets its name only when all its bytes have arrived with their checksums, in any number
 * of rounds. Records that are damaged, out of order, or about no file of the list change nothing.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cast/cast.h"

static unsigned said;
static char last[1024];

/* Replacements for the functions that send messages to other nodes. */
void cast_say(struct cast *c, bool failure, const char *format, ...)
{
    va_list args;
    (void)c, (void)failure;
    va_start(args, format);
    vsnprintf(last, sizeof last, format, args);
    va_end(args);
    said++;
}

void cast_tell_state(struct cast *c, enum cast_doing doing, bool now)
{
    (void)c, (void)doing, (void)now;
}

#define PIECE 1000u
#define SIZE  (3 * PIECE)
static uint8_t content[SIZE];
static struct cast cast;
static struct cast_disk disk;
static char dest[64];
static const char *numbers[] = {"0"};

static void add(uint32_t type, uint32_t parent, uint64_t size, const char *name)
{
    struct cast_line n = {.type = type, .parent = parent, .mode = type == CAST_FOLDER ? 0755 : 0640, .size = size, .seconds = 1000000000};
    n.name_bytes = (uint32_t)strlen(name);
    assert_int_equal(cast_list_add(&cast.list, &n, name, ""), 0);
}

static void open_again(void)
{
    memset(&cast.state, 0, sizeof cast.state);
    assert_int_equal(cast_disk_open(&disk, &cast), 0);
    assert_int_equal(cast_disk_compare(&disk), 0);
    said = 0;
}

static int begin(void **state)
{
    (void)state;
    strcpy(dest, "/tmp/weft-cast-disk-XXXXXX");
    for (size_t i = 0; i < SIZE; i++)
        content[i] = (uint8_t)(i * 7 + i / 256);
    if (!mkdtemp(dest))
        return -1;
    cast = (struct cast){.config = {.dest = dest, .numbers = numbers}};
    add(CAST_FOLDER, CAST_ROOT, 0, "folder");
    add(CAST_FILE, 0, SIZE, "file");
    open_again();
    return 0;
}

static int finish(void **state)
{
    (void)state;
    char *argv[] = {(char *)(uintptr_t) "rm", (char *)(uintptr_t) "-rf", dest, NULL};
    cast_disk_close(&disk);
    cast_list_free(&cast.list);
    pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[0], argv);
        _exit(127);
    }
    return waitpid(pid, NULL, 0) == pid ? 0 : -1;
}

static struct cast_record record(enum cast_type type, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct cast_record r = {.type = (uint32_t)type, .file = file, .offset = offset, .bytes = bytes};
    if (type == CAST_DATA || type == CAST_CHECK)
        cast_hash(r.hash, CAST_DATA, file, offset, content + offset % SIZE, bytes);
    return r;
}

static void give(enum cast_type type, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct cast_record r = record(type, file, offset, bytes);
    cast_disk_record(&disk, &r, content + offset % SIZE);
}

static bool is_there(const char *name, uint64_t size)
{
    char path[256];
    struct stat st;
    snprintf(path, sizeof path, "%s/folder/%s", dest, name);
    return stat(path, &st) == 0 && (uint64_t)st.st_size == size;
}

static void check_content(void)
{
    char path[256];
    uint8_t got[SIZE + 1];
    struct stat st;
    snprintf(path, sizeof path, "%s/folder/file", dest);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, got, sizeof got), SIZE);
    assert_memory_equal(got, content, SIZE);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(st.st_mtime, 1000000000);
    close(fd);
}

static void test_right(void **state)
{
    (void)state;
    for (uint64_t at = 0; at < SIZE; at += PIECE)
        give(CAST_DATA, 1, at, PIECE);
    assert_false(is_there("file", SIZE));
    give(CAST_FILE_END, 1, 0, 0);
    cast_disk_settle(&disk);
    check_content();
    assert_int_equal(disk.wanted, 0);
    assert_int_equal(cast.state.files, 1);
}

static void test_damaged(void **state)
{
    (void)state;
    struct cast_record r = record(CAST_DATA, 1, PIECE, PIECE);
    give(CAST_DATA, 1, 0, PIECE);
    r.hash[0] ^= 1;
    cast_disk_record(&disk, &r, content + PIECE);
    give(CAST_DATA, 1, 2 * PIECE, PIECE); /* a piece after a gap */
    give(CAST_FILE_END, 1, 0, 0);
    cast_disk_settle(&disk);
    assert_false(is_there("file", SIZE));
    assert_int_equal(disk.wanted, 1);
    assert_int_equal(disk.file[1].have, PIECE);
    assert_int_equal(cast.state.discarded, 2 * PIECE);
    /* The next round compares the bytes again, because the file was closed meanwhile. */
    assert_int_equal(disk.file[1].verified, 0);
    give(CAST_CHECK, 1, 0, PIECE);
    give(CAST_DATA, 1, PIECE, PIECE);
    give(CAST_DATA, 1, 2 * PIECE, PIECE);
    give(CAST_FILE_END, 1, 0, 0);
    cast_disk_settle(&disk);
    check_content();
}

static void test_out_of_place(void **state)
{
    (void)state;
    give(CAST_DATA, 0, 0, PIECE);          /* a folder */
    give(CAST_DATA, 2, 0, PIECE);          /* no entry of the list */
    give(CAST_DATA, UINT32_MAX, 0, PIECE); /* no entry of the list, either */
    give(CAST_DATA, 1, PIECE, PIECE);      /* a piece that does not start where a piece starts */
    give(CAST_FILE_END, 1, 0, 0);
    give(CAST_HOLE, 1, 0, SIZE + 1); /* larger than the file */
    give(CAST_FILE_END, 1, 0, 0);
    cast_disk_settle(&disk);
    assert_int_equal(disk.wanted, 1);
    assert_int_equal(disk.file[1].have, 0);
    give(CAST_DATA, 1, 0, PIECE);
    give(CAST_DATA, 1, 0, PIECE); /* twice */
    give(CAST_DATA, 1, PIECE, PIECE);
    give(CAST_DATA, 1, 2 * PIECE, PIECE);
    give(CAST_DATA, 1, SIZE, PIECE); /* a piece after the end of the file */
    give(CAST_FILE_END, 1, 0, 0);
    cast_disk_settle(&disk);
    check_content();
    assert_int_equal(said, 0);
}

static void test_continued(void **state)
{
    (void)state;
    char path[256], part[CAST_PART_NAME];
    give(CAST_DATA, 1, 0, PIECE);
    give(CAST_DATA, 1, PIECE, PIECE);
    cast_disk_close(&disk); /* the target ends, as if it were killed */
    cast_disk_part("file", part);
    assert_true(is_there(part, 2 * PIECE));
    /* Another program changes the bytes in the temporary file: the checksum shows it. */
    snprintf(path, sizeof path, "%s/folder/%s", dest, part);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "wrong", 5, PIECE + 10), 5);
    close(fd);
    open_again();
    assert_int_equal(disk.file[1].have, 2 * PIECE);
    assert_int_equal(disk.file[1].verified, 0);
    give(CAST_CHECK, 1, 0, PIECE);
    give(CAST_CHECK, 1, PIECE, PIECE);
    give(CAST_DATA, 1, 2 * PIECE, PIECE);
    give(CAST_FILE_END, 1, 0, 0);
    cast_disk_settle(&disk);
    assert_false(is_there("file", SIZE));
    assert_int_equal(disk.file[1].have, PIECE);
    give(CAST_CHECK, 1, 0, PIECE);
    give(CAST_DATA, 1, PIECE, PIECE);
    give(CAST_DATA, 1, 2 * PIECE, PIECE);
    give(CAST_FILE_END, 1, 0, 0);
    cast_disk_settle(&disk);
    check_content();
}

static void path_in_folder(char path[256], const char *name)
{
    snprintf(path, 256, "%s/folder/%s", dest, name);
}

static void write_all(const char *name, const void *data, size_t bytes, mode_t mode)
{
    char path[256];
    path_in_folder(path, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void give_all(void)
{
    for (uint64_t at = 0; at < SIZE; at += PIECE)
        give(CAST_DATA, 1, at, PIECE);
    give(CAST_FILE_END, 1, 0, 0);
    cast_disk_settle(&disk);
}

/* Between two rounds another program changes bytes that were already verified. */
static void test_changed_between_rounds(void **state)
{
    (void)state;
    char path[256], part[CAST_PART_NAME];
    give(CAST_DATA, 1, 0, PIECE);
    give(CAST_DATA, 1, PIECE, PIECE);
    cast_disk_settle(&disk);
    cast_disk_part("file", part);
    path_in_folder(path, part);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "wrong", 5, 10), 5);
    close(fd);
    give(CAST_CHECK, 1, 0, PIECE);
    give(CAST_CHECK, 1, PIECE, PIECE);
    give(CAST_DATA, 1, 2 * PIECE, PIECE);
    give(CAST_FILE_END, 1, 0, 0);
    cast_disk_settle(&disk);
    assert_false(is_there("file", SIZE));
    assert_int_equal(disk.file[1].have, 0);
    give_all();
    check_content();
}

/* With --checksum, this target receives the file's data whenever another target lacks the file; it compares the data with its own file. */
static void test_data_compared(void **state)
{
    (void)state;
    cast.config.head.flags = CAST_CHECKSUM;
    memset(content + PIECE, 0, PIECE); /* which is sent as a hole */
    write_all("file", content, SIZE, 0600);
    for (int wrong = 0; wrong < 3; wrong++) {
        uint8_t other[SIZE];
        memcpy(other, content, SIZE);
        if (wrong)
            other[wrong == 1 ? 5 : PIECE + 5] = 'x';
        write_all("file", other, SIZE, 0600);
        cast_disk_close(&disk);
        open_again();
        assert_int_equal(disk.file[1].state, CAST_COMPARE);
        give(CAST_DATA, 1, 0, PIECE);
        give(CAST_HOLE, 1, PIECE, PIECE);
        give(CAST_DATA, 1, 2 * PIECE, PIECE);
        give(CAST_FILE_END, 1, 0, 0);
        cast_disk_settle(&disk);
        assert_int_equal(said, 0);
        assert_int_equal(disk.wanted, wrong ? 1 : 0);
        if (wrong)
            give_all();
        check_content();
    }
}

/* A file with the name of the temporary file exists already. The target does not use it if other users can write to it, or if it is a link.
 */
static void test_part_of_others(void **state)
{
    (void)state;
    char path[256], part[CAST_PART_NAME], victim[256];
    struct stat st;
    cast_disk_part("file", part);
    path_in_folder(path, part);
    path_in_folder(victim, "victim");
    for (int kind = 0; kind < 5; kind++) {
        write_all("victim", "mine", 4, 0600);
        if (kind == 0)
            write_all(part, "", 0, 0666);
        else if (kind == 1)
            write_all(part, "", 0, 0444);
        else if (kind == 2)
            assert_int_equal(symlink(victim, path), 0);
        else if (kind == 3)
            assert_int_equal(link(victim, path), 0);
        else
            assert_int_equal(mkfifo(path, 0666), 0);
        give(CAST_DATA, 1, 0, PIECE);
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISREG(st.st_mode) && (st.st_mode & 07777) == 0600 && st.st_nlink == 1 && st.st_size == PIECE);
        assert_true(is_there("victim", 4));
        cast_disk_close(&disk);
        assert_int_equal(unlink(path), 0);
        open_again();
    }
    if (geteuid() == 0) {
        write_all(part, "", 0, 0666);
        assert_int_equal(chown(path, 65534, 65534), 0);
        give(CAST_DATA, 1, 0, PIECE);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_uid, 0);
        cast_disk_settle(&disk);
    }
    cast_disk_close(&disk);
    open_again();
    give_all();
    check_content();
}

/* The set-user-ID bit is not copied, because owners are not copied. */
static void test_mode(void **state)
{
    (void)state;
    struct cast_line n = {.type = CAST_FILE, .parent = CAST_ROOT, .mode = 06755, .name_bytes = 1};
    assert_int_equal(cast_list_add(&cast.list, &n, "a", ""), 0);
    assert_int_equal(cast.list.entry[2].mode, 0755);
    n = (struct cast_line){.type = CAST_FOLDER, .parent = CAST_ROOT, .mode = 07777, .name_bytes = 1};
    assert_int_equal(cast_list_add(&cast.list, &n, "b", ""), 0);
    assert_int_equal(cast.list.entry[3].mode, 01777);
    assert_int_equal(cast_list_add(&cast.list, &(struct cast_line){.type = CAST_FILE, .parent = CAST_ROOT, .name_bytes = 32},
                                   ".weft-cast-0123456789abcdef.part", ""),
                     -EPROTO);
}

/* A relative DEST begins in the home folder; it is refused if there is none. */
static void test_relative_dest(void **state)
{
    (void)state;
    char *home = getenv("HOME");
    home = home ? strdup(home) : NULL;
    cast.config.dest = "weft-cast-disk-relative";
    unsetenv("HOME");
    cast_disk_close(&disk);
    assert_int_equal(cast_disk_open(&disk, &cast), 0);
    assert_int_not_equal(cast_disk_compare(&disk), 0);
    assert_non_null(strstr(last, "HOME"));
    assert_int_not_equal(access("/weft-cast-disk-relative", F_OK), 0);
    if (home)
        setenv("HOME", home, 1);
    free(home);
}

static void test_source_failed(void **state)
{
    (void)state;
    give(CAST_DATA, 1, 0, PIECE);
    give(CAST_FILE_END, 1, EIO, 0);
    cast_disk_settle(&disk);
    assert_int_equal(disk.wanted, 0);
    assert_int_equal(cast.state.failed, 1);
    assert_false(is_there("file", SIZE));
}

static void test_another_writes(void **state)
{
    (void)state;
    struct cast_disk first = disk;
    give(CAST_DATA, 1, 0, PIECE);
    first = disk;
    open_again();
    give(CAST_DATA, 1, 0, PIECE);
    assert_int_equal(said, 1);
    assert_non_null(strstr(last, "another weft cast"));
    cast_disk_close(&first);
}

/* Bytes of a file that is not complete count in the state as they arrive, and those of an earlier cast at once; never twice. */
static void test_partial(void **state)
{
    (void)state;
    give(CAST_DATA, 1, 0, PIECE);
    assert_int_equal(cast.state.partial, PIECE);
    give(CAST_HOLE, 1, PIECE, PIECE);
    assert_int_equal(cast.state.partial, 2 * PIECE);
    give(CAST_DATA, 1, PIECE, PIECE); /* out of order */
    assert_int_equal(cast.state.partial, 2 * PIECE);
    cast_disk_settle(&disk);
    cast_disk_close(&disk);
    open_again();
    assert_int_equal(cast.state.partial, 2 * PIECE);
    give(CAST_CHECK, 1, 0, PIECE);
    assert_int_equal(cast.state.partial, 2 * PIECE);
    give(CAST_CHECK, 1, PIECE, PIECE); /* differs from the hole */
    assert_int_equal(cast.state.partial, PIECE);
    give(CAST_DATA, 1, PIECE, PIECE);
    give(CAST_DATA, 1, 2 * PIECE, PIECE);
    assert_int_equal(cast.state.partial, SIZE);
    assert_int_equal(cast.state.bytes, 0);
    give(CAST_FILE_END, 1, 0, 0);
    cast_disk_settle(&disk);
    assert_int_equal(cast.state.partial, 0);
    assert_int_equal(cast.state.bytes, SIZE);
    cast_disk_verify(&disk);
    assert_int_equal(cast.state.partial + cast.state.bytes, 0);
    give(CAST_CHECK, 1, 0, PIECE);
    assert_int_equal(cast.state.partial, PIECE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_right, begin, finish),
        cmocka_unit_test_setup_teardown(test_damaged, begin, finish),
        cmocka_unit_test_setup_teardown(test_out_of_place, begin, finish),
        cmocka_unit_test_setup_teardown(test_continued, begin, finish),
        cmocka_unit_test_setup_teardown(test_changed_between_rounds, begin, finish),
        cmocka_unit_test_setup_teardown(test_data_compared, begin, finish),
        cmocka_unit_test_setup_teardown(test_part_of_others, begin, finish),
        cmocka_unit_test_setup_teardown(test_mode, begin, finish),
        cmocka_unit_test_setup_teardown(test_relative_dest, begin, finish),
        cmocka_unit_test_setup_teardown(test_source_failed, begin, finish),
        cmocka_unit_test_setup_teardown(test_another_writes, begin, finish),
        cmocka_unit_test_setup_teardown(test_partial, begin, finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
