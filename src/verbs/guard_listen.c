/* SPDX-License-Identifier: MIT
 *
 * The guard's process. A guard of one program serves the program at descriptor 0, and ends with this program. A guard of several programs
 * (WEFT_GUARD_SOCKET) also listens on a Unix socket of mode 0600, and starts a thread for each program that connects. So several programs
 * of a host can use one cable at the same time, and each device is opened only once (guard_shared.c). If a program is killed, its thread
 * frees the program's objects.
 *
 * The guard ends with its last program. A locked file beside the socket ensures that only one guard at a time uses the socket. A program
 * that connects while the guard ends starts a new guard (guard.c).
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/process.h"
#include "verbs/guard_serve.h"

#define PROGRAMS_MAX 64u

struct shared_guard { /* a guard of several programs */
    struct guard_shared shared;
    const char *path;
    int listener, wake[2]; /* wake: a pipe; a byte is written into it when a program has ended */
};
struct program {
    struct guard g;
    struct shared_guard *owner;
};

static void *serve_program(void *arg)
{
    struct program *one = arg;
    struct shared_guard *h = one->owner;
    guard_serve_program(&h->shared, &one->g);
    guard_shared_leave(&h->shared, &one->g);
    free(one);
    (void)!write(h->wake[1], "w", 1); /* if the pipe is full, the main thread wakes anyway */
    return NULL;
}

static uint32_t programs(struct shared_guard *h)
{
    pthread_mutex_lock(&h->shared.lock);
    uint32_t count = h->shared.count;
    pthread_mutex_unlock(&h->shared.lock);
    return count;
}

static void add_program(struct shared_guard *h, int fd)
{
    struct program *one = calloc(1, sizeof *one);
    pthread_t thread;
    unsigned uid;
    int pid, rc = one ? 0 : -ENOMEM;
    if (!rc && (base_peer_identity(fd, &uid, &pid) || uid != (unsigned)geteuid()))
        rc = -EPERM;
    if (!rc && programs(h) >= PROGRAMS_MAX)
        rc = -EUSERS;
    if (!rc) {
        one->g.fd = fd;
        one->owner = h;
        guard_shared_enter(&h->shared, &one->g);
        if ((rc = base_thread(&thread, serve_program, one)))
            guard_shared_leave(&h->shared, &one->g);
        else
            pthread_detach(thread);
    }
    if (rc) {
        const int32_t error = -rc;
        (void)!send(fd, &error, sizeof error, MSG_DONTWAIT | MSG_NOSIGNAL);
        close(fd);
        free(one);
    }
}

/* Makes this process the guard at this path. Returns -EEXIST if another process is the guard there. */
static int open_shared_guard(struct shared_guard *h)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char beside[sizeof at.sun_path + 8];
    if (h->path[0] != '/' || strlen(h->path) >= sizeof at.sun_path)
        return -EINVAL;
    struct stat old;
    if (stat(h->path, &old) == 0 && !S_ISSOCK(old.st_mode)) /* this file does not belong to a guard, so unlink() below must not remove it */
        return -ENOTSOCK;
    memcpy(at.sun_path, h->path, strlen(h->path) + 1);
    snprintf(beside, sizeof beside, "%s.lock", h->path);
    int lock = open(beside, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600); /* the lock is held until this process ends */
    if (lock < 0)
        return -errno;
    if (flock(lock, LOCK_EX | LOCK_NB))
        return errno == EWOULDBLOCK ? -EEXIST : -errno;
    snprintf(beside, sizeof beside, "%s.log", h->path);
    int log = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log >= 0)
        dup2(log, STDERR_FILENO); /* the guard's messages must not appear in the program's standard error */
    if (log >= 0)
        close(log);
    int rc = chdir("/") ? -errno : base_pipe(h->wake, O_NONBLOCK);
    if (rc)
        return rc;
    unlink(h->path); /* a guard that was killed may have left this socket */
    h->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (h->listener < 0 || bind(h->listener, (struct sockaddr *)&at, sizeof at) || chmod(h->path, 0600) || listen(h->listener, 64))
        return -errno;
    fcntl(h->listener, F_SETFD, FD_CLOEXEC);
    fcntl(h->listener, F_SETFL, O_NONBLOCK);
    return 0;
}

static void run_shared_guard(struct shared_guard *h)
{
    for (char bytes[64]; programs(h);) {
        struct pollfd p[2] = {{.fd = h->listener, .events = POLLIN}, {.fd = h->wake[0], .events = POLLIN}};
        if (poll(p, 2, -1) < 0)
            continue;
        while (read(h->wake[0], bytes, sizeof bytes) == (ssize_t)sizeof bytes)
            ;
        int fd = p[0].revents ? accept(h->listener, NULL, NULL) : -1;
        if (fd >= 0) {
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            fcntl(fd, F_SETFL, 0); /* on macOS the new socket has the listener's flags */
            add_program(h, fd);
        } else if (p[0].revents && (errno == EMFILE || errno == ENFILE)) {
            base_sleep_ns(10 * WEFT_MS);
        }
    }
    unlink(h->path); /* connections that were not accepted are closed with the listener; the programs at their other ends start another
                        guard */
}

int verbs_guard_serve(const char *socket)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGTTOU, SIGTTIN, SIGPIPE, SIGUSR1, SIGUSR2};
    static struct shared_guard h = {.listener = -1, .wake = {-1, -1}};
    static struct guard alone = {.fd = GUARD_FD};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN); /* these signals are meant for the programs; the guard must end after them, to free their objects */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    base_name_process("weft-guard");
    base_log_name("guard");
    guard_shared_init(&h.shared);
    h.path = socket;
    int rc = verbs_load(&h.shared.lib);
    if (!rc && socket)
        rc = open_shared_guard(&h);
    if (rc) {
        const int32_t error = -rc;
        (void)!write(GUARD_FD, &error, sizeof error);
        return rc;
    }
    if (!socket) {
        guard_shared_enter(&h.shared, &alone);
        return guard_serve_program(&h.shared, &alone);
    }
    add_program(&h, GUARD_FD);
    run_shared_guard(&h);
    return 0;
}
