/* SPDX-License-Identifier: MIT
 *
 * The program's side of a guard (guard_serve.c): finds, starts and ends the guard. The guard can register only memory that the program has
 * shared with it (verbs_guard_share()). After the guard has died, all ports are reported as down, calls that create objects fail, and calls
 * that destroy objects succeed.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/process.h"
#include "verbs/guard_ask.h"

/* Starts the guard in a session of its own. The guard is not a child of the program, so that the program's wait() never reports the guard.
 * All signals are blocked in the guard until it ignores (SIG_IGN) those signals that ask a process to end (guard_listen.c). */
static int start_guard(const char *command, const char *at, int socket)
{
    const char *const words[] = {"weft", "run", "--as-guard", at, NULL};
    const int fds[3] = {socket, BASE_FD_OURS, BASE_FD_OURS};
    char path[4096];
    sigset_t all;
    pid_t none;
    sigfillset(&all);
    const struct base_process how = {
        .path = path, .argv = (char *const *)(uintptr_t)words, .fds = fds, .group = BASE_SESSION_OWN, .orphan = true, .mask = &all};
    enum base_process_step step = BASE_STEP_PROGRAM;
    int rc = base_process_find(command, path, sizeof path);
    if (!rc)
        rc = base_process_start(&how, &none, &step);
    if (rc && step == BASE_STEP_PROGRAM)
        return base_fail(rc, "cannot start the guard (WEFT_GUARD is '%s'): %s; set WEFT_GUARD to the path of the command weft", command,
                         base_strerror(rc));
    return rc ? base_fail(rc, "cannot start the guard of RDMA devices: %s" BASE_THREAD_HINT, base_strerror(rc)) : 0;
}

/* Receives the guard's greeting. Returns -EEXIST if another guard uses the socket. Returns -ECONNRESET if the guard was about to end. */
static int greet(struct verbs_guard *g, const char *command)
{
    struct guard_greeting hello;
    int fds[2] = {-1, -1}, rc = base_receive_fds(g->fd, &hello.magic, sizeof hello.magic, fds, 2, base_deadline(GUARD_PATIENCE));
    if (rc)
        return base_fail(rc, "the guard (WEFT_GUARD is '%s') has not answered: %s; set WEFT_GUARD to the path of the command weft", command,
                         base_strerror(rc));
    if (hello.magic == EEXIST)
        return -EEXIST;
    if (hello.magic == EUSERS)
        return base_fail(-EUSERS, "the guard of RDMA devices already serves as many programs as it can: end one of these programs");
    if (hello.magic != GUARD_MAGIC)
        return base_fail(-ENOENT, "the guard (WEFT_GUARD is '%s') did not start: %s; set WEFT_GUARD to the path of the command weft",
                         command, hello.magic < 4096 ? base_strerror((int)hello.magic) : "this is another program");
    rc = base_receive_fds(g->fd, &hello.call_bytes, sizeof hello - sizeof hello.magic, NULL, 0, base_deadline(GUARD_PATIENCE));
    if (rc)
        rc = base_fail(
            -EPROTO,
            "the guard (WEFT_GUARD is '%s') has sent only a part of its greeting: %s; set WEFT_GUARD to the path of the command weft",
            command, base_strerror(rc));
    else if (fds[0] < 0 || fds[1] < 0 || hello.call_bytes != sizeof(struct guard_call) ||
             hello.answer_bytes != sizeof(struct guard_answer) || hello.completion_bytes != sizeof(struct guard_completion))
        rc = base_fail(-EPROTO,
                       "the guard and this program are of different versions of weft: set WEFT_GUARD to the command weft of this program's "
                       "version; now it is '%s'",
                       command);
    uint64_t bytes = base_round_up(sizeof *g->page, BASE_PAGE);
    if (!rc && base_memory_fd_check(fds[0], bytes))
        rc = base_context(-EPROTO, "the guard has sent memory that cannot be used (WEFT_GUARD is '%s')", command);
    if (!rc) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
        if (p == MAP_FAILED)
            rc = base_fail(-errno, "cannot map the memory of the guard: %s" BASE_MEMORY_HINT, base_strerror(errno));
        else
            g->page = p;
    }
    if (fds[0] >= 0)
        close(fds[0]);
    g->bell = fds[1];
    return rc;
}

static int list_devices(struct verbs_guard *g)
{
    struct guard_answer a = {.result = 0};
    for (uint32_t i = 0; i < GUARD_CONTEXTS; i++) {
        int rc = guard_ask(g, &(struct guard_call){.verb = GUARD_LIST, .object = i}, &a, NULL, false);
        if (rc)
            return rc == ENOSYS || rc == ENOENT ? 0
                                                : base_fail(-rc,
                                                            "the guard of RDMA devices cannot list the devices: %s; check that the "
                                                            "kernel's RDMA modules are loaded, and `dmesg`",
                                                            base_strerror(rc));
        if (i >= a.a)
            return 0;
        struct guard_device *d = &g->devices[i];
        d->g = g;
        d->index = i;
        snprintf(d->base.name, sizeof d->base.name, "%.*s", (int)sizeof a.device.name - 1, a.device.name);
        memcpy(&d->base.transport_type, &a.device.transport, sizeof d->base.transport_type);
        memcpy(&d->base.node_type, &a.device.node, sizeof d->base.node_type);
        g->list[g->count++] = &d->base;
    }
    return 0;
}

/* --- finding or starting a guard --- */

/* Starts a guard for this program. `path`: the socket on which the guard listens for further programs; NULL: it serves only this one. */
static int start_and_greet(struct verbs_guard *g, const char *command, const char *path)
{
    int ends[2] = {-1, -1}, rc = base_socketpair(ends);
    if (rc)
        return base_fail(rc, "cannot create a socket to the guard: %s" BASE_FILES_HINT, base_strerror(rc));
    g->fd = ends[0];
    rc = start_guard(command, path, ends[1]);
    close(ends[1]);
    return rc ? rc : greet(g, command);
}

static int call_guard(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct stat st;
    unsigned uid;
    int pid;
    if (strlen(path) >= sizeof at.sun_path)
        return -ENAMETOOLONG;
    if (stat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
        return -ENOTSOCK;
    memcpy(at.sun_path, path, strlen(path) + 1);
#if defined(SOCK_CLOEXEC)
    /* SOCK_CLOEXEC, because another thread may start a program at any time, which would inherit the socket */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
#else
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
#endif
    if (fd < 0)
        return -errno;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    int rc = connect(fd, (struct sockaddr *)&at, sizeof at) ? -errno
             : base_peer_identity(fd, &uid, &pid)           ? -EPERM
             : uid != (unsigned)geteuid()                   ? -EPERM
                                                            : 0;
    if (rc)
        close(fd);
    return rc ? rc : fd;
}

static void hang_up(struct verbs_guard *g)
{
    if (g->fd >= 0)
        close(g->fd);
    if (g->bell >= 0)
        close(g->bell);
    g->fd = g->bell = -1;
}

/* Connects to the guard at this path, or starts a guard. Tries again if at the same time the guard ends, or another process starts a
 * guard. */
static int join_guard(struct verbs_guard *g, const char *command, const char *path)
{
    if (path[0] != '/')
        return base_fail(-EINVAL, "WEFT_GUARD_SOCKET='%s': expected an absolute path", path);
    int64_t pause = 5 * WEFT_MS;
    for (int64_t deadline = base_deadline(GUARD_PATIENCE);; base_sleep_ns(pause)) {
        int rc = call_guard(path);
        bool again = false;
        g->fd = rc;
        if (rc >= 0)
            again = (rc = greet(g, command)) == -ECONNRESET || rc == -EPIPE;
        else if (rc != -ENOENT && rc != -ECONNREFUSED)
            return base_fail(rc, "WEFT_GUARD_SOCKET='%s': %s", path,
                             rc == -EPERM      ? "another user listens there"
                             : rc == -ENOTSOCK ? "the file is not a socket: set WEFT_GUARD_SOCKET to another path"
                                               : base_strerror(rc));
        else if (!command[0])
            return base_fail(rc,
                             "WEFT_GUARD_SOCKET='%s': no guard listens there, and WEFT_GUARD has no command that would start a guard; set "
                             "WEFT_GUARD=weft",
                             path);
        else
            again = (rc = start_and_greet(g, command, path)) == -EEXIST;
        if (!rc)
            return 0;
        if (!again)
            return base_context(rc, "WEFT_GUARD_SOCKET='%s'", path);
        if (base_now_ns() > deadline)
            return base_fail(-ETIMEDOUT, "WEFT_GUARD_SOCKET='%s': a guard is starting or ending, and does not answer in time; try again",
                             path);
        hang_up(g);
        pause = pause < 100 * WEFT_MS ? 2 * pause : pause;
    }
}

int verbs_guard_start(struct verbs_guard **out, const char *command, const char *path)
{
    struct verbs_guard *g = calloc(1, sizeof *g);
    if (!g)
        return base_fail(-ENOMEM, "no memory for the connection to the guard of RDMA devices" BASE_MEMORY_HINT);
    pthread_mutex_init(&g->lock, NULL);
    g->fd = g->bell = g->quiet[0] = g->quiet[1] = -1;
    int rc = guard_fill_verbs(g);
    if (!rc)
        rc = base_pipe(g->quiet, O_NONBLOCK);
    if (!rc)
        rc = path && path[0] ? join_guard(g, command, path) : start_and_greet(g, command, NULL);
    if (!rc)
        rc = list_devices(g);
    if (rc) {
        verbs_guard_end(g);
        return rc;
    }
    *out = g;
    return 0;
}

int verbs_guard_share(struct verbs_guard *g, void *base, uint64_t bytes, int fd)
{
    int rc = guard_ask(g, &(struct guard_call){.verb = GUARD_SHARE, .a = (uintptr_t)base, .b = bytes}, NULL, &fd, true);
    return rc ? base_fail(-rc, "the guard cannot map %llu bytes of this node's memory: %s" BASE_MEMORY_HINT, (unsigned long long)bytes,
                          base_strerror(rc))
              : 0;
}

int verbs_guard_devices(struct verbs_guard *g, struct verbs_device **out, uint32_t *count, int wanted_gid)
{
    return verbs_devices_of(&g->lib, g->list, g->count, out, count, wanted_gid);
}

void verbs_guard_end(struct verbs_guard *g)
{
    char byte;
    if (!g)
        return;
    /* wait until the guard process has ended and released the devices */
    if (g->fd >= 0) {
        shutdown(g->fd, SHUT_WR);
        while (!atomic_load_explicit(&g->gone, memory_order_relaxed) &&
               base_receive_fds(g->fd, &byte, 1, NULL, 0, base_deadline(GUARD_PATIENCE)) == 0)
            ;
        close(g->fd);
    }
    if (g->page)
        munmap(g->page, base_round_up(sizeof *g->page, BASE_PAGE));
    for (int i = 0; i < 2; i++)
        if (g->quiet[i] >= 0)
            close(g->quiet[i]);
    if (g->bell >= 0)
        close(g->bell);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
