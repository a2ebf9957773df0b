/* SPDX-License-Identifier: MIT
 *
 * Catches the signals that ask a command to end, for commands that use RDMA devices. A Thunderbolt device loses the protection domain of a
 * killed process until the host restarts. So the first signal only ends the command's loops, and the command exits normally. A second
 * signal of the same kind ends the process.
 */
#include <signal.h>

#include "cli/command.h"

static volatile sig_atomic_t stop;

static void on_stop_signal(int number)
{
    stop = number;
}

void cli_catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction a = {.sa_handler = on_stop_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaction(numbers[i], &a, NULL);
}

int cli_stopped(void)
{
    return stop;
}
