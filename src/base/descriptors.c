/* SPDX-License-Identifier: MIT
 *
 * Passes descriptors over Unix sockets.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/base.h"

static int send_fds(int fd, const void *bytes, size_t len, const int *fds, unsigned count, int flags)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, len};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(BASE_FDS_MAX * sizeof(int))];
    } c;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    memset(&c, 0, sizeof c);
    if (count) {
        m.msg_control = c.space;
        const uint32_t bytes_of_fds = count * (unsigned)sizeof(int);
        m.msg_controllen = (__typeof__(m.msg_controllen))CMSG_SPACE(bytes_of_fds);
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&m);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = (__typeof__(cmsg->cmsg_len))CMSG_LEN(bytes_of_fds);
        memcpy(CMSG_DATA(cmsg), fds, bytes_of_fds);
    }
    for (;;) {
        ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL | flags);
        if (n < 0 && errno == EINTR)
            continue;
        return n == (ssize_t)len ? 0
               : n < 0           ? -errno
                                 : -EPROTO; /* cannot happen, because a message that fits into the socket's buffer is sent as a whole */
    }
}

int base_send_fds(int fd, const void *bytes, size_t len, const int *fds, unsigned count)
{
    return send_fds(fd, bytes, len, fds, count, 0);
}

int base_send_fds_nowait(int fd, const void *bytes, size_t len, const int *fds, unsigned count)
{
    return send_fds(fd, bytes, len, fds, count, MSG_DONTWAIT);
}

static void take_fds(struct msghdr *m, int *fds, unsigned count, unsigned *got)
{
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(m); cmsg; cmsg = CMSG_NXTHDR(m, cmsg)) {
        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int one;
            memcpy(&one, CMSG_DATA(cmsg) + i * sizeof one, sizeof one);
            fcntl(one, F_SETFD, FD_CLOEXEC);
            if (*got < count)
                fds[(*got)++] = one;
            else
                close(one);
        }
    }
}

static ssize_t receive_some(int fd, void *bytes, size_t len, int *fds, unsigned count, unsigned *got, bool *cut)
{
    struct iovec iov = {bytes, len};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(BASE_FDS_MAX * sizeof(int))];
    } c;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.space, .msg_controllen = sizeof c.space};
#ifdef MSG_CMSG_CLOEXEC
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
#else
    ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT);
#endif
    if (n > 0) {
        take_fds(&m, fds, count, got);
        *cut = m.msg_flags & MSG_CTRUNC;
    }
    return n;
}

ssize_t base_receive_fd_nowait(int fd, void *bytes, size_t len, int *passed)
{
    unsigned got = 0;
    bool cut;
    *passed = -1;
    return receive_some(fd, bytes, len, passed, 1, &got, &cut);
}

int base_receive_fds(int fd, void *bytes, size_t len, int *fds, unsigned count, int64_t deadline)
{
    uint8_t *at = bytes;
    unsigned got = 0;
    int rc = 0;
    bool dropped = false;
    for (unsigned i = 0; i < count; i++)
        fds[i] = -1;
    while (len && !rc) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int64_t left = deadline - base_now_ns();
        if (left <= 0)
            rc = -ETIMEDOUT;
        int polled = rc ? 0 : poll(&ready, 1, left > INT64_C(1000000000) ? 1000 : (int)(left / 1000000) + 1);
        if (polled < 0 && errno != EINTR)
            rc = -errno;
        if (polled <= 0)
            continue;
        bool cut = false;
        ssize_t n = receive_some(fd, at, len, fds, count, &got, &cut);
        if (n > 0) {
            at += n;
            len -= (size_t)n;
            dropped = dropped || (got < count && cut); /* the kernel dropped descriptors: too many open files */
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
            rc = n == 0 ? -ECONNRESET : -errno;
        }
    }
    if (!rc && dropped)
        rc = -EMFILE;
    for (unsigned i = 0; rc && i < got; i++) {
        close(fds[i]);
        fds[i] = -1;
    }
    return rc;
}

#if defined(__linux__)
/* An abstract name disappears with its socket, so no file is left behind. */
static socklen_t place_address(const char *name, struct sockaddr_un *un)
{
    size_t n = strnlen(name, BASE_PLACE_NAME - 1);
    *un = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(un->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static int of_this_user(int fd)
{
    unsigned uid;
    int pid, rc = base_peer_identity(fd, &uid, &pid);
    return rc ? rc : uid == geteuid() ? 0 : -EPERM;
}

int base_place_open(const char *kind, char name[BASE_PLACE_NAME])
{
    struct sockaddr_un un;
    uint64_t r[2];
    int rc = base_random(r, sizeof r);
    int fd = rc ? rc : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return rc ? rc : -errno;
    snprintf(name, BASE_PLACE_NAME, "%s-%016llx%016llx", kind, (unsigned long long)r[0], (unsigned long long)r[1]);
    socklen_t len = place_address(name, &un);
    if (bind(fd, (const struct sockaddr *)&un, len) || listen(fd, SOMAXCONN)) {
        rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

int base_place_take(int place)
{
    int fd = accept4(place, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int rc = fd < 0 ? -errno : of_this_user(fd);
    if (rc && fd >= 0)
        close(fd);
    return rc ? rc : fd;
}

int base_place_go(const char *name)
{
    struct sockaddr_un un;
    socklen_t len = place_address(name, &un);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int rc = connect(fd, (const struct sockaddr *)&un, len) ? -errno : of_this_user(fd);
    if (rc)
        close(fd);
    return rc ? rc : fd;
}
#else
int base_place_open(const char *kind, char name[BASE_PLACE_NAME])
{
    (void)kind, (void)name;
    return -ENOTSUP;
}

int base_place_take(int place)
{
    (void)place;
    return -ENOTSUP;
}

int base_place_go(const char *name)
{
    (void)name;
    return -ENOTSUP;
}
#endif

bool base_is_loopback(const struct sockaddr *at)
{
    const struct in_addr *four = &((const struct sockaddr_in *)(const void *)at)->sin_addr;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)at)->sin6_addr;
    switch (at->sa_family) {
    case AF_INET: return ntohl(four->s_addr) >> 24 == 127;
    case AF_INET6: return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
    default: return false;
    }
}
