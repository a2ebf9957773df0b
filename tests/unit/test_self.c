/* SPDX-License-Identifier: MIT
 *
 * Whose files beside a program are executed as parts of it (cli/self.c). The owners of files are made up here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOT = 0, USER = 1000, OTHER = 1001, OWNER = 1002 }; /* OWNER: of the program */

static uid_t file_owner, folder_owner;

static int stat_made_up(const char *path, struct stat *st)
{
    int rc = stat(path, st);
    st->st_uid = strcmp(path, "/proc/self/exe") == 0 ? OWNER : S_ISDIR(st->st_mode) ? folder_owner : file_owner;
    return rc;
}
#define stat(path, st) stat_made_up(path, st)
#define geteuid()      ((uid_t)USER)
#include "../../src/cli/self.c"
#undef stat
#undef geteuid

static char folder[PATH_MAX + 32], place[PATH_MAX + 64], file[PATH_MAX + 64];

static int beside(uid_t of_file, uid_t of_folder)
{
    char path[PATH_MAX] = "";
    file_owner = of_file;
    folder_owner = of_folder;
    int rc = self_beside(place, path);
    if (!rc)
        assert_string_equal(path, file);
    return rc;
}

static void test_owners(void **state)
{
    (void)state;
    assert_int_equal(beside(OWNER, OWNER), 0);
    assert_int_equal(beside(ROOT, ROOT), 0);
    assert_int_equal(beside(USER, USER), 0);
    assert_int_equal(beside(USER, ROOT), 0);
    assert_int_equal(beside(OTHER, OWNER), -EPERM);
    assert_int_equal(beside(OTHER, OTHER), -EPERM);
    assert_int_equal(beside(ROOT, OTHER), -EPERM); /* a link to a file of somebody else */
}

static void test_none(void **state)
{
    char path[PATH_MAX];
    (void)state;
    assert_int_equal(self_beside("there/is/none", path), -ENOENT);
}

int main(void)
{
    char exe[PATH_MAX] = "";
    assert_true(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0);
    *strrchr(exe, '/') = '\0';
    snprintf(folder, sizeof folder, "%s/beside-XXXXXX", exe);
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/weft", folder);
    snprintf(place, sizeof place, "../%s/%s/weft", strrchr(exe, '/') + 1, strrchr(folder, '/') + 1);
    close(open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0700));
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_owners), cmocka_unit_test(test_none)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(file);
    rmdir(folder);
    return failed;
}
