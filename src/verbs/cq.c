/* SPDX-License-Identifier: MIT
 *
 * Completion queues, each with a completion channel of its own.
 */
#include "verbs/verbs.h"

#include <fcntl.h>

static int cq_refused(const struct verbs_device *d, const char *what, uint32_t entries)
{
    int raw, code = verbs_code(0, d->traits.link == VERBS_THUNDERBOLT, &raw);
    return base_fail(code, "device %s: cannot make a completion %s for %u entries: errno %d (%s); end other programs that use the device",
                     d->name, what, entries, raw, base_strerror(code));
}

int verbs_cq_create(struct ibv_cq **cq, struct ibv_comp_channel **channel, struct verbs_device *d, uint32_t entries)
{
    *cq = NULL;
    errno = 0;
    *channel = d->lib->create_comp_channel(d->context);
    if (!*channel)
        return cq_refused(d, "channel", entries);
    fcntl((*channel)->fd, F_SETFL, fcntl((*channel)->fd, F_GETFL) | O_NONBLOCK);
    errno = 0;
    *cq = d->lib->create_cq(d->context, (int)entries, NULL, *channel, 0);
    return *cq ? 0 : cq_refused(d, "queue", entries);
}

void verbs_cq_destroy(struct ibv_cq **cq, struct ibv_comp_channel **channel, struct verbs_device *d)
{
    if (*cq)
        d->lib->destroy_cq(*cq);
    if (*channel)
        d->lib->destroy_comp_channel(*channel);
    *cq = NULL;
    *channel = NULL;
}

void verbs_cq_woken(struct ibv_comp_channel *channel, const struct verbs_device *d)
{
    struct ibv_cq *cq;
    void *context;
    while (d->lib->get_cq_event(channel, &cq, &context) == 0)
        d->lib->ack_cq_events(cq, 1);
}
