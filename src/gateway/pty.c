/* SPDX-License-Identifier: MIT
 *
 * The pseudo-terminal of one process (WEFT_SPAWN_TERMINAL). The process leads a session, and the pseudo-terminal is its controlling
 * terminal. Signals are also sent to the terminal's foreground group, since a shell makes further process groups.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "gateway/run.h"

/* POSIX defines only O_RDWR and O_NOCTTY for posix_openpt(). On Linux, O_CLOEXEC is set at once, so that programs that other threads start
 * do not inherit the descriptor. On other systems pty_open() sets the flags with fcntl(). */
#if defined(__linux__)
#define OPEN_FLAGS (O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK)
#else
#define OPEN_FLAGS (O_RDWR | O_NOCTTY)
#endif

static int open_other_side(int ours)
{
    char path[128];
    if (grantpt(ours) || unlockpt(ours))
        return -errno;
    int rc = ptsname_r(ours, path, sizeof path);
    if (rc)
        return rc > 0 ? -rc : -errno;
    int fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int pty_size(int fd, uint32_t rows, uint32_t columns)
{
    const struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
    return ioctl(fd, TIOCSWINSZ, &size) ? -errno : 0;
}

int pty_open(int *ours, int *theirs, uint32_t rows, uint32_t columns)
{
    struct termios t;
    int fd = posix_openpt(OPEN_FLAGS);
    if (fd < 0)
        return -errno;
    int rc = fcntl(fd, F_SETFD, FD_CLOEXEC) || fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK) ? -errno : open_other_side(fd);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    *ours = fd;
    *theirs = rc;
    if (tcgetattr(*theirs, &t) == 0) {
        t.c_iflag |= IUTF8; /* the erase key deletes a character, not a byte */
        tcsetattr(*theirs, TCSANOW, &t);
    }
    return pty_size(fd, rows, columns);
}

/* Checks the group's session before the signal, because another session may use the group's number again. ESRCH: the group's leader has
 * ended, but other processes of the group live, so the number still belongs to this group. */
void pty_signal(int fd, pid_t session, int signal)
{
    pid_t group = tcgetpgrp(fd);
    if (group <= 1 || group == session)
        return;
    pid_t of = getsid(group);
    if (of == session || (of < 0 && errno == ESRCH))
        kill(-group, signal);
}
