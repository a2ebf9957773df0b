/* SPDX-License-Identifier: MIT
 *
 * Signal numbers differ between systems. Messages between nodes, GPU kernels and records use Linux's numbers. This file converts between
 * them and this system's numbers.
 */
#include "base/base.h"

#include <signal.h>

/* clang-format off */
#define SIGNALS(X) \
    X(SIGHUP, 1) X(SIGINT, 2) X(SIGQUIT, 3) X(SIGILL, 4) X(SIGTRAP, 5) X(SIGABRT, 6) X(SIGBUS, 7) X(SIGFPE, 8) X(SIGKILL, 9) \
    X(SIGUSR1, 10) X(SIGSEGV, 11) X(SIGUSR2, 12) X(SIGPIPE, 13) X(SIGALRM, 14) X(SIGTERM, 15) X(SIGCHLD, 17) X(SIGCONT, 18) \
    X(SIGSTOP, 19) X(SIGTSTP, 20) X(SIGTTIN, 21) X(SIGTTOU, 22) X(SIGURG, 23) X(SIGXCPU, 24) X(SIGXFSZ, 25) X(SIGVTALRM, 26) \
    X(SIGPROF, 27) X(SIGWINCH, 28) X(SIGIO, 29) X(SIGSYS, 31)
/* clang-format on */

#define ROW(name, number) {number, name},
const struct base_number base_signals[] = {SIGNALS(ROW)};
const size_t base_signals_count = sizeof base_signals / sizeof base_signals[0];

#if defined(__linux__)
#define SAME(name, number) _Static_assert(name == number, #name " has another number");
SIGNALS(SAME)
#endif

int base_signal_change(const struct base_number *all, size_t count, int signal, bool out)
{
    if (signal == 0)
        return 0;
    int number = base_number_change(all, count, signal, out);
    return number > 0 ? number : BASE_SIGNAL_OTHER;
}
