/* SPDX-License-Identifier: MIT
 *
 * The kit of the checks: expectations, the device, and objects that are destroyed at the end of a check.
 */
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conf.h"

static void why(struct t *t, const char *fmt, va_list ap)
{
    vsnprintf(t->why, sizeof t->why, fmt, ap);
}

_Noreturn void fail(struct t *t, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    why(t, fmt, ap);
    va_end(ap);
    t->outcome = OUT_NOT_OK;
    longjmp(t->out, 1);
}

_Noreturn void skip(struct t *t, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    why(t, fmt, ap);
    va_end(ap);
    t->outcome = OUT_SKIP;
    longjmp(t->out, 1);
}

const char *err_name(int err)
{
    static _Thread_local char text[24];
    const char *name = err > 0 ? strerrorname_np(err) : NULL;

    if (err == 0)
        return "success";
    if (!name) {
        snprintf(text, sizeof text, "%d", err);
        name = text;
    }
    return name;
}

void want_ret_(struct t *t, long long ret, int err, const char *what, int line)
{
    if (ret == err)
        return;
    char expected[32];
    snprintf(expected, sizeof expected, "%s", err_name(err));
    fail(t, "line %d: %s: expected %s, came %s", line, what, expected, err_name((int)ret));
}

void want_eq_(struct t *t, long long got, long long exp, const char *got_s, const char *exp_s, int line)
{
    if (got != exp)
        fail(t, "line %d: %s: expected %s (%lld), came %lld", line, got_s, exp_s, exp, got);
}

/* ---- Objects that are destroyed at the end of the check */

void keep(struct t *t, void *what, int (*undo)(void *), const char *verb)
{
    if (t->n_kept == (int)(sizeof t->kept / sizeof t->kept[0]))
        fail(t, "the check makes more than the harness can keep");
    t->kept[t->n_kept++] = (struct kept){what, undo, verb};
}

static struct kept take(struct t *t, void *what)
{
    for (int i = t->n_kept - 1; i >= 0; i--) {
        if (t->kept[i].what != what)
            continue;
        struct kept k = t->kept[i];
        memmove(&t->kept[i], &t->kept[i + 1], (size_t)(t->n_kept - i - 1) * sizeof k);
        t->n_kept--;
        return k;
    }
    fail(t, "the check drops what it does not have");
}

void drop(struct t *t, void *what)
{
    struct kept k = take(t, what);
    int ret = k.undo(k.what);

    if (ret)
        fail(t, "%s: expected success, came %s", k.verb, err_name(ret));
}

void forget(struct t *t, void *what)
{
    take(t, what);
}

void undo_all(struct t *t)
{
    while (t->n_kept > 0) {
        struct kept k = t->kept[--t->n_kept];
        int ret = k.undo(k.what);

        if (ret && t->outcome == OUT_OK) {
            t->outcome = OUT_NOT_OK;
            snprintf(t->why, sizeof t->why, "cleaning up: %s: %s", k.verb, err_name(ret));
        }
    }
}

#define UNDO(verb, type)                 \
    static int undo_##verb(void *what)   \
    {                                    \
        return ibv_##verb((type *)what); \
    }
UNDO(dealloc_pd, struct ibv_pd)
UNDO(dereg_mr, struct ibv_mr)
UNDO(destroy_comp_channel, struct ibv_comp_channel)
UNDO(destroy_cq, struct ibv_cq)
UNDO(destroy_srq, struct ibv_srq)
UNDO(destroy_qp, struct ibv_qp)
UNDO(destroy_ah, struct ibv_ah)

/* The length of a mapping is stored in front of it, so that unmapping needs only the address. */
static int undo_mem(void *what)
{
    size_t *head = (size_t *)((char *)what - 4096);

    return munmap(head, *head) ? errno : 0;
}

void *mem_new(struct t *t, size_t len)
{
    size_t whole = 4096 + ((len + 4095) & ~(size_t)4095);
    size_t *head = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (head == MAP_FAILED)
        fail(t, "mmap of %zu bytes: %s", whole, err_name(errno));
    *head = whole;
    keep(t, (char *)head + 4096, undo_mem, "munmap");
    return (char *)head + 4096;
}

struct ibv_pd *pd_new(struct t *t)
{
    struct ibv_pd *pd = ibv_alloc_pd(t->ctx);

    if (!pd)
        fail(t, "ibv_alloc_pd: %s", err_name(errno));
    keep(t, pd, undo_dealloc_pd, "ibv_dealloc_pd");
    return pd;
}

struct ibv_mr *mr_new(struct t *t, struct ibv_pd *pd, void *addr, size_t len, int access)
{
    struct ibv_mr *mr = ibv_reg_mr(pd, addr, len, (unsigned)access);

    if (!mr)
        fail(t, "ibv_reg_mr(%zu bytes, access 0x%x): %s", len, access, err_name(errno));
    keep(t, mr, undo_dereg_mr, "ibv_dereg_mr");
    return mr;
}

struct ibv_comp_channel *channel_new(struct t *t)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(t->ctx);

    if (!channel)
        fail(t, "ibv_create_comp_channel: %s", err_name(errno));
    keep(t, channel, undo_destroy_comp_channel, "ibv_destroy_comp_channel");
    return channel;
}

struct ibv_cq *cq_new(struct t *t, int cqe, struct ibv_comp_channel *channel)
{
    struct ibv_cq *cq = ibv_create_cq(t->ctx, cqe, NULL, channel, 0);

    if (!cq)
        fail(t, "ibv_create_cq(%d): %s", cqe, err_name(errno));
    keep(t, cq, undo_destroy_cq, "ibv_destroy_cq");
    return cq;
}

void keep_cq_ex(struct t *t, struct ibv_cq_ex *cq)
{
    if (!cq)
        fail(t, "ibv_create_cq_ex: %s", err_name(errno));
    keep(t, ibv_cq_ex_to_cq(cq), undo_destroy_cq, "ibv_destroy_cq");
}

void keep_qp(struct t *t, struct ibv_qp *qp)
{
    if (!qp)
        fail(t, "creating a QP: %s", err_name(errno));
    keep(t, qp, undo_destroy_qp, "ibv_destroy_qp");
}

struct ibv_srq *srq_new(struct t *t, struct ibv_pd *pd, uint32_t max_wr)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = max_wr, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);

    if (!srq)
        fail(t, "ibv_create_srq(%u): %s", max_wr, err_name(errno));
    keep(t, srq, undo_destroy_srq, "ibv_destroy_srq");
    return srq;
}

struct ibv_qp *qp_new(struct t *t, struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    struct ibv_qp *qp = ibv_create_qp(pd, init);

    if (!qp && init->qp_type == IBV_QPT_RC && !has(t, NEED_RC))
        skip(t, "the device has no RC");
    if (!qp)
        fail(t, "ibv_create_qp(type %d): %s", (int)init->qp_type, err_name(errno));
    keep(t, qp, undo_destroy_qp, "ibv_destroy_qp");
    return qp;
}

struct ibv_qp *qp_simple(struct t *t, struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };

    return qp_new(t, pd, &init);
}

struct ibv_ah *ah_new(struct t *t, struct ibv_pd *pd)
{
    struct ibv_ah_attr attr;

    fill_ah(t, &attr);
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    if (!ah)
        fail(t, "ibv_create_ah: %s", err_name(errno));
    keep(t, ah, undo_destroy_ah, "ibv_destroy_ah");
    return ah;
}

/* ---- The device under test */

static int choose_gid(struct t *t)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    union ibv_gid gid;

    if (t->asked_gid >= 0) {
        t->gid_index = (uint8_t)t->asked_gid;
        return ibv_query_gid(t->ctx, t->port, t->asked_gid, &t->gid);
    }
    for (int i = 0; i < t->port_attr.gid_tbl_len && i < 255; i++) {
        if (ibv_query_gid(t->ctx, t->port, i, &gid))
            continue;
        if (i == 0 || !memcmp(gid.raw, mapped, sizeof mapped)) {
            t->gid = gid;
            t->gid_index = (uint8_t)i;
            if (i > 0)
                break;
        }
    }
    return 0;
}

int open_device(struct t *t)
{
    struct ibv_device **list = ibv_get_device_list(NULL), *found = NULL;

    for (int i = 0; list && list[i] && !found; i++) {
        if (!t->device || !strcmp(t->device, ibv_get_device_name(list[i])))
            found = list[i];
    }
    if (found)
        t->ctx = ibv_open_device(found);
    if (!t->ctx)
        snprintf(t->why, sizeof t->why, found ? "the device does not open: %s" : "no such device%s", found ? err_name(errno) : "");
    if (list)
        ibv_free_device_list(list);
    if (!t->ctx)
        return -1;
    t->port = 1;
    if (ibv_query_device(t->ctx, &t->attr) || ibv_query_port(t->ctx, t->port, &t->port_attr) || choose_gid(t)) {
        snprintf(t->why, sizeof t->why, "the device, its port 1 or its GID cannot be queried");
        return -1;
    }
    return 0;
}

/* No attribute shows which types of QP a device has, so try to make one. */
static bool makes_qp(struct t *t, enum ibv_qp_type type)
{
    struct ibv_pd *pd = ibv_alloc_pd(t->ctx);
    struct ibv_cq *cq = ibv_create_cq(t->ctx, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = {1, 1, 1, 1, 0},
    };
    struct ibv_qp *qp = pd && cq ? ibv_create_qp(pd, &init) : NULL;
    bool yes = qp != NULL;

    if (qp)
        ibv_destroy_qp(qp);
    if (cq)
        ibv_destroy_cq(cq);
    if (pd)
        ibv_dealloc_pd(pd);
    return yes;
}

static bool makes_qp_ex(struct t *t, uint32_t inline_data)
{
    struct ibv_pd *pd = ibv_alloc_pd(t->ctx);
    struct ibv_cq *cq = ibv_create_cq(t->ctx, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {1, 1, 1, 1, inline_data},
        .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | (inline_data ? 0 : IBV_QP_INIT_ATTR_SEND_OPS_FLAGS),
        .send_ops_flags = inline_data ? 0 : IBV_QP_EX_WITH_SEND,
    };
    struct ibv_qp *qp = pd && cq ? ibv_create_qp_ex(t->ctx, &init) : NULL;
    bool yes = qp != NULL;

    if (qp)
        ibv_destroy_qp(qp);
    if (cq)
        ibv_destroy_cq(cq);
    if (pd)
        ibv_dealloc_pd(pd);
    return yes;
}

static bool makes_cq_ex(struct t *t)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 4};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(t->ctx, &init);

    if (cq)
        ibv_destroy_cq(ibv_cq_ex_to_cq(cq));
    return cq != NULL;
}

bool has(struct t *t, unsigned need)
{
    if (!(t->probed & need)) {
        bool yes = need == NEED_RC       ? makes_qp(t, IBV_QPT_RC)
                   : need == NEED_UC     ? makes_qp(t, IBV_QPT_UC)
                   : need == NEED_UD     ? makes_qp(t, IBV_QPT_UD)
                   : need == NEED_SRQ    ? t->attr.max_srq > 0
                   : need == NEED_ATOMIC ? t->attr.atomic_cap != IBV_ATOMIC_NONE
                   : need == NEED_INLINE ? makes_qp_ex(t, 64)
                   : need == NEED_SGE4   ? t->attr.max_sge >= 4
                   : need == NEED_CQ_EX  ? makes_cq_ex(t)
                   : need == NEED_QP_EX  ? makes_qp_ex(t, 0)
                                         : false;

        t->probed |= need;
        t->has |= yes ? need : 0;
    }
    return t->has & need;
}
