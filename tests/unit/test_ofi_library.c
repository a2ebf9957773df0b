/* SPDX-License-Identifier: MIT
 *
 * Loading libfabric. A signal that comes meanwhile is the program's: its own handler gets it, and not one that the library has installed. A
 * library that is too old is refused.
 *
 * Usage: test_ofi_library RUDE_LIBRARY OLD_LIBRARY
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "fabric/ofi/provider.h"

static const char *rude, *old;
static volatile sig_atomic_t terminated;

static void on_terminate(int sig)
{
    (void)sig;
    terminated++;
}

static void test_signal_while_loading(void **state)
{
    (void)state;
    const struct ofi_library *lib;
    sigset_t mask;
    setenv("WEFT_OFI_LIBRARY", rude, 1);
    signal(SIGTERM, on_terminate);
    assert_int_equal(ofi_load(&lib), -ENOENT); /* it was loaded, and has none of libfabric's functions */
    assert_int_equal(terminated, 1);
    raise(SIGTERM); /* the handler is still the program's, and the signal is not blocked */
    assert_int_equal(terminated, 2);
    assert_int_equal(sigprocmask(SIG_BLOCK, NULL, &mask), 0);
    assert_false(sigismember(&mask, SIGINT));
}

/* 1.17 is the oldest that is accepted, and 1.9 is older. */
static void test_version(void **state)
{
    (void)state;
    static const char *const refused[] = {"1.16", "1.9", "0.20"};
    const struct ofi_library *lib;
    char said[128];
    setenv("WEFT_OFI_LIBRARY", old, 1);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        setenv("OLD_LIBRARY", refused[i], 1);
        assert_int_equal(ofi_load(&lib), -ENOENT);
        snprintf(said, sizeof said, " is libfabric %s, and weft needs 1.17 or newer: install it", refused[i]);
        assert_non_null(strstr(base_error(), said));
    }
    setenv("OLD_LIBRARY", "1.17", 1);
    assert_int_equal(ofi_load(&lib), 0); /* from now on, this is the library of the process */
    assert_non_null(strstr(lib->path, "libold."));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_signal_while_loading), cmocka_unit_test(test_version)};
    if (argc != 3)
        return 2;
    rude = argv[1];
    old = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
