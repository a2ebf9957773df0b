/* SPDX-License-Identifier: MIT
 *
 * The folder of a standing cluster on this host, with the control socket, the lock, and the log: $XDG_RUNTIME_DIR/weft/NAME or, if the
 * system has no such folder, /tmp/weft-UID/NAME (macOS: below $TMPDIR). Only its user may enter it.
 */
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "cli/standing.h"

static int check_name(struct standing_place *p, const char *name)
{
    const char *given = getenv("WEFT_CLUSTER");
    name = name ? name : given && given[0] ? given : "default";
    bool fits = name[0] && name[0] != '.' && name[0] != '-' && strlen(name) <= STANDING_NAME_MAX;
    for (const char *c = name; *c && fits; c++)
        fits = isalnum((unsigned char)*c) || *c == '-' || *c == '_' || *c == '.';
    if (!fits)
        return base_fail(-EINVAL, "'%.64s' cannot be the name of a cluster: expected 1 to %u letters, digits, '-', '_' and '.'", name,
                         STANDING_NAME_MAX);
    snprintf(p->name, sizeof p->name, "%s", name);
    return 0;
}

/* Whether a folder belongs to this user, and no other user may write to it or, with `alone`, read it. Does not follow symbolic links. The
 * small command (front.c) has this check, too. */
static bool is_ours(const char *path, bool alone)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & (alone ? 077 : 022)) == 0;
}

static int enter(const char *path, bool make)
{
    if (make && mkdir(path, 0700) && errno != EEXIST)
        return base_fail(-errno, "cannot make directory %s, which the cluster needs for its socket and log: %s", path,
                         base_strerror(errno));
    if (!make && access(path, F_OK))
        return base_fail(-errno,
                         "cannot enter %s, the cluster's directory on this host: %s; if the cluster is not up, start it with `weft up`",
                         path, base_strerror(errno));
    if (!is_ours(path, true))
        return base_fail(-EPERM,
                         "directory %s must belong to this user and have mode 0700, because whoever can enter it controls the cluster: "
                         "remove it, or set XDG_RUNTIME_DIR",
                         path);
    return 0;
}

int standing_find(struct standing_place *p, const char *name, bool make)
{
    char top[sizeof p->folder], path[sizeof p->folder + 64];
    const char *given = getenv("XDG_RUNTIME_DIR");
    int rc = check_name(p, name), n;
    if (rc)
        return rc;
    if (given && given[0] == '/' && is_ours(given, false)) {
        n = snprintf(top, sizeof top, "%s/weft", given);
    } else {
#if defined(__APPLE__)
        const char *tmp = getenv("TMPDIR");
#else
        const char *tmp = NULL;
#endif
        n = snprintf(top, sizeof top, "%s/weft-%u", tmp && tmp[0] == '/' ? tmp : "/tmp", (unsigned)geteuid());
    }
    int m = snprintf(path, sizeof path, "%s/%s", top, p->name);
    if (n >= (int)sizeof top || m >= (int)sizeof p->folder)
        return base_fail(-ENAMETOOLONG,
                         "directory %s...: the path of a socket in it can have at most %d bytes: set XDG_RUNTIME_DIR to a shorter path",
                         top, STANDING_PATH);
    memcpy(p->folder, path, (size_t)m + 1);
    snprintf(p->socket, sizeof p->socket, "%s/control", p->folder);
    snprintf(p->log, sizeof p->log, "%s/log", p->folder);
    snprintf(p->lock, sizeof p->lock, "%s/lock", p->folder);
    snprintf(p->control_lock, sizeof p->control_lock, "%s/taken", p->folder);
    snprintf(p->down, sizeof p->down, "%s/down", p->folder);
    snprintf(p->members, sizeof p->members, "%s/hosts", p->folder);
    rc = enter(top, make);
    return rc ? rc : enter(p->folder, make);
}

/* Called with the folder locked. So if two commands run at the same time, the second one sees what the first one has done. */
static int take_lock(const struct standing_place *p, int fd, bool more)
{
    int rc = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : -errno;
    if (rc == -EWOULDBLOCK && !more)
        return base_fail(-EBUSY, "cluster '%s' is up already: end it with `weft down`, or give another name", p->name);
    if (!rc && more)
        return base_fail(-ECONNREFUSED, "cluster '%s' is not up: start it with `weft up`", p->name);
    if (rc && rc != -EWOULDBLOCK)
        return base_fail(rc, "cannot lock %s, the cluster's lock file: %s", p->lock, base_strerror(rc));
    return flock(fd, LOCK_SH) ? base_fail(-errno, "cannot lock %s, the cluster's lock file: %s", p->lock, base_strerror(errno)) : 0;
}

int standing_lock(const struct standing_place *p, bool more)
{
    int folder = open(p->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    int fd = open(p->lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int rc = folder < 0 || fd < 0 || flock(folder, LOCK_EX)
                 ? base_fail(-errno, "cannot lock %s, the cluster's lock file: %s", p->lock, base_strerror(errno))
                 : take_lock(p, fd, more);
    if (folder >= 0)
        close(folder);
    if (!rc)
        return fd;
    if (fd >= 0)
        close(fd);
    return rc;
}

bool standing_locked(const struct standing_place *p)
{
    int fd = open(p->lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    bool held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return held;
}

int standing_control(const struct standing_place *p)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(p->control_lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return base_fail(-errno, "cannot lock %s, the lock file of the control node: %s", p->control_lock, base_strerror(errno));
    if (fcntl(fd, F_SETLK, &all) == 0)
        return fd;
    int rc = errno == EACCES || errno == EAGAIN
                 ? -EBUSY
                 : base_fail(-errno, "cannot lock %s, the lock file of the control node: %s", p->control_lock, base_strerror(errno));
    close(fd);
    return rc;
}

static int control_socket(const struct standing_place *p, struct sockaddr_un *at)
{
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(at->sun_path, p->socket, strlen(p->socket) + 1);
#if defined(SOCK_CLOEXEC)
    /* SOCK_CLOEXEC at once, because another thread may fork and exec at any time */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
#else
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
#endif
    if (fd < 0)
        return base_fail(-errno, "no socket: %s", base_strerror(errno));
#if !defined(SOCK_CLOEXEC)
    fcntl(fd, F_SETFD, FD_CLOEXEC);
#endif
#if defined(SO_NOSIGPIPE)
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &(int){1}, sizeof(int));
#endif
    return fd;
}

int standing_mark_down(const struct standing_place *p)
{
    int fd = open(p->down, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return base_fail(-errno, "cannot make %s, the file that tells the launchers to end: %s", p->down, base_strerror(errno));
    close(fd);
    return 0;
}

int standing_listen(const struct standing_place *p)
{
    struct sockaddr_un at;
    int fd = control_socket(p, &at);
    if (fd < 0)
        return fd;
    unlink(p->socket); /* this process holds the lock, so the socket is one that a killed cluster has left */
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || chmod(p->socket, 0600) || listen(fd, 128)) {
        int rc = base_fail(-errno, "control socket %s: %s", p->socket, base_strerror(errno));
        close(fd);
        return rc;
    }
    return fd;
}

static int connect_once(const struct standing_place *p)
{
    struct sockaddr_un at;
    struct timeval most = {.tv_sec = CONTROL_SILENT_NS / WEFT_SECOND};
    int fd = control_socket(p, &at);
    if (fd < 0)
        return fd;
    /* this time-out also limits connect(), which waits while the queue of connections is full */
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
        return fd;
    int rc = errno == ENOENT || errno == ECONNREFUSED ? -ECONNREFUSED
             : errno == EAGAIN                        ? base_fail(-ETIMEDOUT, "%s", CONTROL_SILENT)
                                                      : base_fail(-errno, "control socket %s: %s", p->socket, base_strerror(errno));
    close(fd);
    return rc;
}

int standing_connect(const struct standing_place *p, bool wait)
{
    unsigned uid;
    int pid, fd = connect_once(p);
    bool locked = true;
    for (int64_t deadline = base_deadline(CONTROL_NODE_NS); wait && fd == -ECONNREFUSED && base_now_ns() < deadline; fd = connect_once(p)) {
        if (!(locked = standing_locked(p)) || access(p->down, F_OK) == 0)
            break;
        base_sleep_ns(20 * WEFT_MS);
    }
    if (fd == -ECONNREFUSED && locked)
        return base_fail(fd, "cluster '%s': no node is running on this host: the log %s has the reason", p->name, p->log);
    if (fd == -ECONNREFUSED)
        return base_fail(fd, "cluster '%s' is not up: start it with `weft up`", p->name);
    if (fd >= 0 && (base_peer_identity(fd, &uid, &pid) || uid != (unsigned)geteuid())) {
        close(fd);
        return base_fail(-EPERM,
                         "another user listens on the cluster's socket %s: remove it, or set XDG_RUNTIME_DIR to a directory of this user",
                         p->socket);
    }
    return fd;
}
