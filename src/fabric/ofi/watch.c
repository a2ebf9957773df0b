/* SPDX-License-Identifier: MIT
 *
 * Watches for links that make no progress although the peer is alive. After a broken connection, the provider usually reconnects, and the
 * stream sends again what was lost. If nothing is acknowledged for long, this node asks the peer over the side connection whether its
 * process is running. If the peer answers, this node replaces its endpoint, once. If that does not help within WEFT_RECONNECT, it gives the
 * peer up. If the peer does not answer, it is dead after WEFT_LIVENESS (peer.c).
 *
 * A new endpoint has a new address, which this node sends to all peers over their side connections. Until a peer has confirmed it, nothing
 * is sent on the link, for two reasons:
 *
 *   - This node repeats the puts that were under way. But bytes of the first attempt may still arrive through the former connection,
 *   because the kernel sends what a closed socket holds. If they arrived after the repeated put, they could overwrite newer bytes. So the
 *   peer first waits until the former connection has ended, which takes no time if the network works (watch_probe()). If it does not end,
 *   the peer replaces its own endpoint, too. A connection that the peer's provider is still making counts as ended. What may arrive
 *   through it later is refused, because the peer changes the keys of its memory.
 *   - When a connection ends, `net` of libfabric 1.17 forgets connection requests that it has received and not handled yet, and never
 *   answers them. So neither node requests a connection before the end of the former one is handled, and the nodes do not do so at the same
 *   time. The node with the lower address begins: if its request is lost, the peer's own request is accepted later. If the other node began
 *   and its request was lost, the later request would not be accepted.
 */
#include "fabric/ofi/ofi.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define WATCH      (250 * WEFT_MS) /* how often links are checked while something is under way */
#define POLL       WEFT_MS         /* how often a queue without a descriptor to sleep on is polled */
#define LEAST      WEFT_SECOND     /* shorter silences are ignored */
#define AFTER      WEFT_SECOND     /* how long after the peer's answer the link may still be silent */
#define MOVES_RATE (64u << 10)     /* bytes a second; see watch_moves_lost() */
#define PROBE      (5 * WEFT_MS)   /* how often this node looks whether a former connection is gone */
#define SETTLE     (50 * WEFT_MS)  /* how long the provider may take to handle the end of a connection */
#define RENEW      WEFT_SECOND     /* time between two replacements of the endpoint for ofi_link.renew_at */
#define GONE       WEFT_SECOND     /* how long this node waits for the end of a former connection before it replaces its endpoint */
#define FIRST      8               /* the node with the higher address waits WEFT_RECONNECT / FIRST for the other to begin */
#define SIDE_MAGIC 0x32696677u     /* "wfi2" */

enum side_kind { SIDE_QUESTION = 1, SIDE_ANSWER, SIDE_ADDRESS, SIDE_CONFIRM };

struct side_message {
    uint32_t magic;
    uint16_t kind, address_bytes;
    uint32_t number; /* SIDE_ADDRESS, SIDE_CONFIRM: the number of the new endpoint, as counted by the node that has opened it */
    uint8_t address[OFI_ADDRESS]; /* SIDE_ADDRESS */
};
_Static_assert(sizeof(struct side_message) <= FAB_SIDE_MESSAGE_MAX, "fits");

static bool watch_say(struct ofi_link *l, enum side_kind kind)
{
    struct ofi *o = l->ofi;
    struct side_message m = {.magic = SIDE_MAGIC, .kind = (uint16_t)kind};
    if (kind == SIDE_CONFIRM)
        m.number = l->theirs;
    if (kind == SIDE_ADDRESS) {
        m.number = o->generation;
        m.address_bytes = (uint16_t)o->address_bytes;
        memcpy(m.address, o->address, o->address_bytes);
    }
    return fab_side_send(l->r.link, &m, sizeof m) == 0;
}

/* Computes the keys that the peer's memory has from now on. */
static void watch_new_keys(struct ofi_link *l, uint32_t number)
{
    base_spin_lock(&l->r.lock);
    l->keys_shift = ofi_key_shift(number);
    base_spin_unlock(&l->r.lock);
}

bool ofi_side_valid(const void *bytes, size_t len)
{
    struct side_message m;
    if (len != sizeof m)
        return false;
    memcpy(&m, bytes, sizeof m);
    return m.magic == SIDE_MAGIC && m.kind >= SIDE_QUESTION && m.kind <= SIDE_CONFIRM && m.address_bytes <= sizeof m.address &&
           (m.kind == SIDE_ADDRESS) == (m.address_bytes != 0);
}

/* Makes the link send what it can, although it had no event. Under o->receiving. */
static void watch_touch(struct ofi_link *l)
{
    l->touched = true;
    atomic_store_explicit(&l->ofi->due, 0, memory_order_relaxed);
}

static int64_t watch_patience(const struct ofi *o)
{
    return o->w->options.reconnect_ns > LEAST ? o->w->options.reconnect_ns : LEAST;
}

/* Whether this node's address is the lower one. libfabric compares the numbers of hosts, then the ports. */
static bool watch_lower(const struct ofi_link *l)
{
    const struct ofi *o = l->ofi;
    struct sockaddr_in mine, theirs;
    struct sockaddr_in6 mine6, theirs6;
    int is = 0;
    if (o->info->addr_format == FI_SOCKADDR_IN) {
        memcpy(&mine, o->address, sizeof mine);
        memcpy(&theirs, l->address, sizeof theirs);
        is = memcmp(&mine.sin_addr, &theirs.sin_addr, sizeof mine.sin_addr);
        is = is ? is : memcmp(&mine.sin_port, &theirs.sin_port, sizeof mine.sin_port);
    } else if (o->info->addr_format == FI_SOCKADDR_IN6) {
        memcpy(&mine6, o->address, sizeof mine6);
        memcpy(&theirs6, l->address, sizeof theirs6);
        is = memcmp(&mine6.sin6_addr, &theirs6.sin6_addr, sizeof mine6.sin6_addr);
        is = is ? is : memcmp(&mine6.sin6_port, &theirs6.sin6_port, sizeof mine6.sin6_port);
    }
    return is ? is < 0 : o->w->rank < l->r.link->node;
}

/* Opens the link again, if this node and the peer have confirmed each other's new endpoints. */
static void watch_open(struct ofi_link *l, int64_t now)
{
    if (l->awaits || l->probes || l->confirm)
        return;
    base_spin_lock(&l->r.lock);
    if (l->shut && watch_lower(l))
        ofi_link_open_locked(l);
    else if (l->shut)
        l->open_at = now + watch_patience(l->ofi) / FIRST;
    base_spin_unlock(&l->r.lock);
    l->still_at = l->still_at ? now : 0; /* while the link was shut, nothing could get through */
    watch_touch(l);
}

/* Whether a TCP connection to the peer's former address still exists. Tries to send one byte: this succeeds as long as this end of the
 * connection exists. If the peer has closed its end, the peer's kernel answers the byte with a reset, which ends the connection here.
 * Without a connection, the send returns -FI_EAGAIN. Providers that do not use TCP send nothing more from a closed endpoint. */
static bool watch_connected(struct ofi_link *l)
{
    static const uint8_t nothing; /* too short for a frame, so it is ignored if it is received */
    struct ofi *o = l->ofi;
    if (!o->traits.tcp)
        return false;
    base_spin_lock(&o->calls);
    bool is = o->ep && l->was != FI_ADDR_NOTAVAIL && fi_inject(o->ep, &nothing, sizeof nothing, l->was) == 0;
    base_spin_unlock(&o->calls);
    return is;
}

/* Called when the connection to the peer's former endpoint is gone. */
static void watch_forget(struct ofi_link *l)
{
    struct ofi *o = l->ofi;
    base_spin_lock(&o->calls);
    if (l->was != FI_ADDR_NOTAVAIL && o->av)
        (void)fi_av_remove(o->av, &l->was, 1, 0);
    base_spin_unlock(&o->calls);
    l->probes = false;
}

static void watch_probe(struct ofi_link *l, int64_t now)
{
    struct ofi *o = l->ofi;
    if (now < l->probe_at)
        return;
    l->probe_at = now + PROBE;
    if (l->renew_at) {
        if (now < l->renew_at)
            return;
        l->renew_at = 0;
        l->renewed_for = now;
        o->renew = true;
        return;
    }
    if (!l->settle_at && watch_connected(l)) {
        o->renew = o->renew || now >= l->gone_at; /* replacing the endpoint closes this end, even if the network fails */
        return;
    }
    l->settle_at = l->settle_at ? l->settle_at : now + SETTLE;
    if (now < l->settle_at)
        return;
    watch_forget(l);
    l->confirm = true;
}

/* Takes over the peer's new address. `probes`: keep the former address as l->was. False: the provider does not accept the address. Under
 * `calls`. */
static bool watch_follow_locked(struct ofi_link *l, const struct side_message *m, bool probes)
{
    struct ofi *o = l->ofi;
    fi_addr_t peer = FI_ADDR_NOTAVAIL;
    if (!o->ep || fi_av_insert(o->av, m->address, 1, &peer, 0, NULL) != 1)
        return false;
    if (probes)
        l->was = l->peer;
    else
        (void)fi_av_remove(o->av, &l->peer, 1, 0);
    l->peer = peer;
    memcpy(l->address, m->address, m->address_bytes);
    ofi_print_address(o->info, m->address, m->address_bytes, l->name, sizeof l->name);
    return true;
}

/* The peer has announced a new endpoint. */
static void watch_moved(struct ofi_link *l, const struct side_message *m)
{
    struct ofi *o = l->ofi;
    int64_t now = base_now_ns();
    if ((int32_t)(m->number - l->theirs) <= 0) { /* this endpoint is known: it may only need another confirmation */
        l->confirm = l->confirm || (m->number == l->theirs && !l->probes);
        return;
    }
    if (!ofi_address_fits(o, m->address, m->address_bytes)) {
        records_break(
            &l->r, "it opened a new endpoint, whose address has another form than before; run the same version of libfabric on all hosts");
        return;
    }
    /* While this node waits for a confirmation, its own new endpoint has no connection to the peer, so no probe is needed. */
    bool probes = !l->probes && !l->awaits && !l->confirm;
    /* If the peer's new endpoint has the port of its former one, this node must open a new endpoint to tell their connections apart. It
     * must also do so if the provider never ends the requests that are under way to the former one. */
    bool renews = memcmp(l->address, m->address, m->address_bytes) == 0;
    base_spin_lock(&l->r.lock);
    renews = renews || (o->traits.loses && l->moves);
    base_spin_lock(&o->calls);
    bool follows = watch_follow_locked(l, m, probes);
    int rc = follows && ofi_keys_change(l) ? ofi_register_again_locked(o, &l->own, ofi_key_shift(m->number)) : 0;
    base_spin_unlock(&o->calls);
    l->shut = true;
    l->open_at = 0;
    base_spin_unlock(&l->r.lock);
    if (!follows || rc) {
        records_break(&l->r,
                      "it opened a new endpoint, and provider %s of libfabric on this node does not accept its address: set "
                      "WEFT_OFI_PROVIDER to another provider, on all nodes",
                      o->info->fabric_attr->prov_name);
        return;
    }
    l->theirs = m->number;
    l->confirm = !probes && !l->probes;
    if (probes) {
        l->probes = true;
        l->probe_at = 0;
        l->settle_at = 0;
        l->gone_at = now + GONE;
        /* Limited by RENEW, so that a faulty peer cannot make this node replace its endpoint all the time. */
        int64_t next = l->renewed_for ? l->renewed_for + RENEW : now;
        l->renew_at = !renews ? 0 : next > now ? next : now;
    }
    atomic_fetch_add_explicit(&l->connects, 1, memory_order_relaxed);
}

void ofi_side(struct weft_node *w, struct fab_link *link, const void *bytes, size_t len)
{
    struct ofi_link *l = link->impl;
    struct side_message m;
    (void)w;
    if (!l || l->r.closed)
        return;
    struct ofi *o = l->ofi;
    if (!ofi_side_valid(bytes, len)) {
        records_break(&l->r, "it sent an invalid message about its endpoint; run the same version of weft on all hosts");
        return;
    }
    memcpy(&m, bytes, sizeof m);
    if (m.kind == SIDE_QUESTION)
        (void)watch_say(l, SIDE_ANSWER); /* this fails only if the peer does not read its side connection */
    else if (m.kind == SIDE_ANSWER && l->asked && !l->answered)
        l->answered = base_now_ns();
    base_spin_lock(&o->receiving);
    if (m.kind == SIDE_ADDRESS)
        watch_moved(l, &m);
    if (m.kind == SIDE_CONFIRM && l->awaits && m.number == o->generation) {
        l->awaits = false;
        watch_new_keys(l, m.number);
        watch_open(l, base_now_ns());
    }
    base_spin_unlock(&o->receiving);
}

/* Ends all requests that the provider has not completed. Their operations begin again on the next endpoint. Under o->receiving. */
static void watch_take_back(struct ofi *o)
{
    for (uint32_t i = 0; i < o->requests_count; i++) {
        struct ofi_request *q = &o->requests[i];
        struct ofi_link *l = q->busy && !q->given_up ? ofi_link_of(o, q->node) : NULL;
        if (l) {
            base_spin_lock(&l->r.lock);
            ofi_ended_locked(l, q, -EAGAIN, 0);
            base_spin_unlock(&l->r.lock);
        }
        base_spin_lock(&o->calls);
        if (q->busy)
            ofi_request_free_locked(o, q);
        base_spin_unlock(&o->calls);
    }
}

void ofi_renew(struct ofi *o, const char *why)
{
    if (!o->ep)
        return; /* this node could not open an endpoint earlier, so all links are broken already */
    base_spin_lock(&o->calls);
    ofi_device_shut_locked(o);
    base_spin_unlock(&o->calls);
    watch_take_back(o);
    base_spin_lock(&o->calls);
    int rc = ofi_device_again_locked(o);
    base_spin_unlock(&o->calls);
    base_log(BASE_LOG_WARN, "provider %s of libfabric: this node replaces its endpoint, because %s; the new one is at %s%s",
             o->info->fabric_attr->prov_name, why, rc ? "no address: " : o->name, rc ? base_error() : "");
    for (uint32_t i = 0; i < o->w->room; i++) {
        struct ofi_link *l = ofi_link_joining(o, i);
        if (!l)
            continue;
        base_spin_lock(&l->r.lock);
        l->shut = true;
        l->open_at = 0;
        base_spin_unlock(&l->r.lock);
        l->tell = rc == 0;
        l->awaits = true;
        l->confirm = l->confirm || l->probes; /* the connection to the peer's former endpoint was closed with this node's endpoint */
        if (l->probes)
            watch_forget(l);
        if (rc)
            records_break(&l->r, "this node could not open a new endpoint: %s", base_error());
    }
    fab_kick(o->w); /* all peers wait for the progress thread, which may be about to sleep for a second */
}

/* Whether the provider has lost RMA requests. They count as lost if no request has succeeded for WEFT_RECONNECT plus the time that all
 * requests under way need at MOVES_RATE. */
static bool watch_moves_lost(struct ofi_link *l, int64_t now)
{
    base_spin_lock(&l->r.lock);
    bool is = !l->r.closed && !l->shut && l->moves;
    int64_t patience = watch_patience(l->ofi) + (int64_t)(l->moving * (uint64_t)WEFT_SECOND / MOVES_RATE);
    if (!is || l->moved != l->moves_stand || !l->moves_at) {
        l->moves_stand = l->moved;
        l->moves_at = is ? now : 0;
    }
    is = is && now - l->moves_at > patience;
    base_spin_unlock(&l->r.lock);
    return is;
}

/* Whether something is under way to the peer. `*stand` changes with each frame or move that gets through. */
static bool watch_under_way(struct ofi_link *l, uint64_t *stand)
{
    base_spin_lock(&l->r.lock);
    const struct tb_stream *s = &l->r.endpoint.stream;
    bool is = !l->r.closed && (s->first != s->next || l->moves || l->r.endpoint.works);
    *stand = s->first + l->moved + s->counts.received;
    l->heard = s->counts.received != 0;
    base_spin_unlock(&l->r.lock);
    return is;
}

static void watch_link(struct ofi *o, struct ofi_link *l, int64_t now)
{
    int64_t patience = watch_patience(o);
    uint64_t stand;
    if (l->tell)
        l->tell = !watch_say(l, SIDE_ADDRESS);
    if (l->probes)
        watch_probe(l, now);
    if (l->confirm && watch_say(l, SIDE_CONFIRM)) {
        l->confirm = false;
        watch_open(l, now);
    }
    if (l->open_at && now >= l->open_at) {
        base_spin_lock(&l->r.lock);
        ofi_link_open_locked(l);
        base_spin_unlock(&l->r.lock);
        watch_touch(l);
    }
    if (watch_moves_lost(l, now)) {
        l->moves_at = 0;
        o->renew = true;
    }
    bool is = watch_under_way(l, &stand);
    if (!is || stand != l->stand || !l->still_at) {
        l->stand = stand;
        l->still_at = is ? now : 0;
        l->asked = l->renewed = false;
        l->answered = 0;
        return;
    }
    if (now - l->still_at < patience / 2)
        return;
    if (!l->asked) {
        l->asked = watch_say(l, SIDE_QUESTION);
        l->answered = 0;
    }
    if (!l->answered || now - l->answered < AFTER)
        return;
    /* Do not replace the endpoint for a peer that was never heard: on a busy machine, connecting may be slow, and would have to begin
     * again. */
    if (!l->renewed && l->heard) { /* then ask the peer again: frames may get through to the new endpoint */
        l->renewed = o->renew = true;
        l->asked = false;
        return;
    }
    if (now - l->still_at >= patience)
        records_break(
            &l->r,
            "nothing that was sent to it over %s at %s got through for %.1f s, although its process answers on the side connection: check "
            "the firewalls of both hosts (man weft-networks), or name another network in WEFT_OFI_INTERFACE%s%s",
            o->info->fabric_attr->prov_name, l->name, (double)(now - l->still_at) / 1e9, l->error[0] ? "; last: " : "", l->error);
}

static int64_t watch_device(struct ofi *o, int64_t now)
{
    int64_t next = INT64_MAX;
    if (!base_spin_try(&o->receiving))
        return WEFT_MS; /* another thread polls, and runs the timers */
    for (uint32_t i = 0; i < o->w->size; i++) {
        struct ofi_link *l = ofi_link_of(o, i);
        if (!l || l->r.closed)
            continue;
        watch_link(o, l, now);
        int64_t in = l->tell || l->probes || l->confirm || l->open_at ? WEFT_MS : l->still_at ? WATCH : INT64_MAX;
        next = in < next ? in : next;
    }
    if (o->renew && !(o->traits.hardware && o->traits.bind_regions))
        ofi_renew(o, "requests to another node, or from it, make no progress");
    o->renew = false;
    if (now >= atomic_load_explicit(&o->due, memory_order_relaxed))
        ofi_pump_all(o, base_now_ns());
    bool polled = o->fd < 0;
    base_spin_unlock(&o->receiving);
    int64_t due = atomic_load_explicit(&o->due, memory_order_relaxed);
    due = due == INT64_MAX ? due : due > now ? due - now : 0;
    next = due < next ? due : next;
    return polled && POLL < next ? POLL : next < WATCH * 4 ? next : WATCH * 4;
}

int64_t ofi_upkeep(struct weft_node *w, int64_t now)
{
    struct ofi *o;
    int64_t next = INT64_MAX;
    for (uint32_t i = 0; (o = ofi_device_at(w, i)); i++) {
        int64_t in = watch_device(o, now);
        next = in < next ? in : next;
    }
    return next;
}
