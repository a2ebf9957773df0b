/* SPDX-License-Identifier: MIT
 *
 * Parses addresses in text form, listens at them, and connects to them.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "cluster/join.h"

#define LOCK_WAIT      WEFT_SECOND
#define RETRY_FIRST_NS (2 * WEFT_MS)
#define RETRY_LAST_NS  (100 * WEFT_MS)
#define EACH_FIRST_NS  WEFT_SECOND       /* if there are several addresses: time-out for each in the first round */
#define EACH_LAST_NS   (8 * WEFT_SECOND) /* the time-out grows in later rounds, up to this limit */

struct address {
    bool local; /* a Unix socket; `name` is its path, or its abstract name without the '@' */
    bool abstract;
    char name[256]; /* host, or path */
    char port[8];
};

static int parse(const char *text, struct address *a)
{
    memset(a, 0, sizeof *a);
    if (strncmp(text, "unix:", 5) == 0) {
        const char *name = text + 5;
        a->local = true;
        a->abstract = name[0] == '@';
        name += a->abstract;
        size_t room = sizeof((struct sockaddr_un *)0)->sun_path - 1;
#if !defined(__linux__)
        if (a->abstract)
            return base_fail(-EINVAL, "address '%s': abstract names exist only on Linux: use unix:PATH", text);
#endif
        if (!name[0])
            return base_fail(-EINVAL, "address '%s': expected a path, or @NAME, after 'unix:'", text);
        if (strlen(name) > room)
            return base_fail(-EINVAL, "address '%s': the path of a Unix socket has at most %zu bytes: use a shorter path", text, room);
        snprintf(a->name, sizeof a->name, "%s", name);
        return 0;
    }
    const char *colon = strrchr(text, ':');
    const char *host = text, *end = colon;
    if (colon && text[0] == '[') {
        host = text + 1;
        end = colon > host && colon[-1] == ']' ? colon - 1 : NULL;
    } else if (colon && memchr(text, ':', (size_t)(colon - text))) {
        return base_fail(-EINVAL, "address '%s': an IPv6 address needs brackets, as in [::1]:%d", text, CLUSTER_PORT);
    }
    if (!end || end == host || (size_t)(end - host) >= sizeof a->name)
        return base_fail(-EINVAL, "address '%s': expected HOST:PORT, [IPV6]:PORT or unix:PATH", text);
    memcpy(a->name, host, (size_t)(end - host));
    for (const char *p = a->name; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr(".-_:%", *p))
            return base_fail(-EINVAL, "address '%s': '%s' is not the name or the IP address of a host", text, a->name);
    const char *port = colon + 1;
    size_t digits = strspn(port, "0123456789");
    if (!digits || digits > 5 || port[digits] || atoi(port) > 65535)
        return base_fail(-EINVAL, "address '%s': expected a port from 0 to 65535, found '%s'", text, port);
    memcpy(a->port, port, digits + 1);
    return 0;
}

int cluster_address_check(const char *address)
{
    struct address a;
    return parse(address, &a);
}

int cluster_private_address(char *out, size_t len, const char *kind, const char *dir)
{
    uint64_t r[2];
    int rc = base_random(r, sizeof r);
    if (rc)
        return rc;
#if defined(__linux__)
    (void)dir;
    snprintf(out, len, "unix:@weft-%s-%016llx%016llx", kind, (unsigned long long)r[0], (unsigned long long)r[1]);
#else
    snprintf(out, len, "unix:%s/weft-%s-%016llx%016llx", dir ? dir : "/tmp", kind, (unsigned long long)r[0], (unsigned long long)r[1]);
#endif
    return 0;
}

static socklen_t unix_address(const struct address *a, struct sockaddr_un *un)
{
    memset(un, 0, sizeof *un);
    un->sun_family = AF_UNIX;
    size_t n = strlen(a->name);
    /* An abstract name starts with a zero byte and has no terminator: it ends where the returned length says. */
    memcpy(un->sun_path + a->abstract, a->name, a->abstract ? n : n + 1);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
}

/* Tries to parse the host as a numeric address first, because a name service may be slow or unreachable. */
static int lookup(const char *text, const struct address *a, int flags, struct addrinfo **list)
{
    struct addrinfo hints = {.ai_flags = flags | AI_NUMERICHOST | AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    *list = NULL;
    int rc = getaddrinfo(a->name, a->port, &hints, list);
    if (rc == EAI_NONAME) {
        hints.ai_flags &= ~AI_NUMERICHOST;
        rc = getaddrinfo(a->name, a->port, &hints, list);
    }
    if (rc == 0 && *list)
        return 0;
    return base_fail(rc == EAI_MEMORY ? -ENOMEM : -EHOSTUNREACH,
                     "address '%s': cannot resolve '%s': %s; check the name, or give a numeric address", text, a->name,
                     rc == EAI_SYSTEM ? base_strerror(errno) : gai_strerror(rc));
}

static int new_socket(int family)
{
#if defined(__linux__)
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 ? -errno : fd;
#else
    int fd = socket(family, SOCK_STREAM, 0);
    if (fd < 0)
        return -errno;
    int one = 1;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) || fcntl(fd, F_SETFL, O_NONBLOCK) || setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one)) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
#endif
}

static bool is_socket(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* Whether no process listens on this socket file. A killed node 0 leaves such a file. */
static bool is_stale(const struct sockaddr_un *un, socklen_t len)
{
    int fd = new_socket(AF_UNIX);
    if (fd < 0)
        return false;
    bool stale = connect(fd, (const struct sockaddr *)un, len) && errno == ECONNREFUSED && is_socket(un->sun_path);
    close(fd);
    return stale;
}

/* Locks the folder of a socket file. Without the lock, a node could take a socket file for stale, and remove it when another node has just
 * replaced it, or has bound it and does not listen yet; then that node would listen where nobody can connect. Returns the descriptor to
 * close; -1: the folder cannot be locked, or another program has locked it for long. Then the caller goes on without a lock. */
static int lock_folder(const char *path)
{
    char folder[256];
    const char *end = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", end ? (int)(end - path) + 1 : 1, end ? path : ".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int64_t until = base_deadline(LOCK_WAIT);
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB)) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || base_now_ns() >= until) {
            close(fd);
            return -1;
        }
        base_sleep_ns(WEFT_MS);
    }
    return fd;
}

static void unlock_folder(int fd)
{
    if (fd < 0)
        return;
    flock(fd, LOCK_UN); /* closing is not enough, because a process that another thread has forked may still have the descriptor */
    close(fd);
}

/* Binds the socket, and listens. Replaces a stale socket file. */
static int bind_unix(int fd, const struct address *a)
{
    struct sockaddr_un un;
    socklen_t len = unix_address(a, &un);
    int rc = bind(fd, (struct sockaddr *)&un, len);
    if (rc && errno == EADDRINUSE) {
        if (!a->abstract && is_stale(&un, len) && unlink(un.sun_path) == 0)
            rc = bind(fd, (struct sockaddr *)&un, len);
        else
            errno = EADDRINUSE;
    }
    if (rc == 0 && !a->abstract)
        chmod(un.sun_path, 0600); /* needed on macOS, where fchmod() has no effect on a socket */
    if (rc == 0)
        rc = listen(fd, SOMAXCONN);
    return rc ? -errno : 0;
}

static int listen_unix(const char *text, const struct address *a, char *bound, size_t bound_len)
{
    int fd = new_socket(AF_UNIX);
    if (fd < 0)
        return base_fail(fd, "cannot listen at '%s': the socket cannot be created: %s" BASE_FILES_HINT, text, base_strerror(fd));
    fchmod(fd, 0600); /* before bind(): Linux creates the socket file with this mode */
    int lock = a->abstract ? -1 : lock_folder(a->name);
    int rc = bind_unix(fd, a);
    unlock_folder(lock);
    if (rc) {
        close(fd);
        return base_fail(rc, "cannot listen at '%s': %s; choose another address", text, base_strerror(rc));
    }
    snprintf(bound, bound_len, "%s", text);
    return fd;
}

/* Make a listener. Returns its descriptor, or a negative errno without base_fail(). */
static int listen_at(const struct sockaddr *at, socklen_t len)
{
    int fd = new_socket(at->sa_family), one = 1, zero = 0;
    if (fd < 0)
        return fd;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (at->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, at, len) || listen(fd, SOMAXCONN)) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

/* Listen at the first address of the list that belongs to this host. If this host also has an address in the list of the other family (IPv4
 * or IPv6), listen at all addresses of the host, so that nodes that use only one family can connect. */
static int listen_first(const struct addrinfo *list)
{
    int fd = -EADDRNOTAVAIL;
    const struct addrinfo *i = list;
    /* Stop at EADDRINUSE: other nodes would connect to the program that listens at this address. */
    while (i && (fd = listen_at(i->ai_addr, i->ai_addrlen)) < 0 && fd != -EADDRINUSE)
        i = i->ai_next;
    for (const struct addrinfo *k = fd < 0 ? NULL : i->ai_next; k; k = k->ai_next) {
        if (k->ai_family == i->ai_family || base_is_loopback(i->ai_addr) || base_is_loopback(k->ai_addr))
            continue;
        int other = listen_at(k->ai_addr, k->ai_addrlen);
        if (other < 0 && other != -EADDRINUSE)
            continue;
        const struct sockaddr_in *four = (const void *)(k->ai_family == AF_INET ? k->ai_addr : i->ai_addr);
        struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = four->sin_port, .sin6_addr = in6addr_any};
        close(fd);
        if (other < 0)
            return other;
        close(other);
        fd = listen_at((const struct sockaddr *)&any, sizeof any);
        return fd < 0 ? listen_at(i->ai_addr, i->ai_addrlen) : fd;
    }
    return fd;
}

static int listen_tcp(const char *text, const struct address *a, char *bound, size_t bound_len)
{
    struct addrinfo *list;
    int fd = lookup(text, a, AI_PASSIVE, &list);
    if (fd)
        return fd;
    fd = listen_first(list);
    freeaddrinfo(list);
    if (fd < 0)
        return base_fail(fd, "cannot listen at '%s': %s%s", text, base_strerror(fd),
                         fd == -EADDRNOTAVAIL ? "; use an address of this host"
                         : fd == -EADDRINUSE  ? "; another program listens there: choose another port"
                                              : "");
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char port[8] = "";
    if (getsockname(fd, (struct sockaddr *)&at, &len) == 0)
        getnameinfo((struct sockaddr *)&at, len, NULL, 0, port, sizeof port, NI_NUMERICSERV | NI_NUMERICHOST);
    snprintf(bound, bound_len, strchr(a->name, ':') ? "[%s]:%s" : "%s:%s", a->name, port[0] ? port : a->port);
    return fd;
}

int cluster_listen(const char *address, char *bound, size_t bound_len)
{
    struct address a;
    int rc = parse(address, &a);
    if (rc)
        return rc;
    return a.local ? listen_unix(address, &a, bound, bound_len) : listen_tcp(address, &a, bound, bound_len);
}

int cluster_accept(int listener)
{
#if defined(__linux__)
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC); /* SOCK_CLOEXEC at once, because another thread may fork and exec at any time */
#else
    int fd = accept(listener, NULL, NULL);
    if (fd >= 0)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
#endif
    if (fd < 0)
        return -errno;
    cluster_tune(fd);
    return fd;
}

void cluster_unlisten(int fd, const char *bound)
{
    struct address a;
    if (fd < 0)
        return;
    if (parse(bound, &a) == 0 && a.local && !a.abstract)
        unlink(a.name);
    close(fd);
}

void cluster_tune(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* fails on Unix sockets, which do not need this option */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
#if defined(TCP_THIN_LINEAR_TIMEOUTS)
    /* Retransmit a lost heartbeat at constant intervals instead of exponentially growing ones. */
    setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &one, sizeof one);
#endif
}

int cluster_socket_host(int fd, bool far, char *out, size_t len)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    char host[NI_MAXHOST];
    memset(&at, 0, sizeof at);
    if ((far ? getpeername : getsockname)(fd, (struct sockaddr *)&at, &size))
        return -errno;
    if (at.ss_family != AF_INET && at.ss_family != AF_INET6)
        return -ENOTSUP;
    const struct sockaddr_in6 six = *(const struct sockaddr_in6 *)(const void *)&at;
    if (at.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) { /* an IPv6 socket that has an IPv4 connection */
        struct sockaddr_in *four = (void *)&at;
        *four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = six.sin6_port};
        memcpy(&four->sin_addr, (const uint8_t *)&six.sin6_addr + 12, sizeof four->sin_addr);
        size = sizeof *four;
    }
    if (getnameinfo((struct sockaddr *)&at, size, host, sizeof host, NULL, 0, NI_NUMERICHOST))
        return -EIO;
    int n = snprintf(out, len, at.ss_family == AF_INET6 ? "[%s]" : "%s", host);
    return n > 0 && (size_t)n < len ? 0 : -ENAMETOOLONG;
}

int cluster_address_towards(const char *address, char *out, size_t len)
{
    struct address a;
    struct addrinfo *list;
    int rc = parse(address, &a);
    if (!rc && a.local)
        return base_fail(-ENOTSUP, "address '%s': expected HOST:PORT, as in 10.0.0.1:7654", address);
    if (rc || (rc = lookup(address, &a, 0, &list)))
        return rc;
    int fd = socket(list->ai_family, SOCK_DGRAM, 0); /* a datagram socket, because its connect() sends nothing */
    if (fd < 0 || connect(fd, list->ai_addr, list->ai_addrlen))
        rc = -errno;
    freeaddrinfo(list);
    if (!rc)
        rc = cluster_socket_host(fd, false, out, len);
    if (fd >= 0)
        close(fd);
    return rc ? base_fail(rc, "this host has no address from which it reaches %s: %s; check its interfaces and routes", address,
                          base_strerror(rc))
              : 0;
}

/* Whether a TCP socket is connected to itself. This happens if nobody listens at a port of this host, and the system chooses the same port
 * as source port for the attempt to connect. */
static bool is_self(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t here_len = sizeof here, there_len = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return getsockname(fd, (struct sockaddr *)&here, &here_len) == 0 && getpeername(fd, (struct sockaddr *)&there, &there_len) == 0 &&
           here.ss_family != AF_UNIX && here_len == there_len && memcmp(&here, &there, here_len) == 0;
}

/* Try to connect once. Returns a socket, or a negative errno without base_fail(). */
static int attempt(const struct sockaddr *to, socklen_t len, int64_t deadline)
{
    int fd = new_socket(to->sa_family);
    if (fd < 0)
        return fd;
    int error = connect(fd, to, len) ? errno : 0;
    if (error == EINPROGRESS || error == EINTR) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int n = 0;
        do {
            int64_t left = deadline - base_now_ns();
            left = left <= 0 ? 0 : left / WEFT_MS + 1;
            n = poll(&p, 1, left > 1000 ? 1000 : (int)left);
        } while (!join_stopped() && ((n == 0 && base_now_ns() < deadline) || (n < 0 && errno == EINTR)));
        error = n > 0 ? 0 : n < 0 ? errno : ETIMEDOUT;
        socklen_t size = sizeof error;
        if (n > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
            error = errno;
    }
    if (!error && is_self(fd))
        error = ECONNREFUSED;
    if (error) {
        close(fd);
        return -error;
    }
    if (to->sa_family != AF_UNIX)
        cluster_tune(fd);
    return fd;
}

/* Whether a later attempt may succeed: the peer may still be starting, or a network may be down. EAGAIN: the backlog of a Unix listener is
 * full. */
static bool may_pass(int error)
{
    return error == -ECONNREFUSED || error == -ENOENT || error == -EAGAIN || error == -ECONNRESET || error == -ECONNABORTED ||
           error == -EHOSTUNREACH || error == -EHOSTDOWN || error == -ENETUNREACH || error == -ENETDOWN || error == -ETIMEDOUT ||
           error == -EINTR;
}

int cluster_connect(const char *address, int64_t deadline)
{
    struct address a;
    struct sockaddr_un un;
    struct addrinfo *list = NULL, local = {0};
    int why = -ETIMEDOUT; /* the last error that was not a time-out */
    int fd = parse(address, &a);
    if (fd)
        return fd;
    if (a.local) {
        socklen_t len = unix_address(&a, &un);
        local = (struct addrinfo){.ai_addr = (struct sockaddr *)&un, .ai_addrlen = len};
    } else if ((fd = lookup(address, &a, 0, &list))) {
        return fd;
    }
    bool several = list && list->ai_next; /* an address that never answers must leave time for the other addresses */
    int64_t each = EACH_FIRST_NS;
    for (int64_t pause = RETRY_FIRST_NS;; pause = pause * 3 / 2 < RETRY_LAST_NS ? pause * 3 / 2 : RETRY_LAST_NS) {
        bool again = false;
        for (const struct addrinfo *i = a.local ? &local : list; i; i = i->ai_next) {
            int64_t until = several ? base_deadline(each) : deadline;
            fd = attempt(i->ai_addr, i->ai_addrlen, until < deadline ? until : deadline);
            if (fd >= 0)
                goto out;
            again = again || may_pass(fd);
            why = fd == -ETIMEDOUT ? why : fd;
        }
        int stopped = join_stopped();
        if (stopped) {
            fd = stopped;
            break;
        }
        if (!again) {
            base_fail(fd, "cannot connect to '%s': %s; check the address, and whether the node at this address was started", address,
                      base_strerror(fd));
            break;
        }
        int64_t left = deadline - base_now_ns();
        if (left <= 0) {
            fd = base_fail(-ETIMEDOUT,
                           "cannot connect to '%s': no program answered there before the deadline: %s; check the address, whether a node "
                           "listens there, and whether a firewall blocks it",
                           address, base_strerror(why));
            break;
        }
        base_sleep_ns(pause < left ? pause : left);
        each = each < EACH_LAST_NS ? 2 * each : each;
    }
out:
    if (list)
        freeaddrinfo(list);
    return fd;
}
