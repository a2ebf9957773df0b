/* SPDX-License-Identifier: MIT
 *
 * The conformance suite: small checks of what a verbs device does. It uses only the public interface (libibverbs' headers of rdma-core 44),
 * so the same program tests softverbs and a real kernel's devices.
 *
 * A check is a function and a name. It runs in a child process of the harness (harness.c), so a crash or a hang costs one check. A check
 * returns nothing and cleans up nothing: what it makes with the kit (kit.c) is destroyed at its end, newest first. A want() that does not
 * hold ends the check at once. Destroying is a check of its own: if it fails, the whole check fails.
 */
#ifndef SOFTVERBS_CONFORMANCE_CONF_H
#define SOFTVERBS_CONFORMANCE_CONF_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* What a check needs. If the device does not have it, the check is skipped, with the reason. */
enum need {
    NEED_UC = 1 << 0,
    NEED_UD = 1 << 1,
    NEED_SRQ = 1 << 2,
    NEED_ATOMIC = 1 << 3,
    NEED_INLINE = 1 << 4,
    NEED_SGE4 = 1 << 5, /* at least four scatter/gather elements */
    NEED_CQ_EX = 1 << 6,
    NEED_QP_EX = 1 << 7,
    NEED_RC = 1 << 8, /* RC QPs; a check that makes one need not name this: the kit tests for it */
};

struct t;

struct check {
    const char *name;
    void (*fn)(struct t *t, long arg);
    long arg; /* a parameter, so that one function can be several checks */
    unsigned needs;
};

/* Each file has one list, which ends with an empty entry. harness.c uses all of them. */
extern const struct check device_checks[], mr_checks[], access_checks[], cq_checks[], channel_checks[], cq_ex_checks[], qp_create_checks[],
    qp_state_checks[], qp_query_checks[], queue_checks[], rc_checks[], rc_error_checks[], uc_checks[], ud_checks[], lid_checks[],
    srq_checks[], qp_ex_checks[], event_checks[], process_checks[], thread_checks[], optional_checks[];

/* The second process of a check with two: this program started again as conformance --peer NAME (process.c). */
int peer_main(struct t *t, const char *name);

enum outcome { OUT_OK, OUT_NOT_OK, OUT_SKIP };

struct kept {
    void *what;
    int (*undo)(void *what);
    const char *verb;
};

/* A running check: the device under test, and what the check has made so far. */
struct t {
    const struct check *check;
    const char *device;   /* the device requested by name; NULL: the first */
    const char *peer_run; /* the command that starts the second process of a check; may be NULL; see process.c */
    int asked_gid;        /* the GID requested by index; -1: the first IPv4-mapped one, or else 0 */
    int slow;             /* a factor for the length of all waits */
    int wait_s;           /* how long a check waits for something that must come */
    struct ibv_context *ctx;
    struct ibv_device_attr attr;
    struct ibv_port_attr port_attr;
    uint8_t port;
    uint8_t gid_index;
    union ibv_gid gid;
    unsigned has, probed; /* bits of enum need, found out when first needed */
    jmp_buf out;
    enum outcome outcome;
    char why[512];
    struct kept kept[512];
    int n_kept;
};

/* ---- Expectations (kit.c) */

_Noreturn void fail(struct t *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void skip(struct t *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *err_name(int err);
void want_ret_(struct t *t, long long ret, int err, const char *what, int line);
void want_eq_(struct t *t, long long got, long long want, const char *got_s, const char *want_s, int line);

#define want(t, cond) ((cond) ? (void)0 : fail((t), "line %d: expected %s", __LINE__, #cond))
/* For a verb that returns 0 or a positive errno value. */
#define want_ret(t, expr, err) want_ret_((t), (expr), (err), #expr, __LINE__)
#define want_ok(t, expr)       want_ret_((t), (expr), 0, #expr, __LINE__)
#define want_eq(t, got, exp)   want_eq_((t), (long long)(got), (long long)(exp), #got, #exp, __LINE__)
/* For a verb that returns NULL or -1 and sets errno. */
#define want_null(t, expr, err)                                                \
    do {                                                                       \
        errno = 0;                                                             \
        const void *ptr_ = (expr);                                             \
        want_ret_((t), ptr_ ? 0 : errno ? errno : -1, (err), #expr, __LINE__); \
    } while (0)
#define want_minus(t, expr, err)                                                      \
    do {                                                                              \
        errno = 0;                                                                    \
        long long ret_ = (expr);                                                      \
        want_ret_((t), ret_ == -1 ? errno : ret_ ? ret_ : 0, (err), #expr, __LINE__); \
    } while (0)

/* ---- Resources (kit.c). If one cannot be made the check fails. They are destroyed at the end of the check. */

void keep(struct t *t, void *what, int (*undo)(void *), const char *verb);
void drop(struct t *t, void *what);   /* destroys it now; this must succeed */
void forget(struct t *t, void *what); /* the check has destroyed it itself */
void undo_all(struct t *t);

void *mem_new(struct t *t, size_t len); /* mapped, zeroed, page-aligned */
struct ibv_pd *pd_new(struct t *t);
struct ibv_mr *mr_new(struct t *t, struct ibv_pd *pd, void *addr, size_t len, int access);
struct ibv_comp_channel *channel_new(struct t *t);
struct ibv_cq *cq_new(struct t *t, int cqe, struct ibv_comp_channel *channel);
struct ibv_srq *srq_new(struct t *t, struct ibv_pd *pd, uint32_t max_wr);
struct ibv_qp *qp_new(struct t *t, struct ibv_pd *pd, struct ibv_qp_init_attr *init);
struct ibv_qp *qp_simple(struct t *t, struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type);
struct ibv_ah *ah_new(struct t *t, struct ibv_pd *pd); /* an address handle that leads to the port itself */
void keep_cq_ex(struct t *t, struct ibv_cq_ex *cq);
void keep_qp(struct t *t, struct ibv_qp *qp);

int open_device(struct t *t); /* 0, or -1 with t->why */
bool has(struct t *t, unsigned need);

#define ALL_ACCESS                                                               \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
     (t->attr.atomic_cap != IBV_ATOMIC_NONE ? IBV_ACCESS_REMOTE_ATOMIC : 0))

/* ---- Queue pairs and their states (pair.c) */

#define QKEY        0x11111111u
#define ANY_TIMEOUT 14 /* 67 ms: how long a connected QP waits for an answer, unless a check sets another time-out */

/* Fills in the attributes that a transition of the state machine needs. Returns the mask for them. */
int attr_init(const struct t *t, enum ibv_qp_type type, struct ibv_qp_attr *attr);
int attr_rtr(const struct t *t, enum ibv_qp_type type, struct ibv_qp_attr *attr, uint32_t dest_qpn);
int attr_rts(const struct t *t, enum ibv_qp_type type, struct ibv_qp_attr *attr);
void fill_ah(const struct t *t, struct ibv_ah_attr *ah);
void to_init(struct t *t, struct ibv_qp *qp);
void to_rtr(struct t *t, struct ibv_qp *qp, uint32_t dest_qpn);
void to_rts(struct t *t, struct ibv_qp *qp);
int to_state(struct ibv_qp *qp, enum ibv_qp_state state); /* sets the state, and no other attribute */
enum ibv_qp_state state_of(struct t *t, struct ibv_qp *qp);
void wait_state(struct t *t, struct ibv_qp *qp, enum ibv_qp_state state);

/* Two QPs of this device that talk to each other, each with its own buffer, region and CQs. */
struct end {
    struct ibv_qp *qp;
    struct ibv_cq *scq, *rcq;
    char *buf;
    struct ibv_mr *mr;
};

struct pair {
    struct ibv_pd *pd;
    struct end a, b;
};

struct pair_opt {          /* options of a pair; a member that is 0 means its default */
    enum ibv_qp_type type; /* default: RC */
    size_t len;            /* bytes of a buffer; default: 64 KiB */
    int access;            /* access of both regions; default: ALL_ACCESS */
    int b_access;          /* access of b's region; default: as `access` */
    unsigned qp_access;    /* access flags of both QPs; default: ALL_ACCESS */
    uint32_t depth;        /* requests in each queue; default: 16 */
    int cqe;               /* entries of each CQ; default: depth + 4 */
    int sig_all;
    int rnr_retry;                    /* default: 7; -1 means 0 retries */
    int timeout;                      /* default: ANY_TIMEOUT */
    int retry_cnt;                    /* default: 7 */
    bool no_rts;                      /* leave both in RTR */
    struct ibv_srq *srq;              /* the shared receive queue of b */
    struct ibv_comp_channel *channel; /* the channel of b's receive CQ */
    struct ibv_pd *pd;                /* the domain to use; default: a new one */
};

void pair_new(struct t *t, struct pair *p, struct pair_opt opt);
#define PAIR(t, p, ...) pair_new((t), (p), (struct pair_opt){__VA_ARGS__})

/* ---- Requests and completions (pair.c) */

struct ibv_sge sge_at(const struct end *e, size_t off, uint32_t len);
/* A signalled request with one element, or none if sge is NULL. The caller adds the fields of RDMA and atomics. */
struct ibv_send_wr wr_of(enum ibv_wr_opcode opcode, uint64_t wr_id, struct ibv_sge *sge);
struct ibv_send_wr wr_rdma(enum ibv_wr_opcode opcode, uint64_t wr_id, struct ibv_sge *sge, const struct end *to, size_t off);
int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr);
void send_ok(struct t *t, struct ibv_qp *qp, struct ibv_send_wr *wr);
void recv_ok(struct t *t, struct end *e, uint64_t wr_id, size_t off, uint32_t len);
int post_recv(struct ibv_qp *qp, uint64_t wr_id, struct ibv_sge *sge, int n);

double now(void);
void nap(int ms);
struct ibv_wc wait_wc(struct t *t, struct ibv_cq *cq);
/* Waits for the next completion, which must be that of this request with this status. */
struct ibv_wc wait_for(struct t *t, struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status);
void quiet(struct t *t, struct ibv_cq *cq); /* no completion may come for a while */
void fill(char *buf, size_t len, unsigned seed);
void want_filled(struct t *t, const char *buf, size_t len, unsigned seed);
bool readable(int fd, int ms);
/* Waits for the next asynchronous event of the context, which must come in time and be of this type. Acknowledges it. */
struct ibv_async_event wait_event(struct t *t, enum ibv_event_type type);

#define WAIT_S 10 /* for something that must come, even if a process gets no processor for a while */

/* How many ms to wait before concluding that an event does not come. A device needs microseconds, an emulated machine more. */
static inline int quiet_ms(const struct t *t)
{
    return t->slow > 1 ? 30 * t->slow : 10;
}

#endif
