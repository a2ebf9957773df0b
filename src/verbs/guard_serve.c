/* SPDX-License-Identifier: MIT
 *
 * Serves one program, on one thread. The guard is a process that owns RDMA devices for programs, so that all objects are freed in order
 * even if a program is killed. The guard maps the program's pool, executes the program's calls and requests, and frees the program's
 * objects when the program ends. docs/thunderbolt-guard.md says which failures this cannot prevent.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/process.h"
#include "verbs/guard_serve.h"

#define SPIN   (20 * WEFT_US)
#define READS  WEFT_SECOND   /* how long a program may take to read an answer, or to send the rest of a call */
#define LOOK   (5 * WEFT_MS) /* time between two queries of the ports while data moves */
#define NAP_MS 20            /* ms between two queries of the ports while no data moves */

/* Serves a call, if one has arrived. Returns false if the program has ended, or has sent something invalid. */
static bool serve_one(struct guard *g, bool *some)
{
    struct pollfd ready = {.fd = g->fd, .events = POLLIN};
    struct guard_call c;
    struct guard_answer a;
    int came[1] = {-1}, fd[2] = {-1, -1};
    *some = false;
    if (poll(&ready, 1, 0) <= 0)
        return true;
    int rc = base_receive_fds(g->fd, &c, sizeof c, came, 1, base_deadline(READS));
    if (rc && rc != -EMFILE)
        return false;
    *some = true;
    memset(&a, 0, sizeof a);
    fd[0] = came[0];
    int result = rc ? -rc : guard_answer_call(g, &c, &a, fd);
    if (came[0] >= 0)
        close(came[0]); /* the memory was mapped by now */
    bool gives = result == 0 && (c.verb == GUARD_CREATE_CHANNEL || c.verb == GUARD_CREATE_CQ || c.verb == GUARD_CREATE_QP);
    a.result = result;
    bool sent = base_send_fds(g->fd, &a, sizeof a, fd, gives ? 1 : 0) == 0;
    if (gives)
        close(fd[0]);
    return sent;
}

/* --- one program --- */

/* Destroys all objects of the program in the order that devices need: queue pairs, regions, completion queues, channels, domains, contexts.
 */
static void guard_give_back(struct guard *g)
{
    static const enum kind order[] = {PAIR, REGION, COMPLETIONS, CHANNEL, DOMAIN, CONTEXT};
    uint32_t n = 0, domains = 0;
    for (size_t k = 0; k < sizeof order / sizeof order[0]; k++)
        for (uint32_t i = 0; i < g->table[order[k]].top; i++) {
            void *one = guard_find(g, order[k], i);
            int err = one ? guard_destroy(g, order[k], one) : 0;
            n += one && order[k] != CONTEXT;
            domains += one && order[k] == DOMAIN;
            if (err)
                base_log(BASE_LOG_WARN,
                         "a program has ended and left an object of an RDMA device, which cannot be freed: %s; if the device runs out of "
                         "objects, restart the host",
                         base_strerror(err));
        }
    if (n)
        base_log(BASE_LOG_INFO,
                 "the program ended without freeing its objects of RDMA devices: the guard has freed them (%u domains, %u objects)",
                 domains, n);
}

/* Sleeps until a device or the program has work for the guard. Checks once more for work before it sleeps: work that arrived before
 * `sleeping` was set does not wake the guard. */
static void nap(struct guard *g)
{
    struct pollfd fds[3 + 64] = {
        {.fd = g->fd, .events = POLLIN}, {.fd = g->bell[0], .events = POLLIN}, {.fd = g->program, .events = POLLIN}};
    nfds_t n = 3;
    for (uint32_t i = 0; i < g->table[COMPLETIONS].top; i++) {
        struct completions *c = guard_find(g, COMPLETIONS, i);
        if (c)
            ibv_req_notify_cq(c->real, 0);
        if (c && n < sizeof fds / sizeof fds[0])
            fds[n++] = (struct pollfd){.fd = c->channel->real->fd, .events = POLLIN};
    }
    /* seq_cst: pairs with the fence in ring_bell() of guard_verbs.c. If the program has written a request and still reads 0 in `sleeping`,
     * it does not wake the guard; but then guard_move_all() below finds the request. */
    atomic_store_explicit(&g->page->sleeping, 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
    if (guard_move_all(g) == 0 && !g->broken)
        poll(fds, n, NAP_MS);
    atomic_store_explicit(&g->page->sleeping, 0, memory_order_relaxed);
    char bytes[64];
    while (read(g->bell[0], bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        ;
    for (uint32_t i = 0; i < g->table[CHANNEL].top; i++) {
        struct channel *ch = guard_find(g, CHANNEL, i);
        struct ibv_cq *cq;
        void *context;
        while (ch && g->lib->get_cq_event(ch->real, &cq, &context) == 0)
            g->lib->ack_cq_events(cq, 1);
    }
}

static bool program_ended(const struct guard *g)
{
    struct pollfd end = {.fd = g->program, .events = POLLIN};
    return g->program >= 0 && poll(&end, 1, 0) > 0;
}

static void guard_run(struct guard *g)
{
    int64_t active = 0, served = 0, looked = 0;
    for (;;) {
        g->now = base_now_ns();
        bool some = guard_move_all(g) > 0, called = false;
        /* serve_one() makes a system call. While data moves, one each millisecond is enough; one before every request would be slow. */
        if (!some || g->now - served > WEFT_MS) {
            served = g->now;
            if (!serve_one(g, &called))
                return;
        }
        if (g->broken) {
            base_log(BASE_LOG_WARN,
                     "a program sent the guard an invalid request: %s; the guard frees the program's objects of RDMA devices. Run the same "
                     "version of "
                     "weft for the program and for WEFT_GUARD",
                     g->broken);
            return;
        }
        if (g->now - looked > LOOK) {
            looked = g->now;
            for (uint32_t i = 0; i < g->table[CONTEXT].top; i++)
                if (guard_find(g, CONTEXT, i))
                    guard_look(g, guard_find(g, CONTEXT, i), LOOK);
            if (program_ended(g))
                return;
        }
        if (some || called)
            active = g->now;
        else if (g->now - active < SPIN)
            sched_yield();
        else
            nap(g);
    }
}

/* Sets the program's name for messages, " (NAME)"; "" if the system does not report it. */
static void name_program(struct guard *g)
{
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", g->pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, name, sizeof name - 1) : 0;
    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < n; i++)
        name[i] = name[i] == '\n' ? '\0' : name[i] < 0x20 || name[i] > 0x7e ? '?' : name[i];
    if (name[0])
        snprintf(g->name, sizeof g->name, " (%.31s)", name);
}

static int guard_start(struct guard *g)
{
    unsigned uid;
    int page = base_memory_fd("weft-guard-page", base_round_up(sizeof *g->page, BASE_PAGE), false);
    if (page < 0)
        return page;
    void *p = mmap(NULL, base_round_up(sizeof *g->page, BASE_PAGE), PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    /* Sockets, not a pipe: a write to a pipe without reader would kill the program by SIGPIPE. */
    int rc = p == MAP_FAILED ? -errno : base_socketpair(g->bell);
    g->page = p == MAP_FAILED ? NULL : p;
    /* A time limit, because this thread must notice the program's end even if the program does not read its answers. */
    const struct timeval reads = {.tv_sec = READS / WEFT_SECOND};
    if (!rc && setsockopt(g->fd, SOL_SOCKET, SO_SNDTIMEO, &reads, sizeof reads))
        rc = -errno;
    if (!rc) {
        fcntl(g->bell[0], F_SETFL, O_NONBLOCK);
        const struct guard_greeting hello = {GUARD_MAGIC, sizeof(struct guard_call), sizeof(struct guard_answer),
                                             sizeof(struct guard_completion)};
        rc = base_send_fds(g->fd, &hello, sizeof hello, (int[]){page, g->bell[1]}, 2);
    }
    if (g->bell[1] >= 0)
        close(g->bell[1]);
    close(page);
    /* The socket alone does not show that the program has ended, because a forked child may keep the socket open. So also watch the
     * process. */
    pthread_mutex_lock(&g->shared->lock); /* threads that serve other programs read g->pid and g->name */
    bool known = base_peer_identity(g->fd, &uid, &g->pid) == 0 && g->pid > 0;
    if (known)
        name_program(g);
    pthread_mutex_unlock(&g->shared->lock);
    g->program = known ? base_watch_process(g->pid) : -1;
    return rc;
}

/* Frees what the guard has allocated for a program, except objects of devices. */
static void guard_forget(struct guard *g)
{
    for (uint32_t i = 0; i < g->table[SHARE].top; i++) {
        struct share *s = guard_find(g, SHARE, i);
        if (s)
            munmap(s->here, s->bytes);
        free(s);
    }
    for (size_t k = 0; k < KINDS; k++)
        free(g->table[k].at);
    if (g->page)
        munmap(g->page, base_round_up(sizeof *g->page, BASE_PAGE));
    if (g->bell[0] >= 0)
        close(g->bell[0]);
    if (g->program >= 0)
        close(g->program);
}

int guard_serve_program(struct guard_shared *s, struct guard *g)
{
    g->lib = s->lib;
    g->shared = s;
    g->bell[0] = g->bell[1] = g->program = -1;
    int rc = guard_start(g);
    if (rc) {
        const int32_t error = -rc;
        (void)!write(g->fd, &error, sizeof error);
    } else {
        guard_run(g);
        guard_give_back(g);
    }
    guard_forget(g);
    close(g->fd); /* close the socket last, because a program that closes its devices waits until the socket is closed */
    return rc;
}
