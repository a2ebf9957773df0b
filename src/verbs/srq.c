/* SPDX-License-Identifier: MIT
 *
 * Shared receive queues. Some devices do not have them, and some systems' verbs.h does not declare them.
 */
#include "verbs/verbs.h"

#if !defined(__APPLE__)
int verbs_srq_create(struct ibv_srq **out, struct verbs_device *d, uint32_t depth)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = depth < d->traits.srq_depth ? depth : d->traits.srq_depth, .max_sge = 1}};
    int raw;
    *out = NULL;
    if (!d->pd)
        return base_fail(-EINVAL, "cannot create a shared receive queue on %s: the device was not prepared for use" BASE_BUG_HINT, d->name);
    if (!d->traits.srq || !d->lib->create_srq || !d->lib->destroy_srq)
        return base_fail(-EOPNOTSUPP, "device %s has no shared receive queues: use another device (WEFT_DEVICE)", d->name);
    errno = 0;
    *out = d->lib->create_srq(d->pd, &init);
    if (*out)
        return 0;
    int code = verbs_code(0, d->traits.link == VERBS_THUNDERBOLT, &raw);
    return base_fail(code, "%s: cannot create a shared receive queue of %u requests: errno %d (%s); end other programs that use the device",
                     d->name, init.attr.max_wr, raw, base_strerror(code));
}

void verbs_srq_destroy(struct verbs_device *d, struct ibv_srq *srq)
{
    int raw, rc = srq ? d->lib->destroy_srq(srq) : 0;
    if (rc) {
        int code = verbs_code(rc, d->traits.link == VERBS_THUNDERBOLT, &raw);
        base_log(BASE_LOG_WARN, "%s: the shared receive queue cannot be freed: errno %d (%s); it stays in use until this program ends",
                 d->name, raw, base_strerror(code));
    }
}

int verbs_post_shared(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return -ibv_post_srq_recv(srq, wr, bad);
}
#else
int verbs_srq_create(struct ibv_srq **out, struct verbs_device *d, uint32_t depth)
{
    (void)depth;
    *out = NULL;
    return base_fail(-EOPNOTSUPP, "%s: this system's verbs have no shared receive queues", d->name);
}

void verbs_srq_destroy(struct verbs_device *d, struct ibv_srq *srq)
{
    (void)d, (void)srq;
}

int verbs_post_shared(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    (void)srq;
    *bad = wr;
    return -EOPNOTSUPP;
}
#endif
