/* SPDX-License-Identifier: MIT
 *
 * A signal that comes while libfabric is loaded is the program's: its own handler gets it, and not one that the library has installed.
 *
 * Usage: test_ofi_library RUDE_LIBRARY
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "fabric/ofi/provider.h"

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
    signal(SIGTERM, on_terminate);
    assert_int_equal(ofi_load(&lib), -ENOENT); /* it was loaded, and has none of libfabric's functions */
    assert_int_equal(terminated, 1);
    raise(SIGTERM); /* the handler is still the program's, and the signal is not blocked */
    assert_int_equal(terminated, 2);
    assert_int_equal(sigprocmask(SIG_BLOCK, NULL, &mask), 0);
    assert_false(sigismember(&mask, SIGINT));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_signal_while_loading)};
    return argc != 2 || setenv("WEFT_OFI_LIBRARY", argv[1], 1) || cmocka_run_group_tests(tests, NULL, NULL);
}
