/* SPDX-License-Identifier: MIT
 *
 * The terminal of `weft exec --tty`: see terminal.h.
 */
#include "cli/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/base.h"
#include "base/process.h"

static struct termios found, raw; /* found: the settings before raw mode; raw: the settings in raw mode */
static bool is_raw;
static int helper_pipe = -1;
static pid_t helper;

static bool has_settings(int fd, const struct termios *t)
{
    struct termios now;
    return tcgetattr(fd, &now) == 0 && now.c_iflag == t->c_iflag && now.c_oflag == t->c_oflag && now.c_lflag == t->c_lflag;
}

/* The helper process waits for the end of the command, and then restores the terminal, unless the command has done that (then a byte is in
 * the pipe). The helper runs in a session of its own, so that it can change the settings without being stopped. */
static _Noreturn void help(int fd, int terminal)
{
    char byte;
    ssize_t n;
    base_process_set_apart("weft-terminal");
    do
        n = read(fd, &byte, 1);
    while (n < 0 && errno == EINTR);
    if (n <= 0 && has_settings(terminal, &raw))
        tcsetattr(terminal, TCSANOW, &found);
    _exit(0);
}

int terminal_open(void)
{
    int fds[2];
    if (tcgetattr(STDIN_FILENO, &found))
        return base_fail(-ENOTTY, "--tty: standard input is not a terminal: run this from a terminal, or leave out --tty");
    raw = found;
    cfmakeraw(&raw);
    int terminal = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3); /* the helper closes descriptors 0 to 2 */
    int rc = terminal < 0 ? -errno : base_pipe(fds, 0);
    if (!rc) {
        helper = base_process_fork();
        if (helper == 0) {
            close(fds[1]);
            help(fds[0], terminal);
        }
        rc = helper < 0 ? (int)helper : 0;
        close(fds[0]);
        helper_pipe = fds[1];
    }
    if (terminal >= 0)
        close(terminal);
    if (helper < 0)
        close(helper_pipe);
    if (!rc)
        return 0;
    helper_pipe = -1;
    return base_fail(rc, "--tty: cannot start the process that restores the terminal if this command is killed: %s" BASE_THREAD_HINT,
                     base_strerror(rc));
}

int terminal_raw(void)
{
    if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw))
        return base_fail(-errno, "--tty: the terminal cannot be set to raw mode: %s; leave out --tty", base_strerror(errno));
    is_raw = true;
    return 0;
}

void terminal_restore(void)
{
    if (is_raw)
        tcsetattr(STDIN_FILENO, TCSANOW, &found);
    is_raw = false;
}

uint32_t terminal_window(void)
{
    struct winsize size;
    return ioctl(STDIN_FILENO, TIOCGWINSZ, &size) ? 0 : size.ws_row | (uint32_t)size.ws_col << 16;
}

void terminal_close(void)
{
    if (helper_pipe < 0)
        return;
    terminal_restore();
    ssize_t n = write(helper_pipe, "", 1);
    (void)n;
    close(helper_pipe);
    helper_pipe = -1;
    base_process_reap(helper);
}
