/* SPDX-License-Identifier: MIT
 *
 * Measures any libibverbs, which it loads with dlopen so that its memory can be measured:
 *
 *   connect   two processes open the first device, make all that a queue pair needs, and connect:
 *             milliseconds until both are ready to send. Each time with new processes, which have not
 *             touched the library before.
 *   memory    MiB by which this process grows from before it loads the library until one queue
 *             pair is ready to send; a page shared by N processes counts as 1/N
 */
#include "spec.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

/* verbs.h defines some of these names as macros; here the functions themselves are needed. */
#undef ibv_reg_mr
#undef ibv_query_port

static struct {
    struct ibv_device **(*get_device_list)(int *);
    void (*free_device_list)(struct ibv_device **);
    struct ibv_context *(*open_device)(struct ibv_device *);
    int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
    struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
    struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
    int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
    int (*destroy_qp)(struct ibv_qp *);
    int (*destroy_cq)(struct ibv_cq *);
    int (*dereg_mr)(struct ibv_mr *);
    int (*dealloc_pd)(struct ibv_pd *);
    int (*close_device)(struct ibv_context *);
} verbs;

static bool load(void)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
#define SYMBOL(name)                       \
    {                                      \
        "ibv_" #name, (void **)&verbs.name \
    }
    const struct {
        const char *name;
        void **to;
    } symbols[] = {
        SYMBOL(get_device_list), SYMBOL(free_device_list), SYMBOL(open_device), SYMBOL(query_gid),    SYMBOL(alloc_pd),
        SYMBOL(reg_mr),          SYMBOL(create_cq),        SYMBOL(create_qp),   SYMBOL(modify_qp),    SYMBOL(destroy_qp),
        SYMBOL(destroy_cq),      SYMBOL(dereg_mr),         SYMBOL(dealloc_pd),  SYMBOL(close_device),
    };
#undef SYMBOL
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        *symbols[i].to = dlsym(library, symbols[i].name);
        if (!*symbols[i].to) {
            fprintf(stderr, "libibverbs.so.1 has no %s\n", symbols[i].name);
            return false;
        }
    }
    return true;
}

struct card {
    union ibv_gid gid;
    uint32_t number;
};

struct node {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct card card;
    char memory[4096];
};

static bool make(struct node *n)
{
    int count = 0;
    struct ibv_device **list = verbs.get_device_list(&count);
    if (!list || !count) {
        fprintf(stderr, "there is no device\n");
        return false;
    }
    n->context = verbs.open_device(list[0]);
    verbs.free_device_list(list);
    if (!n->context || verbs.query_gid(n->context, 1, 0, &n->card.gid)) {
        return false;
    }
    n->pd = verbs.alloc_pd(n->context);
    n->mr = n->pd ? verbs.reg_mr(n->pd, n->memory, sizeof(n->memory), IBV_ACCESS_LOCAL_WRITE) : NULL;
    n->cq = verbs.create_cq(n->context, 256, NULL, NULL, 0);
    if (!n->mr || !n->cq) {
        return false;
    }
    struct ibv_qp_init_attr init = {
        .send_cq = n->cq,
        .recv_cq = n->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
    };
    n->qp = verbs.create_qp(n->pd, &init);
    if (!n->qp) {
        return false;
    }
    n->card.number = n->qp->qp_num;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    };
    return !verbs.modify_qp(n->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static bool join(struct node *n, const struct card *peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = peer->number,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 1}},
    };
    if (verbs.modify_qp(n->qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                            IBV_QP_MIN_RNR_TIMER)) {
        return false;
    }
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    return !verbs.modify_qp(n->qp, &attr,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static bool finish(struct node *n)
{
    return !verbs.destroy_qp(n->qp) && !verbs.destroy_cq(n->cq) && !verbs.dereg_mr(n->mr) && !verbs.dealloc_pd(n->pd) &&
           !verbs.close_device(n->context);
}

static bool whole(ssize_t got, size_t wanted)
{
    return got == (ssize_t)wanted;
}

/* One side of a connection. Writes to `out` the time at which it was ready, in ns. */
static int side(int from, int to, int out)
{
    static struct node n;
    struct card peer;
    char word;
    if (!load() || !whole(write(to, "r", 1), 1) || !whole(read(from, &word, 1), 1)) { /* both sides begin at the same time */
        return 1;
    }
    uint64_t begin = spec_now_ns();
    if (!make(&n) || !whole(write(to, &n.card, sizeof(n.card)), sizeof(n.card)) || !whole(read(from, &peer, sizeof(peer)), sizeof(peer)) ||
        !join(&n, &peer)) {
        perror("connect");
        return 1;
    }
    uint64_t taken = spec_now_ns() - begin;
    return !finish(&n) || !whole(write(out, &taken, sizeof(taken)), sizeof(taken));
}

/* Returns the nanoseconds until both sides were ready, or 0. */
static uint64_t once(void)
{
    int a[2], b[2], out[2];
    uint64_t slower = 0;
    if (pipe(a) || pipe(b) || pipe(out)) {
        return 0;
    }
    pid_t child[2];
    for (int i = 0; i < 2; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            /* each process keeps only its own end, so that the death of one side ends the other's wait */
            close(i ? a[0] : b[0]);
            close(i ? b[1] : a[1]);
            close(out[0]);
            _exit(i ? side(b[0], a[1], out[1]) : side(a[0], b[1], out[1]));
        }
    }
    close(a[0]), close(a[1]), close(b[0]), close(b[1]), close(out[1]);
    bool good = true;
    for (int i = 0; i < 2; i++) {
        uint64_t taken;
        good = whole(read(out[0], &taken, sizeof(taken)), sizeof(taken)) && good;
        slower = good && taken > slower ? taken : slower;
    }
    close(out[0]);
    for (int i = 0; i < 2; i++) {
        int status;
        good = child[i] > 0 && waitpid(child[i], &status, 0) == child[i] && status == 0 && good;
    }
    return good ? slower : 0;
}

/* Bytes of this process's memory; a page shared by N processes counts as 1/N. */
static uint64_t resident(void)
{
    char line[256];
    unsigned long long kib, sum = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "Pss: %llu kB", &kib) == 1) {
            sum = kib * 1024;
        }
    }
    if (f) {
        fclose(f);
    }
    return sum;
}

int main(int count, char **word)
{
    static struct node n;
    for (int i = 1; i < count; i++) {
        struct spec s;
        if (spec_parse(&s, word[i])) {
            return 2;
        }
        if (!strcmp(s.test, "connect")) {
            double sum = 0;
            bool good = true;
            for (uint64_t k = 0; k < s.warmup + s.iterations && good; k++) {
                uint64_t taken = once();
                good = taken != 0;
                sum += k < s.warmup ? 0 : (double)taken;
            }
            if (good) {
                spec_value(&s, sum / 1e6 / (double)s.iterations);
            } else {
                spec_missing(&s, "the two sides did not connect");
            }
        } else if (!strcmp(s.test, "memory")) {
            resident(); /* a first call, so that the memory that it needs is not counted */
            uint64_t before = resident();
            if (load() && make(&n) && join(&n, &n.card)) {
                uint64_t after = resident();
                spec_value(&s, (double)(after - before) / 1048576);
            } else {
                spec_missing(&s, "the queue pair could not be made");
            }
        } else {
            spec_missing(&s, "no such test");
        }
    }
    return 0;
}
