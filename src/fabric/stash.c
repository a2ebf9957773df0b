/* SPDX-License-Identifier: MIT
 *
 * See stash.h.
 */
#include "fabric/stash.h"

#include <stdlib.h>
#include <string.h>

struct stashed {
    struct stashed *next;
    int64_t since;
    bool warned;
    uint32_t id, header_len, payload_len;
    _Alignas(8) uint8_t body[]; /* header, then payload, which starts at header_len rounded up to 8 */
};

static size_t stash_payload_at(size_t header_len)
{
    return (header_len + 7u) & ~(size_t)7u;
}

void stash_init(struct stash *s, uint32_t from)
{
    *s = (struct stash){.from = from};
    s->end = &s->first;
}

static void forget_first(struct stash *s)
{
    struct stashed *first = s->first;
    s->first = first->next;
    if (!s->first)
        s->end = &s->first;
    s->count--;
    free(first);
}

void stash_clear(struct stash *s)
{
    while (s->first)
        forget_first(s);
}

static BASE_COLD void put_aside(struct stash *s, uint32_t id, const void *header, size_t header_len, const void *payload,
                                size_t payload_len)
{
    size_t at = stash_payload_at(header_len);
    struct stashed *copy = malloc(sizeof *copy + at + payload_len);
    if (!copy) {
        base_log(BASE_LOG_ERROR, "a message from node %u is lost: no memory to keep it for its handler" BASE_MEMORY_HINT, s->from);
        return;
    }
    *copy = (struct stashed){.since = base_now_ns(), .id = id, .header_len = (uint32_t)header_len, .payload_len = (uint32_t)payload_len};
    if (header_len)
        memcpy(copy->body, header, header_len);
    if (payload_len)
        memcpy(copy->body + at, payload, payload_len);
    *s->end = copy;
    s->end = &copy->next;
    s->count++;
}

void stash_deliver(struct weft_node *w, struct stash *s, uint32_t id, const void *header, size_t header_len, const void *payload,
                   size_t payload_len)
{
    bool behind = s->first && !fab_is_system(id);
    if (BASE_UNLIKELY(behind || !fab_deliver(w, s->from, id, header, header_len, payload, payload_len)))
        put_aside(s, id, header, header_len, payload, payload_len);
}

int stash_retry(struct weft_node *w, struct stash *s)
{
    int n = 0;
    for (; s->first; n++, forget_first(s)) {
        struct stashed *m = s->first;
        if (fab_deliver(w, s->from, m->id, m->body, m->header_len, m->body + stash_payload_at(m->header_len), m->payload_len))
            continue;
        int64_t waits = base_now_ns() - m->since;
        if (waits >= w->options.deadline_ns) {
            base_log(BASE_LOG_ERROR,
                     "a message from node %u is dropped: no handler %u was installed before the deadline; call weft_handle() before other "
                     "nodes send",
                     s->from, m->id);
            continue;
        }
        if (waits >= WEFT_SECOND && !m->warned) {
            m->warned = true;
            base_log(BASE_LOG_WARN, "%u messages from node %u wait: this node has installed no handler %u (weft_handle)", s->count, s->from,
                     m->id);
        }
        break;
    }
    return n;
}
