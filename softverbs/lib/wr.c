/* SPDX-License-Identifier: MIT
 *
 * The ibv_wr_* interface. Between wr_start and wr_complete, requests are collected, with copies of their elements and inline data.
 * wr_complete posts them as one chain. After an error nothing is posted.
 *
 * The arrays grow as needed, and are used again. While they grow they move, so requests refer to elements and bytes by index; wr_complete
 * converts indices to pointers.
 */
#include "lib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct built {
    struct ibv_send_wr wr;
    size_t first; /* index of the request's first element */
    size_t byte;  /* index of the inline data; the request then has one element, which stands for the data */
};

struct sv_builder {
    pthread_mutex_t mutex; /* held from wr_start to wr_complete or wr_abort */
    int error;
    size_t requests, elements, bytes; /* how many have been collected since wr_start */
    size_t request_room, element_room, byte_room;
    struct built *request;
    struct ibv_sge *element;
    uint8_t *byte;
};

static struct sv_builder *builder_of(struct ibv_qp_ex *ex)
{
    return sv_container(ex, struct sv_qp, ex)->builder;
}

static void *wr_grow(void *array, size_t *room, size_t wanted, size_t one)
{
    size_t count = *room ? *room : 16;
    void *larger;

    if (array && wanted <= *room) /* also allocates if nothing is wanted, because NULL means failure */
        return array;
    while (count < wanted)
        count *= 2;
    larger = realloc(array, count * one);
    if (larger)
        *room = count;
    return larger;
}

/* Returns the request to which setters apply; NULL after an error. */
static struct built *wr_last(struct sv_builder *builder)
{
    if (builder->error)
        return NULL;
    if (!builder->requests) {
        builder->error = EINVAL; /* a setter was called before any request */
        return NULL;
    }
    return &builder->request[builder->requests - 1];
}

/* ---- Start and end --------------------------------------------------------------------------------------------- */
static void wr_start(struct ibv_qp_ex *ex)
{
    struct sv_builder *builder = builder_of(ex);

    pthread_mutex_lock(&builder->mutex);
    builder->error = 0;
    builder->requests = builder->elements = builder->bytes = 0;
}

/* Returns the number of free slots in the send queue. ibv_post_send() finds at least as many, unless another thread posts. */
static uint64_t wr_room(const struct sv_qp *qp)
{
    uint64_t posted = atomic_load_explicit(&qp->shared->send_posted, memory_order_relaxed);
    uint64_t polled = atomic_load_explicit(&qp->send_polled, memory_order_relaxed);
    uint64_t used = posted - polled;

    return used < qp->send.limit ? qp->send.limit - used : 0;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
    struct sv_qp *qp = sv_container(ex, struct sv_qp, ex);
    struct sv_builder *builder = qp->builder;
    struct ibv_send_wr *bad;
    int error = builder->error;

    if (error || !builder->requests)
        goto out;
    /* Without this check, ibv_post_send() would post the part that fits; ibv_wr_complete() must post all or nothing. */
    if (builder->requests > 1 && sv_lib.profile->overdepth == SV_OVERDEPTH_REFUSE && builder->requests > wr_room(qp)) {
        error = sv_refuse(ENOMEM,
                          "ibv_wr_complete: queue pair 0x%06x: the send queue has no room for %zu requests: poll completions first, or ask "
                          "for a longer queue (max_send_wr)",
                          qp->base.qp_num, builder->requests);
        goto out;
    }
    for (size_t i = 0; i < builder->requests; i++) {
        struct built *one = &builder->request[i];

        one->wr.sg_list = one->wr.num_sge ? &builder->element[one->first] : NULL;
        one->wr.next = i + 1 < builder->requests ? &builder->request[i + 1].wr : NULL;
        if (one->wr.send_flags & IBV_SEND_INLINE && one->wr.num_sge)
            one->wr.sg_list->addr = (uintptr_t)(builder->byte + one->byte);
    }
    error = sv_post_send(&qp->base, &builder->request[0].wr, &bad);
out:
    pthread_mutex_unlock(&builder->mutex);
    return error;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
    pthread_mutex_unlock(&builder_of(ex)->mutex);
}

/* ---- Requests -------------------------------------------------------------------------------------------------- */
static struct ibv_send_wr *wr_add(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
    struct sv_builder *builder = builder_of(ex);
    struct built *larger, *one;

    if (builder->error)
        return NULL;
    larger = wr_grow(builder->request, &builder->request_room, builder->requests + 1, sizeof *builder->request);
    if (!larger) {
        builder->error = ENOMEM;
        return NULL;
    }
    builder->request = larger;
    one = &larger[builder->requests++];
    memset(one, 0, sizeof *one);
    one->wr.wr_id = ex->wr_id;
    one->wr.opcode = opcode;
    one->wr.send_flags = ex->wr_flags & ~(unsigned)IBV_SEND_INLINE; /* only the setters of inline data set IBV_SEND_INLINE */
    return &one->wr;
}

static void wr_send(struct ibv_qp_ex *ex)
{
    wr_add(ex, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
    struct ibv_send_wr *wr = wr_add(ex, IBV_WR_SEND_WITH_IMM);

    if (wr)
        wr->imm_data = imm;
}

static struct ibv_send_wr *add_remote(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t remote)
{
    struct ibv_send_wr *wr = wr_add(ex, opcode);

    if (wr) {
        wr->wr.rdma.rkey = rkey;
        wr->wr.rdma.remote_addr = remote;
    }
    return wr;
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote)
{
    add_remote(ex, IBV_WR_RDMA_WRITE, rkey, remote);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, __be32 imm)
{
    struct ibv_send_wr *wr = add_remote(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote);

    if (wr)
        wr->imm_data = imm;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote)
{
    add_remote(ex, IBV_WR_RDMA_READ, rkey, remote);
}

static void add_atomic(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t remote, uint64_t compare_add, uint64_t swap)
{
    struct ibv_send_wr *wr = wr_add(ex, opcode);

    if (wr) {
        wr->wr.atomic.rkey = rkey;
        wr->wr.atomic.remote_addr = remote;
        wr->wr.atomic.compare_add = compare_add;
        wr->wr.atomic.swap = swap;
    }
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, uint64_t compare, uint64_t swap)
{
    add_atomic(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, uint64_t value)
{
    add_atomic(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote, value, 0);
}

/* ---- Data and destinations --------------------------------------------------------------------------------------- */
static struct ibv_sge *add_elements(struct sv_builder *builder, struct built *one, size_t count)
{
    struct ibv_sge *larger = wr_grow(builder->element, &builder->element_room, builder->elements + count, sizeof *larger);

    if (!larger) {
        builder->error = ENOMEM;
        return NULL;
    }
    builder->element = larger;
    one->first = builder->elements;
    one->wr.num_sge = (int)count;
    builder->elements += count;
    return larger + one->first;
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *list)
{
    struct sv_builder *builder = builder_of(ex);
    struct built *one = wr_last(builder);
    struct ibv_sge *to;

    if (!one)
        return;
    if (count > sv_container(ex, struct sv_qp, ex)->send.sge_limit) {
        builder->error =
            sv_refuse(EINVAL, "ibv_wr_set_sge_list: queue pair 0x%06x: %zu elements: at most %u were granted; ask for more (max_send_sge)",
                      ex->qp_base.qp_num, count, sv_container(ex, struct sv_qp, ex)->send.sge_limit);
        return;
    }
    one->wr.send_flags &= ~(unsigned)IBV_SEND_INLINE;
    to = add_elements(builder, one, count);
    if (to && count)
        memcpy(to, list, count * sizeof *list);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t address, uint32_t length)
{
    const struct ibv_sge sge = {.addr = address, .length = length, .lkey = lkey};

    wr_set_sge_list(ex, 1, &sge);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_data_buf *list)
{
    struct sv_qp *qp = sv_container(ex, struct sv_qp, ex);
    struct sv_builder *builder = qp->builder;
    struct built *one = wr_last(builder);
    struct ibv_sge *sge;
    size_t total = 0;
    uint8_t *larger;

    if (!one)
        return;
    for (size_t i = 0; i < count && total <= qp->init.cap.max_inline_data; i++)
        total = list[i].length > qp->init.cap.max_inline_data ? SIZE_MAX : total + list[i].length;
    if (total > qp->init.cap.max_inline_data) {
        builder->error = sv_refuse(EINVAL,
                                   "ibv_wr_set_inline_data: queue pair 0x%06x: more than the %u bytes of inline data that were granted; "
                                   "ask for more (max_inline_data)",
                                   ex->qp_base.qp_num, qp->init.cap.max_inline_data);
        return;
    }
    larger = wr_grow(builder->byte, &builder->byte_room, builder->bytes + total, 1);
    if (larger)
        builder->byte = larger; /* set this even if add_elements() fails below, because realloc() has freed the old array */
    sge = larger ? add_elements(builder, one, 1) : NULL;
    if (!sge) {
        builder->error = ENOMEM;
        return;
    }
    one->byte = builder->bytes;
    one->wr.send_flags |= IBV_SEND_INLINE;
    *sge = (struct ibv_sge){.length = (uint32_t)total};
    for (size_t i = 0; i < count; i++) {
        if (list[i].length)
            memcpy(larger + builder->bytes, list[i].addr, list[i].length);
        builder->bytes += list[i].length;
    }
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *address, size_t length)
{
    const struct ibv_data_buf buffer = {.addr = address, .length = length};

    wr_set_inline_data_list(ex, 1, &buffer);
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t number, uint32_t qkey)
{
    struct built *one = wr_last(builder_of(ex));

    if (!one)
        return;
    one->wr.wr.ud.ah = ah;
    one->wr.wr.ud.remote_qpn = number;
    one->wr.wr.ud.remote_qkey = qkey;
}

/* ---- The queue pair's pointers --------------------------------------------------------------------------------- */
/* qp.c has checked that the device and the type of queue pair support `send_ops`. */
void sv_wr_install(struct sv_qp *qp, uint64_t send_ops)
{
    struct ibv_qp_ex *ex = &qp->ex;
    struct sv_builder *builder;

    builder = calloc(1, sizeof *builder);
    if (!builder) {
        errno = ENOMEM;
        return;
    }
    pthread_mutex_init(&builder->mutex, NULL);
    qp->builder = builder;

    ex->wr_start = wr_start;
    ex->wr_complete = wr_complete;
    ex->wr_abort = wr_abort;
    ex->wr_set_sge = wr_set_sge;
    ex->wr_set_sge_list = wr_set_sge_list;
    ex->wr_set_inline_data = wr_set_inline_data;
    ex->wr_set_inline_data_list = wr_set_inline_data_list;
    if (qp->base.qp_type == IBV_QPT_UD)
        ex->wr_set_ud_addr = wr_set_ud_addr;
    if (send_ops & IBV_QP_EX_WITH_SEND)
        ex->wr_send = wr_send;
    if (send_ops & IBV_QP_EX_WITH_SEND_WITH_IMM)
        ex->wr_send_imm = wr_send_imm;
    if (send_ops & IBV_QP_EX_WITH_RDMA_WRITE)
        ex->wr_rdma_write = wr_rdma_write;
    if (send_ops & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
        ex->wr_rdma_write_imm = wr_rdma_write_imm;
    if (send_ops & IBV_QP_EX_WITH_RDMA_READ)
        ex->wr_rdma_read = wr_rdma_read;
    if (send_ops & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
        ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
    if (send_ops & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
        ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
}

void sv_wr_remove(struct sv_qp *qp)
{
    struct sv_builder *builder = qp->builder;

    if (!builder)
        return;
    qp->builder = NULL;
    pthread_mutex_destroy(&builder->mutex);
    free(builder->request);
    free(builder->element);
    free(builder->byte);
    free(builder);
}

/* Returns NULL if the queue pair was not created for this interface. */
SV_PUBLIC struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    struct sv_qp *own = sv_container(qp, struct sv_qp, base);

    return own->builder ? &own->ex : NULL;
}
