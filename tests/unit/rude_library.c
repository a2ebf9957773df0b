/* SPDX-License-Identifier: MIT
 *
 * A library that takes a signal for itself while it is loaded, as libinfinipath does, and is sent this signal at that moment.
 */
#include <signal.h>
#include <unistd.h>

static void rude_end(int sig)
{
    (void)sig;
    _exit(1);
}

__attribute__((constructor)) static void rude_begin(void)
{
    signal(SIGTERM, rude_end);
    kill(getpid(), SIGTERM);
}
