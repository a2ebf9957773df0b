/* SPDX-License-Identifier: MIT
 *
 * Progress of ofi: passes completions and the current time to the endpoints of the links, and then lets them send.
 */
#include "fabric/ofi/ofi.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define BATCH  16
#define ROUNDS 8u  /* the most batches of completions read in one call */
#define CLOCK  16u /* one in this many polls that find nothing reads the clock */
#define TURNS  64u /* how often to pause, and then to yield, for threads that send */

/* A completion, copied out of the queue so that it can be handled without the lock `calls`. */
struct event {
    struct ofi_request *q;
    size_t bytes;
    int error; /* libfabric's, positive; 0: none */
};

/* Handles a received frame. `alone`: no other frame has arrived with it, so it is acknowledged at once. */
static bool poll_on_frame(struct ofi *o, const struct ofi_request *q, size_t bytes, int64_t now, bool alone)
{
    const uint8_t *frame = o->receive_frames + (size_t)q->slot * TB_FRAME_BYTES;
    struct tb_frame f;
    if (bytes < sizeof f || bytes > TB_FRAME_BYTES)
        return false;
    memcpy(&f, frame, sizeof f);
    struct ofi_link *l = f.magic == TB_MAGIC && f.to == o->w->rank ? ofi_link_of(o, f.from) : NULL;
    if (!l)
        return false; /* the frame is not from a node of this cluster */
    base_spin_lock(&l->r.lock);
    int rc = l->r.closed ? -EBADMSG : tb_endpoint_frame(&l->r.endpoint, frame, (uint32_t)bytes, now);
    if (BASE_UNLIKELY(l->open_at) && rc == 0)
        ofi_link_open_locked(l);
    bool answered = rc == 0 && alone;
    if (answered)
        records_pump_locked(&l->r, now);
    if (rc == 0)
        l->pause = 0;
    base_spin_unlock(&l->r.lock);
    l->touched = l->touched || !answered;
    if (rc == 0)
        fab_heard(l->r.link);
    else if (rc != -EBADMSG)
        records_break(&l->r, "%s; run the same version of weft on all hosts", l->r.endpoint.broken);
    return answered;
}

/* The receive is posted again. If a frame was lost, its sender sends it again. */
static void poll_on_receive_error(struct ofi *o, int error)
{
    if (!o->receive_failed)
        base_log(BASE_LOG_INFO, "provider %s of libfabric: a receive at %s failed: %s; further failures are not reported",
                 o->info->fabric_attr->prov_name, o->name, o->lib->strerror(error));
    o->receive_failed = true;
}

static void poll_on_sent(struct ofi *o, const struct ofi_request *q, int error, int64_t now)
{
    struct ofi_link *l = q->given_up ? NULL : ofi_link_of(o, q->node);
    if (!l)
        return;
    base_spin_lock(&l->r.lock);
    ofi_ended_locked(l, q, error, now);
    if (!l->r.closed && error) {
        ofi_refused_locked(l, error,
                           q->kind == OFI_FRAME ? "a send to that node failed" : "a read or write of that node's memory (RMA) failed", now);
        tb_stream_again(&l->r.endpoint.stream);
    }
    base_spin_unlock(&l->r.lock);
    l->touched = true;
}

/* The request with this address. NULL: there is none, so the provider reports an error of something that it has sent by itself. */
static struct ofi_request *poll_request(const struct ofi *o, const void *context)
{
    for (uint32_t i = 0; i < o->receives_count; i++)
        if (&o->receives[i] == context)
            return &o->receives[i];
    for (uint32_t i = 0; i < o->requests_count; i++)
        if (&o->requests[i] == context)
            return &o->requests[i];
    return NULL;
}

/* Reads a batch of completions from the queue. Under `calls`. */
static uint32_t poll_take(struct ofi *o, struct event *e)
{
    struct fi_cq_msg_entry entries[BATCH];
    ssize_t n = fi_cq_read(o->cq, entries, BATCH);
    if (n == -FI_EAVAIL) {
        struct fi_cq_err_entry wrong = {0};
        if (fi_cq_readerr(o->cq, &wrong, 0) != 1)
            return 0;
        *e = (struct event){.q = poll_request(o, wrong.op_context), .error = wrong.err ? wrong.err : FI_EIO};
        return 1;
    }
    for (ssize_t i = 0; i < n; i++)
        e[i] = (struct event){.q = entries[i].op_context, .bytes = entries[i].len};
    return n > 0 ? (uint32_t)n : 0;
}

/* Pumps all links that had an event, that had no room to send before, or whose timer has expired. */
void ofi_pump_all(struct ofi *o, int64_t now)
{
    int64_t due = INT64_MAX;
    records_timers_begin(&o->due);
    for (uint32_t i = 0; i < o->w->size; i++) {
        struct ofi_link *l = ofi_link_of(o, i);
        if (!l)
            continue;
        bool time = now >= atomic_load_explicit(&l->r.due, memory_order_relaxed);
        if (l->touched || time || atomic_load_explicit(&l->r.no_room, memory_order_relaxed)) {
            l->touched = false;
            base_spin_lock(&l->r.lock);
            if (!l->r.closed)
                records_pump_locked(&l->r, now);
            base_spin_unlock(&l->r.lock);
        }
        int64_t at = atomic_load_explicit(&l->r.due, memory_order_relaxed);
        if (atomic_load_explicit(&l->r.no_room, memory_order_relaxed) && now + OFI_RETRY < at)
            at = now + OFI_RETRY;
        due = at < due ? at : due;
    }
    records_timer(&o->due, due);
}

/* Waits until the threads that have something to send have had the lock `calls`. Not for long, because they may not be running. */
static void poll_after_senders(const struct ofi *o)
{
    for (unsigned i = 0; i < 2 * TURNS && atomic_load_explicit(&o->senders, memory_order_relaxed); i++)
        if (i < TURNS)
            base_relax();
        else
            sched_yield();
}

int ofi_poll(struct ofi *o)
{
    struct event events[BATCH];
    uint32_t n = 0, got, alone = 0;
    int64_t now = 0;
    do {
        poll_after_senders(o);
        base_spin_lock(&o->calls);
        got = o->ep ? poll_take(o, events) : 0;
        base_spin_unlock(&o->calls);
        if (!got)
            break;
        now = now ? now : base_recent_ns();
        for (uint32_t i = 0; i < got; i++) {
            struct ofi_request *q = events[i].q;
            if (!q || !q->busy) { /* not busy: the provider has reported it twice */
                events[i].q = NULL;
                continue;
            }
            q->busy = false;
            if (q->kind != OFI_RECEIVE)
                poll_on_sent(o, q, events[i].error, now);
            else if (events[i].error)
                poll_on_receive_error(o, events[i].error);
            else
                alone += poll_on_frame(o, q, events[i].bytes, now, got == 1 && n == 0);
        }
        base_spin_lock(&o->calls);
        for (uint32_t i = 0; i < got; i++) {
            if (events[i].q && events[i].q->kind == OFI_RECEIVE)
                ofi_receive_again_locked(o, events[i].q);
            else if (events[i].q)
                ofi_request_free_locked(o, events[i].q);
        }
        if (o->owed)
            ofi_receive_owed_locked(o);
        base_spin_unlock(&o->calls);
        n += got;
        /* Stop after ROUNDS batches, even if the queue is not empty: reading the queue may take milliseconds, because the provider then
         * also sends the bytes that a peer gets. Meanwhile the messages that have arrived wait for their handlers. */
    } while ((got == BATCH || events[0].error) && n < ROUNDS * BATCH); /* errors come one by one */
    if (n == 0 && atomic_load_explicit(&o->due, memory_order_relaxed) != INT64_MAX && ++o->looks % CLOCK == 0)
        now = base_recent_ns();
    if (n > alone || (now && now >= atomic_load_explicit(&o->due, memory_order_relaxed)))
        ofi_pump_all(o, now);
    return (int)n;
}

int ofi_service(struct weft_node *w)
{
    struct ofi *o;
    int n = 0;
    for (uint32_t i = 0; (o = ofi_device_at(w, i)); i++) {
        if (!atomic_load_explicit(&o->used, memory_order_relaxed) || !base_spin_try(&o->receiving))
            continue;
        n += ofi_poll(o);
        base_spin_unlock(&o->receiving);
    }
    return n;
}

void ofi_make_room(struct weft_node *w)
{
    if (ofi_service(w) > 0)
        fab_wake_here(w);
}

int ofi_progress(struct weft_node *w)
{
    const struct ofi *o;
    int n = 0;
    for (uint32_t d = 0; (o = ofi_device_at(w, d)); d++) {
        for (uint32_t i = 0; i < w->size; i++) {
            struct ofi_link *l = ofi_link_of(o, i);
            n += l ? records_progress(w, &l->r) : 0;
        }
    }
    return n;
}

static bool poll_no_messages(const struct ofi *o)
{
    for (uint32_t i = 0; i < o->w->size; i++) {
        const struct ofi_link *l = ofi_link_of(o, i);
        if (l && !records_message_none(&l->r))
            return false;
    }
    return true;
}

/* Whether the progress thread may sleep on the queue's descriptor. If the queue has none, the thread polls every millisecond (watch.c). */
static bool poll_idle(struct ofi *o)
{
    if (!atomic_load_explicit(&o->used, memory_order_relaxed))
        return true;
    if (!base_spin_try(&o->receiving))
        return false;
    base_spin_lock(&o->calls);
    bool quiet = !o->ep || o->fd < 0 || ofi_queue_quiet_locked(o);
    o->armed = quiet && o->ep && o->fd >= 0;
    base_spin_unlock(&o->calls);
    base_spin_unlock(&o->receiving);
    return quiet && poll_no_messages(o);
}

bool ofi_idle(struct weft_node *w)
{
    struct ofi *o;
    bool quiet = true;
    for (uint32_t i = 0; (o = ofi_device_at(w, i)); i++)
        quiet = poll_idle(o) && quiet;
    return quiet;
}

/* Returns the queue's descriptor if ofi_idle() was called just before; otherwise -1. Without a call of ofi_idle(), a thread of the program
 * polls, and each frame would needlessly wake the progress thread, too. In this case no lock is taken: that thread holds `calls` most of
 * the time, while the kernel copies bytes. */
static int poll_armed(struct ofi *o)
{
    if (!atomic_load_explicit(&o->armed, memory_order_relaxed)) /* set by this thread itself, in ofi_idle() */
        return -1;
    base_spin_lock(&o->calls); /* another thread may be replacing the completion queue and its descriptor */
    int fd = o->armed ? o->fd : -1;
    o->armed = false;
    base_spin_unlock(&o->calls);
    return fd;
}

/* Returns the descriptor of the first device that is armed, and disarms that device. So repeated calls return the descriptors of all. */
int ofi_fd(struct weft_node *w, uint32_t i)
{
    struct ofi *o;
    int fd = -1;
    (void)i;
    for (uint32_t d = 0; fd < 0 && (o = ofi_device_at(w, d)); d++)
        fd = poll_armed(o);
    return fd;
}

void ofi_woken(struct weft_node *w)
{
    (void)w;
}
