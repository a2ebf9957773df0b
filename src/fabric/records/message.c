/* SPDX-License-Identifier: MIT
 *
 * Messages that have arrived in records wait in the inbox of their link until they are delivered to their handlers. Also marks links as
 * broken.
 */
#include "fabric/records/link.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool records_message_keep(void *ctx, uint32_t id, const void *header, uint32_t header_len, const void *payload, uint32_t payload_len)
{
    struct records_link *l = ctx;
    uint32_t in = atomic_load_explicit(&l->inbox_in, memory_order_relaxed);
    uint32_t kept = in - atomic_load_explicit(&l->inbox_out, memory_order_acquire);
    if (kept >= TB_MESSAGES)
        return false;
    if (kept == 0)
        l->inbox_base = in;
    struct records_message *m = &l->inbox[(in - l->inbox_base) % TB_MESSAGES];
    m->id = (uint16_t)id;
    m->header_len = (uint16_t)header_len;
    m->payload_len = (uint16_t)payload_len;
    memcpy(m->bytes, header, header_len);
    memcpy(m->bytes + tb_padded(header_len), payload, payload_len);
    /* release: the delivering thread sees the message (acquire in records_message_deliver()) */
    atomic_store_explicit(&l->inbox_in, in + 1, memory_order_release);
    return true;
}

static void message_grant(struct records_link *l, uint32_t messages)
{
    base_spin_lock(&l->lock);
    if (!l->closed) {
        tb_endpoint_granted(&l->endpoint, messages);
        records_pump_locked(l, base_now_ns());
    }
    base_spin_unlock(&l->lock);
}

/* Runs the handlers of at most `most` messages, so that a busy peer does not delay others. The peer gets no credit while too many messages
 * wait for a handler to be installed. Messages of a peer that is gone are dropped. */
int records_message_deliver(struct weft_node *w, struct records_link *l, uint32_t most)
{
    uint32_t out = atomic_load_explicit(&l->inbox_out, memory_order_relaxed), n = 0;
    /* acquire: pairs with the release in records_message_keep() */
    while (n < most && atomic_load_explicit(&l->inbox_in, memory_order_acquire) != out) {
        const struct records_message *m = &l->inbox[(out - l->inbox_base) % TB_MESSAGES];
        /* relaxed: the state changes only while w->progress is held, and this thread holds it */
        if (BASE_LIKELY(atomic_load_explicit(&l->link->state, memory_order_relaxed) == FAB_ALIVE))
            stash_deliver(w, &l->stash, m->id, m->bytes, m->header_len, m->bytes + tb_padded(m->header_len), m->payload_len);
        atomic_store_explicit(&l->inbox_out, ++out, memory_order_release);
        n++;
        l->withheld++;
    }
    if (l->withheld && l->stash.count < STASH_MAX) {
        message_grant(l, l->withheld);
        l->withheld = 0;
    }
    return (int)n;
}

int records_progress(struct weft_node *w, struct records_link *l)
{
    int n = BASE_UNLIKELY(l->stash.count) && stash_retry(w, &l->stash) > 0;
    return n + records_message_deliver(w, l, TB_MESSAGES);
}

bool records_message_none(const struct records_link *l)
{
    return atomic_load_explicit(&l->inbox_in, memory_order_acquire) == atomic_load_explicit(&l->inbox_out, memory_order_relaxed);
}

void records_break(struct records_link *l, const char *why, ...)
{
    va_list ap;
    if (atomic_load_explicit(&l->broken, memory_order_relaxed))
        return;
    va_start(ap, why);
    vsnprintf(l->why, sizeof l->why, why, ap);
    va_end(ap);
    atomic_store_explicit(&l->broken, true, memory_order_release);
    fab_kick(l->w);
}
