/* SPDX-License-Identifier: MIT
 *
 * A provider of libfabric, measured the way bench/fabric.c measures weft: two processes, one on core 0 and one
 * on core 1, both polling their completion queue all the time, buffers touched beforehand.
 *
 * Environment: PEER_PROVIDER (shm); of a network, PEER_ADDRESSES, one of each process ("10.0.0.1,10.0.0.2"), and
 * PEER_NAMESPACE, the network namespace of the second ("/proc/123/ns/net"). PEER_CONFIRMED: a write is complete when it is at the target.
 * PEER_MULTI: messages of send_rate are received into a few large buffers (FI_MULTI_RECV), not into one buffer each.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "../spec.h"

enum { WINDOW = 64, NAME_MAX_BYTES = 256, WORDS = 4096, LARGE = 2, LARGE_BYTES = WINDOW * 4096 / LARGE };

/* The state of the test, on a page that both processes map. */
struct control {
    _Alignas(64) _Atomic uint32_t ready[2];
    _Alignas(64) _Atomic uint32_t done;
    _Alignas(64) _Atomic uint64_t received; /* messages, of a test of their rate */
};

struct card {
    char name[NAME_MAX_BYTES];
    uint64_t name_len, key, base;
};

struct side {
    int rank, sock;
    struct control *control;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct fid_mr *mr;
    fi_addr_t peer;
    uint8_t *memory; /* WORDS bytes of words, then the buffer */
    size_t memory_len;
    struct card theirs;
    uint64_t completions;
    uint64_t used; /* number of completions that report a used-up large buffer */
};

static bool failed(const char *what, int64_t rc)
{
    if (rc >= 0)
        return false;
    fprintf(stderr, "libfabric: %s: %s\n", what, fi_strerror((int)-rc));
    return true;
}

static int progress(struct side *s)
{
    struct fi_cq_msg_entry e[16];
    ssize_t n = fi_cq_read(s->cq, e, 16);
    if (n > 0) {
        for (ssize_t i = 0; i < n; i++) {
            s->completions += !(e[i].flags & FI_MULTI_RECV) || e[i].len;
            s->used += (e[i].flags & FI_MULTI_RECV) != 0;
        }
    } else if (n != -FI_EAGAIN) {
        struct fi_cq_err_entry err = {0};
        fi_cq_readerr(s->cq, &err, 0);
        failed("completion", err.err ? -err.err : n);
        return -1;
    }
    return 0;
}

/* Repeat an operation that has no room yet, with progress between. */
#define RETRY(s, what, call)                 \
    do {                                     \
        int64_t rc_;                         \
        while ((rc_ = (call)) == -FI_EAGAIN) \
            if (progress(s))                 \
                return -1;                   \
        if (failed(what, rc_))               \
            return -1;                       \
    } while (0)

static int completed(struct side *s, uint64_t n)
{
    while (s->completions < n)
        if (progress(s))
            return -1;
    return 0;
}

static uint64_t theirs(const struct side *s, uint64_t offset)
{
    return s->theirs.base + offset;
}

/* The first or the second word of a list in the environment. */
static const char *side_word(const struct side *s, const char *name, char *room, size_t bytes)
{
    const char *list = getenv(name), *second = list ? strchr(list, ',') : NULL;
    if (!second)
        return NULL;
    snprintf(room, bytes, "%.*s", s->rank ? (int)strlen(second + 1) : (int)(second - list), s->rank ? second + 1 : list);
    return room;
}

static bool side_network(const struct side *s)
{
    const char *path = s->rank ? getenv("PEER_NAMESPACE") : NULL;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (!path || (fd >= 0 && setns(fd, CLONE_NEWNET) == 0))
        return true;
    perror("libfabric: PEER_NAMESPACE");
    return false;
}

static int side_open(struct side *s)
{
    const char *provider = getenv("PEER_PROVIDER") ? getenv("PEER_PROVIDER") : "shm";
    char room[64];
    const char *address = side_word(s, "PEER_ADDRESSES", room, sizeof room);
    struct fi_info *hints = side_network(s) ? fi_allocinfo() : NULL;
    if (!hints)
        return -1;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | (getenv("PEER_MULTI") ? FI_MULTI_RECV : 0);
    hints->mode = FI_CONTEXT;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED | FI_MR_LOCAL;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup(provider);
    int rc = fi_getinfo(FI_VERSION(1, 14), address, NULL, address ? FI_SOURCE : 0, hints, &s->info);
    if (rc == -FI_ENODATA) { /* a provider without tagged messages or atomics */
        hints->caps = FI_MSG | FI_RMA;
        rc = fi_getinfo(FI_VERSION(1, 14), address, NULL, address ? FI_SOURCE : 0, hints, &s->info);
    }
    fi_freeinfo(hints);
    if (failed(provider, rc))
        return -1;
    struct fi_av_attr av = {.type = FI_AV_TABLE, .count = 2};
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_MSG, .size = 4 * WINDOW};
    if (failed("fi_fabric", fi_fabric(s->info->fabric_attr, &s->fabric, NULL)) ||
        failed("fi_domain", fi_domain(s->fabric, s->info, &s->domain, NULL)) ||
        failed("fi_av_open", fi_av_open(s->domain, &av, &s->av, NULL)) || failed("fi_cq_open", fi_cq_open(s->domain, &cq, &s->cq, NULL)) ||
        failed("fi_endpoint", fi_endpoint(s->domain, s->info, &s->ep, NULL)) || failed("fi_ep_bind", fi_ep_bind(s->ep, &s->av->fid, 0)) ||
        failed("fi_ep_bind", fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV)) || failed("fi_enable", fi_enable(s->ep)) ||
        failed("fi_mr_reg",
               fi_mr_reg(s->domain, s->memory, s->memory_len, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_SEND | FI_RECV, 0,
                         (uint64_t)s->rank + 1, 0, &s->mr, NULL)))
        return -1;

    struct card mine = {.name_len = NAME_MAX_BYTES, .key = fi_mr_key(s->mr)};
    size_t len = NAME_MAX_BYTES;
    if (failed("fi_getname", fi_getname(&s->ep->fid, mine.name, &len)))
        return -1;
    mine.base = s->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)s->memory : 0;
    if (write(s->sock, &mine, sizeof(mine)) != sizeof(mine) ||
        recv(s->sock, &s->theirs, sizeof(s->theirs), MSG_WAITALL) != sizeof(s->theirs)) {
        perror("libfabric: side connection");
        return -1;
    }
    if (fi_av_insert(s->av, s->theirs.name, 1, &s->peer, 0, NULL) != 1) {
        fprintf(stderr, "libfabric: fi_av_insert failed\n");
        return -1;
    }
    return 0;
}

static void side_close(struct side *s)
{
    if (s->mr)
        fi_close(&s->mr->fid);
    if (s->ep)
        fi_close(&s->ep->fid);
    if (s->cq)
        fi_close(&s->cq->fid);
    if (s->av)
        fi_close(&s->av->fid);
    if (s->domain)
        fi_close(&s->domain->fid);
    if (s->fabric)
        fi_close(&s->fabric->fid);
    if (s->info)
        fi_freeinfo(s->info);
}

/* Waits until both processes have arrived. Makes progress meanwhile, because the other process may need it. */
static int meet(struct side *s, uint32_t turn)
{
    atomic_store_explicit(&s->control->ready[s->rank], turn, memory_order_release);
    while (atomic_load_explicit(&s->control->ready[!s->rank], memory_order_acquire) < turn)
        if (progress(s))
            return -1;
    return 0;
}

/* Ping-pong by writing a word into the other's memory. */
static int put_latency(struct side *s, uint64_t n, uint64_t first)
{
    volatile uint64_t *word = (volatile uint64_t *)s->memory;
    for (uint64_t i = first; i < first + n; i++) {
        for (int half = 0; half < 2; half++) {
            if (half == s->rank) {
                RETRY(s, "fi_inject_write", fi_inject_write(s->ep, &i, 8, s->peer, theirs(s, 0), s->theirs.key));
            } else {
                while (*word != i)
                    if (progress(s))
                        return -1;
            }
        }
    }
    return 0;
}

/* Ping-pong by messages of `len` bytes, tagged or not. The next receive is posted before the send. */
static int message_latency(struct side *s, uint64_t n, size_t len, bool tagged)
{
    struct fi_context context;
    uint8_t *in = s->memory + 1024, *out = s->memory + 2048;
    void *desc = fi_mr_desc(s->mr);
    uint64_t seen = s->completions;
    for (uint64_t i = 0; i <= n; i++) { /* the last round posts no further receive */
        if (i < n) {
            if (tagged)
                RETRY(s, "fi_trecv", fi_trecv(s->ep, in, len, desc, s->peer, 1, 0, &context));
            else
                RETRY(s, "fi_recv", fi_recv(s->ep, in, len, desc, s->peer, &context));
        }
        if (i == 0 && s->rank == 1)
            goto wait; /* rank 1 starts by listening */
        if (i == n && s->rank == 0)
            break;
        if (tagged)
            RETRY(s, "fi_tinject", fi_tinject(s->ep, out, len, s->peer, 1));
        else
            RETRY(s, "fi_inject", fi_inject(s->ep, out, len, s->peer));
        if (i == n)
            break;
    wait:
        if (completed(s, ++seen))
            return -1;
    }
    return 0;
}

/* Posts large buffers that are used up. */
static int post_large(struct side *s)
{
    static struct fi_context contexts[LARGE];
    static uint8_t *large;
    static uint64_t posted;
    size_t least = 4096;
    void *none = NULL;
    if (!large && !(large = aligned_alloc(4096, (size_t)LARGE * LARGE_BYTES)))
        return -1;
    if (posted == 0 &&
        failed("FI_OPT_MIN_MULTI_RECV", fi_setopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least)))
        return -1;
    for (; posted < s->used + LARGE; posted++) {
        struct iovec at = {.iov_base = large + posted % LARGE * LARGE_BYTES, .iov_len = LARGE_BYTES};
        struct fi_msg m = {.msg_iov = &at, .desc = &none, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &contexts[posted % LARGE]};
        RETRY(s, "fi_recvmsg", fi_recvmsg(s->ep, &m, FI_MULTI_RECV));
    }
    return 0;
}

/* Small messages from rank 0, one after the other, until rank 1 has all of them. */
static int send_rate(struct side *s, uint64_t n, size_t len)
{
    static struct fi_context contexts[WINDOW];
    uint64_t before = s->completions, posted = 0;
    if (s->rank == 0) {
        for (uint64_t i = 0; i < n; i++)
            RETRY(s, "fi_inject", fi_inject(s->ep, s->memory + WORDS, len, s->peer));
        while (atomic_load_explicit(&s->control->received, memory_order_acquire) < n)
            if (progress(s))
                return -1;
        atomic_store_explicit(&s->control->received, 0, memory_order_release);
        return 0;
    }
    while (s->completions - before < n) {
        if (getenv("PEER_MULTI")) {
            if (post_large(s) || progress(s))
                return -1;
            continue;
        }
        for (; posted < n && posted < s->completions - before + WINDOW; posted++)
            RETRY(s, "fi_recv", fi_recv(s->ep, s->memory + WORDS, len, fi_mr_desc(s->mr), FI_ADDR_UNSPEC, &contexts[posted % WINDOW]));
        if (progress(s))
            return -1;
    }
    atomic_store_explicit(&s->control->received, n, memory_order_release);
    while (atomic_load_explicit(&s->control->received, memory_order_acquire))
        if (progress(s))
            return -1;
    return 0;
}

/* Rank 0's part of the one-sided tests; rank 1 only makes progress. */
static int compare_swap(struct side *s, uint64_t n)
{
    struct fi_context context;
    uint64_t operand, compare, result;
    void *desc = fi_mr_desc(s->mr);
    (void)desc;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t want = s->completions + 1;
        compare = 0;
        operand = 0;
        RETRY(s, "fi_compare_atomic",
              fi_compare_atomic(s->ep, &operand, 1, NULL, &compare, NULL, &result, NULL, s->peer, theirs(s, 512), s->theirs.key, FI_UINT64,
                                FI_CSWAP, &context));
        if (completed(s, want))
            return -1;
    }
    return 0;
}

/* A write that is complete when its bytes are at the target, as puts of weft are. */
static int64_t confirmed_write(struct side *s, const void *local, size_t len, void *desc, struct fi_context *c)
{
    struct iovec here = {.iov_base = (void *)(uintptr_t)local, .iov_len = len};
    struct fi_rma_iov there = {.addr = theirs(s, WORDS), .len = len, .key = s->theirs.key};
    struct fi_msg_rma m = {
        .msg_iov = &here, .desc = &desc, .iov_count = 1, .addr = s->peer, .rma_iov = &there, .rma_iov_count = 1, .context = c};
    return fi_writemsg(s->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

static int stream(struct side *s, uint64_t n, size_t len, bool writes)
{
    const bool confirmed = writes && getenv("PEER_CONFIRMED");
    static struct fi_context contexts[WINDOW];
    void *desc = fi_mr_desc(s->mr);
    uint8_t *local = s->memory + WORDS;
    uint64_t first = s->completions;
    for (uint64_t i = 0; i < n; i++) {
        if (i >= WINDOW && completed(s, first + i - WINDOW + 1))
            return -1;
        struct fi_context *c = &contexts[i % WINDOW];
        if (confirmed)
            RETRY(s, "fi_writemsg", confirmed_write(s, local, len, desc, c));
        else if (writes)
            RETRY(s, "fi_write", fi_write(s->ep, local, len, desc, s->peer, theirs(s, WORDS), s->theirs.key, c));
        else
            RETRY(s, "fi_read", fi_read(s->ep, local, len, desc, s->peer, theirs(s, WORDS), s->theirs.key, c));
    }
    if (completed(s, first + n))
        return -1;
    /* Writes are reported complete when they are queued. Commands are executed in order, so when one atomic has been answered, all earlier
     * writes are in the other process's memory. On a network a read is used instead, because not all providers have atomics. */
    return !writes ? 0 : getenv("PEER_ADDRESSES") ? stream(s, 1, 8, false) : compare_swap(s, 1);
}

static int one_sided(struct side *s, const struct spec *spec, uint64_t n)
{
    if (!strcmp(spec->test, "cswap_lat"))
        return compare_swap(s, n);
    return stream(s, n, spec->bytes, !strcmp(spec->test, "put_bw"));
}

static int test(struct side *s, const struct spec *spec, uint32_t number)
{
    uint64_t start = 0, elapsed, n = spec->iterations;
    bool put = !strcmp(spec->test, "put_lat");
    bool message = !strcmp(spec->test, "msg_lat"), tagged = !strcmp(spec->test, "tag_lat");

    if (meet(s, 2 * number + 1))
        return -1;
    memset(s->memory, 0, WORDS);
    if (meet(s, 2 * number + 2))
        return -1;
    if (!strcmp(spec->test, "send_rate")) {
        if (send_rate(s, spec->warmup, spec->bytes))
            return -1;
        start = spec_now_ns();
        if (send_rate(s, n, spec->bytes))
            return -1;
        if (s->rank == 0)
            spec_value(spec, (double)n * 1e3 / (double)(spec_now_ns() - start));
        return 0;
    }
    if (put || message || tagged) {
        if (put ? put_latency(s, spec->warmup, 1) : message_latency(s, spec->warmup, spec->bytes, tagged))
            return -1;
        start = spec_now_ns();
        if (put ? put_latency(s, n, spec->warmup + 1) : message_latency(s, n, spec->bytes, tagged))
            return -1;
        elapsed = spec_now_ns() - start;
        if (s->rank == 0)
            spec_value(spec, put ? spec_us(elapsed, 2 * n) : spec_us(elapsed, n));
        return 0;
    }
    if (s->rank == 1) {
        while (atomic_load_explicit(&s->control->done, memory_order_acquire) <= number)
            if (progress(s))
                return -1;
        return 0;
    }
    if (one_sided(s, spec, spec->warmup))
        return -1;
    start = spec_now_ns();
    if (one_sided(s, spec, n))
        return -1;
    elapsed = spec_now_ns() - start;
    atomic_store_explicit(&s->control->done, number + 1, memory_order_release);
    spec_value(spec, !strcmp(spec->test, "cswap_lat") ? spec_us(elapsed, n) : spec_gbs(elapsed, spec->bytes, n));
    return 0;
}

int main(int argc, char **argv)
{
    static struct spec specs[64];
    static const char *known[] = {"put_lat", "msg_lat", "tag_lat", "cswap_lat", "put_bw", "get_bw", "send_rate"};
    uint64_t largest = 0;
    if (argc < 2 || argc > 65) {
        fprintf(stderr, "usage: %s TEST:BYTES:ITERATIONS:WARMUP...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        struct spec *s = &specs[i - 1];
        bool found = false;
        if (spec_parse(s, argv[i]))
            return 2;
        for (size_t k = 0; k < sizeof(known) / sizeof(*known); k++)
            found = found || !strcmp(s->test, known[k]);
        if (!found) {
            fprintf(stderr, "libfabric: no test '%s'\n", s->test);
            return 2;
        }
        largest = s->bytes > largest ? s->bytes : largest;
    }

    int socks[2];
    struct control *control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (control == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, socks)) {
        perror("libfabric");
        return 1;
    }
    pid_t child = fork();
    if (child < 0) {
        perror("libfabric: fork");
        return 1;
    }
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* the child polls, and would poll for ever */
    struct side s = {.rank = child == 0, .control = control};
    s.sock = socks[s.rank];
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)s.rank, &set);
    sched_setaffinity(0, sizeof(set), &set);
    s.memory_len = WORDS + largest;
    s.memory = mmap(NULL, s.memory_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int rc = 1;
    if (s.memory == MAP_FAILED) {
        perror("libfabric: memory");
        goto out;
    }
    memset(s.memory, 1, s.memory_len);
    if (side_open(&s))
        goto out;
    rc = 0;
    for (uint32_t i = 0; i < (uint32_t)argc - 1 && !rc; i++)
        rc = test(&s, &specs[i], i) ? 1 : 0;
    if (!rc && meet(&s, 2 * (uint32_t)argc + 2))
        rc = 1;
    side_close(&s);
out:
    if (child > 0) {
        int status = 0;
        if (rc)
            kill(child, SIGTERM); /* the child may be waiting for this process */
        waitpid(child, &status, 0);
        return rc || status ? 1 : 0;
    }
    return rc;
}
