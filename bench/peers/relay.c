/* SPDX-License-Identifier: MIT
 *
 * What io_uring would change: a relay of one TCP connection on loopback, the least that a proxy does, in several ways.
 *
 *   relay WAY requests COUNT   64 bytes there and 300 back, one after the other
 *   relay WAY bytes COUNT      so many bytes to the client
 *
 * WAY is epoll; poll (io_uring tells once that a socket is readable, and is asked again); multishot (it tells each time that bytes come, so
 * the socket is read until it is empty); ring (io_uring receives and sends); or fixed (as ring, into registered memory, from registered
 * sockets). Prints requests or MB a second, and the relay's processor time for a request or a GB. The client, the relay and the server are
 * three processes; under `taskset -c 0` they share one processor, and the figures vary much less.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 262144, ASKED = 64, ANSWERED = 300, ENTRIES = 64 };

static void must(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    _exit(1);
}

/* --- sockets --- */

static int listen_here(uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0 &&
             getsockname(fd, (struct sockaddr *)&a, &len) == 0,
         "listen");
    *port = ntohs(a.sin_port);
    return fd;
}

static int without_delay(int fd)
{
    must(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "socket");
    return fd;
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = without_delay(socket(AF_INET, SOCK_STREAM, 0));
    must(connect(fd, (struct sockaddr *)&a, sizeof a) == 0, "connect");
    return fd;
}

/* --- the ring, without a library --- */

static struct {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask, unsent;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
} ring;

static void *ring_map(size_t bytes, uint64_t what)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, (off_t)what);
    must(at != MAP_FAILED, "mmap of io_uring");
    return at;
}

static void ring_open(void)
{
    struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    ring.fd = (int)syscall(__NR_io_uring_setup, ENTRIES, &p);
    must(ring.fd >= 0, "io_uring_setup");
    uint8_t *sq = ring_map(p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    uint8_t *cq = ring_map(p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    ring.sqes = ring_map(p.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    ring.sq_tail = (unsigned *)(void *)(sq + p.sq_off.tail);
    ring.sq_mask = (unsigned *)(void *)(sq + p.sq_off.ring_mask);
    ring.sq_array = (unsigned *)(void *)(sq + p.sq_off.array);
    ring.cq_head = (unsigned *)(void *)(cq + p.cq_off.head);
    ring.cq_tail = (unsigned *)(void *)(cq + p.cq_off.tail);
    ring.cq_mask = (unsigned *)(void *)(cq + p.cq_off.ring_mask);
    ring.cqes = (struct io_uring_cqe *)(void *)(cq + p.cq_off.cqes);
}

static void ring_put(const struct io_uring_sqe *sqe)
{
    unsigned tail = *ring.sq_tail, i = tail & *ring.sq_mask;
    ring.sqes[i] = *sqe;
    ring.sq_array[i] = i;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
    ring.unsent++;
}

/* Submits what was put, and waits for the next completion. `more`: the request stays and completes again. */
static unsigned ring_next(int *result, bool *more)
{
    while (*ring.cq_head == __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE)) {
        int n = (int)syscall(__NR_io_uring_enter, ring.fd, ring.unsent, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        must(n >= 0 || errno == EINTR, "io_uring_enter");
        ring.unsent -= n > 0 ? (unsigned)n : 0;
    }
    const struct io_uring_cqe *c = &ring.cqes[*ring.cq_head & *ring.cq_mask];
    unsigned which = (unsigned)c->user_data;
    *result = c->res;
    *more = c->flags & IORING_CQE_F_MORE;
    __atomic_store_n(ring.cq_head, *ring.cq_head + 1, __ATOMIC_RELEASE);
    return which;
}

/* --- the relay: side 0 is the client, side 1 the server --- */

static int side[2];
static uint8_t *buffer[2];

static void send_all(int fd, const uint8_t *bytes, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, bytes + at, len - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            (void)poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        else
            must(n > 0, "send");
        at += n > 0 ? (size_t)n : 0;
    }
}

/* Passes on bytes that have arrived from side `i`. With `empty`, repeats this until no bytes are left. Returns false if the side has ended.
 */
static bool pass(int i, bool empty)
{
    for (;;) {
        ssize_t n = read(side[i], buffer[i], PIECE);
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n <= 0)
            return false;
        send_all(side[!i], buffer[i], (size_t)n);
        if (n < PIECE && !empty)
            return true;
    }
}

static void relay_epoll(void)
{
    int at = epoll_create1(0);
    struct epoll_event e[2];
    for (int i = 0; i < 2; i++)
        must(epoll_ctl(at, EPOLL_CTL_ADD, side[i], &(struct epoll_event){.events = EPOLLIN, .data.u32 = (uint32_t)i}) == 0, "epoll_ctl");
    for (;;) {
        int n = epoll_wait(at, e, 2, -1);
        for (int k = 0; k < n; k++)
            if (!pass((int)e[k].data.u32, false))
                return;
    }
}

static void relay_poll(bool multishot)
{
    const uint32_t how = multishot ? IORING_POLL_ADD_MULTI : 0;
    struct io_uring_sqe s[2];
    ring_open();
    for (unsigned i = 0; i < 2; i++) {
        s[i] = (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = side[i], .poll32_events = POLLIN, .len = how, .user_data = i};
        ring_put(&s[i]);
    }
    for (;;) {
        int result;
        bool more;
        unsigned i = ring_next(&result, &more);
        if (!pass((int)i, multishot))
            return;
        if (!more)
            ring_put(&s[i]);
    }
}

/* At most one receive and one send are under way for each direction. */
static void relay_ring(bool fixed)
{
    struct iovec all[2] = {{buffer[0], PIECE}, {buffer[1], PIECE}};
    struct io_uring_sqe take[2], give[2];
    ring_open();
    if (fixed)
        must(syscall(__NR_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, all, 2) == 0 &&
                 syscall(__NR_io_uring_register, ring.fd, IORING_REGISTER_FILES, side, 2) == 0,
             "io_uring_register");
    for (unsigned i = 0; i < 2; i++) {
        must(fcntl(side[i], F_SETFL, 0) == 0, "fcntl");
        take[i] = (struct io_uring_sqe){.opcode = fixed ? IORING_OP_READ_FIXED : IORING_OP_RECV,
                                        .fd = fixed ? (int)i : side[i],
                                        .flags = fixed ? IOSQE_FIXED_FILE : 0,
                                        .addr = (uintptr_t)buffer[i],
                                        .len = PIECE,
                                        .buf_index = fixed ? (uint16_t)i : 0,
                                        .user_data = i};
        give[i] = (struct io_uring_sqe){.opcode = IORING_OP_SEND,
                                        .fd = fixed ? !i : side[!i],
                                        .flags = fixed ? IOSQE_FIXED_FILE : 0,
                                        .addr = (uintptr_t)buffer[i],
                                        .msg_flags = MSG_NOSIGNAL | MSG_WAITALL,
                                        .user_data = i + 2};
        ring_put(&take[i]);
    }
    for (;;) {
        int result;
        bool more;
        unsigned i = ring_next(&result, &more);
        if (result <= 0)
            return;
        if (i < 2) {
            give[i].len = (uint32_t)result;
            ring_put(&give[i]);
        } else {
            ring_put(&take[i - 2]);
        }
    }
}

static void relay(const char *way)
{
    for (int i = 0; i < 2; i++) {
        buffer[i] = aligned_alloc(4096, PIECE);
        must(buffer[i] && fcntl(side[i], F_SETFL, O_NONBLOCK) == 0, "buffer");
        memset(buffer[i], 1, PIECE);
    }
    if (strcmp(way, "epoll") == 0)
        relay_epoll();
    else if (strcmp(way, "poll") == 0 || strcmp(way, "multishot") == 0)
        relay_poll(way[0] == 'm');
    else
        relay_ring(way[0] == 'f');
}

/* --- both ends --- */

static uint8_t some[1 << 20];

static void serve(int fd, bool requests, uint64_t count)
{
    if (requests)
        while (read(fd, some, sizeof some) > 0)
            send_all(fd, some, ANSWERED);
    else if (read(fd, some, 1) == 1)
        for (uint64_t at = 0; at < count; at += sizeof some)
            send_all(fd, some, count - at < sizeof some ? (size_t)(count - at) : sizeof some);
}

static void receive(int fd, uint64_t bytes)
{
    while (bytes) {
        ssize_t n = read(fd, some, bytes < sizeof some ? (size_t)bytes : sizeof some);
        must(n > 0, "read");
        bytes -= (uint64_t)n;
    }
}

static double seconds(const struct timespec *a, const struct timespec *b)
{
    return (double)(b->tv_sec - a->tv_sec) + (double)(b->tv_nsec - a->tv_nsec) * 1e-9;
}

int main(int argc, char **argv)
{
    if (argc != 4 || (strcmp(argv[2], "requests") != 0 && strcmp(argv[2], "bytes") != 0)) {
        fprintf(stderr, "usage: relay epoll|poll|multishot|ring|fixed requests|bytes COUNT\n");
        return 2;
    }
    bool requests = argv[2][0] == 'r';
    uint64_t count = strtoull(argv[3], NULL, 10);
    uint16_t server, proxy;
    int at_server = listen_here(&server), at_proxy = listen_here(&proxy);
    struct timespec from, to;
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        if ((pids[i] = fork()))
            continue;
        if (i == 0) {
            serve(without_delay(accept(at_server, NULL, NULL)), requests, count);
        } else {
            side[0] = without_delay(accept(at_proxy, NULL, NULL));
            side[1] = connect_to(server);
            relay(argv[1]);
        }
        _exit(0);
    }
    int fd = connect_to(proxy);
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (uint64_t i = 0; requests && i < count; i++) {
        send_all(fd, some, ASKED);
        receive(fd, ANSWERED);
    }
    if (!requests) {
        send_all(fd, some, 1);
        receive(fd, count);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    close(fd);
    struct rusage used;
    int status;
    must(wait4(pids[1], &status, 0, &used) == pids[1] && status == 0, "the relay");
    (void)waitpid(pids[0], NULL, 0);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    if (requests)
        printf("%s: %.0f requests/s, %.2f us of processor each\n", argv[1], (double)count / seconds(&from, &to), cpu * 1e6 / (double)count);
    else
        printf("%s: %.0f MB/s, %.3f s of processor a GB\n", argv[1], (double)count / 1e6 / seconds(&from, &to), cpu * 1e9 / (double)count);
    return 0;
}
