/* SPDX-License-Identifier: MIT
 *
 * shm: the transport between nodes of one host. Each node maps the pools and control regions of the others, whose file descriptors it
 * receives over the side connections. This file has joining, closing, and the transport's table.
 */
#include "fabric/shm/shm.h"
#include "fabric/transports.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fabric/shm/copy.h"

#define CONTROL_MAGIC UINT64_C(0x7765667473686d31) /* "weftshm1" */

_Static_assert(FAB_COPY_THREADS_MAX == COPY_TEAM_MAX, "what the setting allows");

static size_t control_size(uint32_t nodes)
{
    return base_round_up(sizeof(struct control) + (size_t)nodes * sizeof(struct ring), BASE_PAGE);
}

/* The number of rings in a node's control region. */
static uint32_t rings_of(const struct weft_node *w, uint32_t node)
{
    return node < w->founders ? w->founders : 1;
}

static int shm_open_transport(struct weft_node *w)
{
    struct shm *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(-ENOMEM, "no memory for the shm transport" BASE_MEMORY_HINT);
    s->control_fd = -1;
    w->shm = s;
    s->here = calloc(w->room, sizeof *s->here);
    if (!s->here)
        return base_fail(-ENOMEM, "no memory for %u shm links" BASE_MEMORY_HINT, w->room);
    s->control_bytes = control_size(rings_of(w, w->rank));
    s->control_fd = base_memory_fd("weft-control", s->control_bytes, false);
    if (s->control_fd < 0)
        return s->control_fd;
    void *p = mmap(NULL, s->control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->control_fd, 0);
    if (p == MAP_FAILED)
        return base_fail(-errno, "shm: cannot map %zu bytes of shared memory: %s" BASE_MEMORY_HINT, s->control_bytes, base_strerror(errno));
    s->control = p;
    s->control->magic = CONTROL_MAGIC;
    w->bell = &s->control->bell;
    return 0;
}

static void shm_close(struct weft_node *w)
{
    struct shm *s = w->shm;
    if (!s)
        return;
    copy_team_free(atomic_load_explicit(&s->team, memory_order_relaxed));
    if (s->control)
        munmap(s->control, s->control_bytes);
    if (s->control_fd >= 0)
        close(s->control_fd);
    free(s->here);
    free(s);
    w->shm = NULL;
}

/* Makes the team of threads for large copies. Called when the number of nodes on this host is known. The first large copy starts the
 * threads. */
static int shm_settle(struct weft_node *w, int64_t deadline)
{
    (void)deadline;
    struct shm *s = w->shm;
    struct copy_team *team;
    uint32_t threads = w->options.copy_threads ? w->options.copy_threads : copy_team_default(base_cpus(), w->size_here);
    if (threads < 2)
        return 0;
    int rc = copy_team_new(&team, threads, w->options.spin_ns);
    if (!rc)
        atomic_store_explicit(&s->team, team, memory_order_release); /* release: pairs with the acquire in copy_much() */
    return rc;
}

static bool shm_reaches(struct weft_node *w, const uint8_t *peer_host_id)
{
    return memcmp(w->host_id, peer_host_id, sizeof w->host_id) == 0;
}

/* --- connecting --- */

struct hello {
    uint64_t magic, pool_bytes, control_bytes;
    uint32_t rank, size;
};

static int map_peer(struct weft_node *w, struct shm_link *s, const struct hello *h, const int fds[2])
{
    size_t want = control_size(rings_of(w, s->link->node));
    if (h->magic != CONTROL_MAGIC || h->rank != s->link->node || h->size != w->founders || h->control_bytes != want ||
        h->pool_bytes < w->heap_offset || h->pool_bytes > WEFT_MAX_POOL_BYTES)
        return base_fail(-EPROTO, "node %u passed shared memory of another layout; run the same version of weft on all hosts",
                         s->link->node);
    int rc = base_memory_fd_check(fds[0], h->pool_bytes);
    if (!rc)
        rc = base_memory_fd_check(fds[1], h->control_bytes);
    if (rc)
        return base_context(rc, "node %u", s->link->node);
    void *pool = mem_map(fds[0], h->pool_bytes);
    if (!pool)
        return base_fail(-errno,
                         "shm: cannot map the pool of node %u (%llu bytes): %s; raise the limit on memory (ulimit -v), or make the pools "
                         "smaller (WEFT_POOL)",
                         s->link->node, (unsigned long long)h->pool_bytes, base_strerror(errno));
    void *control = mmap(NULL, want, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    if (control == MAP_FAILED) {
        rc = base_fail(-errno, "shm: cannot map the memory for messages to node %u: %s" BASE_MEMORY_HINT, s->link->node,
                       base_strerror(errno));
        munmap(pool, h->pool_bytes);
        return rc;
    }
    s->pool = pool;
    s->control = control;
    s->control_bytes = want;
    s->link->pool_bytes = h->pool_bytes;
    return 0;
}

/* Makes the rings of a pair in which one node joined later, because control regions have no rings for such a pair. Each node makes the ring
 * for messages to itself, and gets the other ring from the peer. */
static int shm_late_rings(struct shm_link *s, int side_fd, int64_t deadline)
{
    struct hello mine = {.magic = CONTROL_MAGIC, .control_bytes = base_round_up(sizeof(struct ring), BASE_PAGE)}, theirs = {0};
    int theirs_fd = -1, fd = base_memory_fd("weft-ring", mine.control_bytes, false), fds[2] = {-1, -1};
    if (fd < 0)
        return fd;
    int rc = base_send_fds(side_fd, &mine, sizeof mine, (int[]){fd}, 1);
    if (!rc)
        rc = base_receive_fds(side_fd, &theirs, sizeof theirs, fds, 1, deadline);
    theirs_fd = fds[0];
    if (!rc && (theirs_fd < 0 || theirs.magic != CONTROL_MAGIC || theirs.control_bytes != mine.control_bytes))
        rc = -EPROTO;
    rc = rc ? base_fail(rc, "shm: cannot exchange the memory for messages with node %u: %s", s->link->node, base_strerror(rc))
            : base_memory_fd_check(theirs_fd, theirs.control_bytes);
    for (int i = 0; i < 2 && !rc; i++) {
        void *p = mmap(NULL, mine.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, i ? fd : theirs_fd, 0);
        if (p == MAP_FAILED)
            rc = base_fail(-errno, "shm: cannot map the memory for messages from node %u: %s" BASE_MEMORY_HINT, s->link->node,
                           base_strerror(errno));
        else
            s->late[i] = p;
    }
    close(fd);
    if (theirs_fd >= 0)
        close(theirs_fd);
    return rc;
}

static bool shm_is_done(const struct shm_link *s)
{
    int state = atomic_load_explicit(&s->link->state, memory_order_relaxed);
    return (state == FAB_LEFT || state == FAB_DEAD) && !s->stash.count && !atomic_load_explicit(&s->backlog_bytes, memory_order_relaxed);
}

/* Adds a link to `here`, the list of links that are polled for messages. To make room, removes links to nodes that are gone. */
static void shm_add(struct weft_node *w, struct shm *shm, struct shm_link *s)
{
    uint32_t n = 0;
    base_spin_lock(&w->progress);
    for (uint32_t i = 0; i < shm->count; i++)
        if (!shm_is_done(shm->here[i]))
            shm->here[n++] = shm->here[i];
    shm->here[n++] = s;
    shm->count = n;
    base_spin_unlock(&w->progress);
}

static int shm_connect(struct weft_node *w, struct fab_link *l, int side_fd, int64_t deadline)
{
    struct shm *shm = w->shm;
    struct shm_link *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(-ENOMEM, "shm: no memory for the link to node %u" BASE_MEMORY_HINT, l->node);
    s->link = l;
    shm_messages_init(s);
    l->impl = s;
    l->transport = &fab_shm;
    if (l->node == w->rank) {
        s->pool = w->pool_base;
        s->control = shm->control;
        l->pool_bytes = w->pool_bytes;
    } else {
        struct hello mine = {CONTROL_MAGIC, w->pool_bytes, shm->control_bytes, w->rank, w->founders}, theirs = {0};
        int fds[2] = {-1, -1};
        int rc = base_send_fds(side_fd, &mine, sizeof mine, (int[]){mem_fd(w->pool), shm->control_fd}, 2);
        if (!rc)
            rc = base_receive_fds(side_fd, &theirs, sizeof theirs, fds, 2, deadline);
        if (!rc && fds[1] < 0)
            rc = -EPROTO; /* both descriptors must arrive */
        if (rc)
            base_fail(rc, "cannot exchange shared memory with node %u: %s%s", l->node, base_strerror(rc),
                      rc == -EMFILE ? "; raise the limit on open files (ulimit -n)" : "");
        else
            rc = map_peer(w, s, &theirs, fds);
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        if (!rc && fab_late(w, l->node))
            rc = shm_late_rings(s, side_fd, deadline);
        if (rc)
            return rc; /* release() frees the rest */
    }
    if (s->late[0]) {
        s->out.ring = s->late[0];
        s->in.ring = s->late[1];
    } else {
        s->out.ring = &s->control->rings[w->rank < w->founders ? w->rank : 0];
        s->in.ring = &shm->control->rings[l->node < w->founders ? l->node : 0];
    }
    shm_add(w, shm, s);
    return 0;
}

static void shm_disconnect(struct weft_node *w, struct fab_link *l)
{
    (void)w;
    if (l->impl)
        shm_fail_backlog(l->impl, -ECONNRESET);
}

static void shm_release(struct weft_node *w, struct fab_link *l)
{
    struct shm_link *s = l->impl;
    if (!s)
        return;
    shm_fail_backlog(s, -ECONNRESET);
    shm_forget_stash(s);
    if (l->node != w->rank) {
        if (s->pool)
            munmap(s->pool, l->pool_bytes);
        if (s->control)
            munmap(s->control, s->control_bytes);
        for (int i = 0; i < 2; i++)
            if (s->late[i])
                munmap(s->late[i], base_round_up(sizeof(struct ring), BASE_PAGE));
    }
    free(s);
    l->impl = NULL;
}

struct ring *shm_ring_to(struct weft_node *w, uint32_t node)
{
    struct shm_link *s = w->links[node].impl;
    return s->out.ring;
}

struct ring *shm_ring_from(struct weft_node *w, uint32_t node)
{
    struct shm_link *s = w->links[node].impl;
    return s->in.ring;
}

const struct fab_transport fab_shm = {
    .name = "shm",
    .at_once = true,
    .open = shm_open_transport,
    .close = shm_close,
    .reaches = shm_reaches,
    .connect = shm_connect,
    .last_words = shm_last_words,
    .broken = shm_broken,
    .disconnect = shm_disconnect,
    .release = shm_release,
    .put = shm_put,
    .get = shm_get,
    .atomic = shm_atomic,
    .put_signal = shm_put_signal,
    .set_system = shm_set_system,
    .send = shm_send,
    .flushed = shm_flushed,
    .fence = shm_fence,
    .progress = shm_progress,
    .idle = shm_idle,
    .pointer = shm_pointer,
    .settle = shm_settle,
    .wake = shm_wake,
};
