/* SPDX-License-Identifier: MIT
 *
 * The guard: a process that owns RDMA devices for a program, so that everything is freed in order even if the program is killed. It has the
 * program's pool mapped, executes the program's calls and the requests in its rings, and ends with the program. See guard.h;
 * docs/thunderbolt-guard.md says what this does not help against.
 *
 * One thread, one program.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/process.h"
#include "verbs/guard_serve.h"

#define SPIN   (20 * WEFT_US)
#define LOOK   (5 * WEFT_MS) /* how often the guard reads the port states while data moves ... */
#define NAP_MS 20            /* ... and while none moves */

/* Serves one call, if one has arrived. False: the program has ended, or has sent something invalid. */
static bool serve_one(struct guard *g, bool *some)
{
    struct pollfd ready = {.fd = g->fd, .events = POLLIN};
    struct guard_call c;
    struct guard_answer a;
    int came[1] = {-1}, fd[2] = {-1, -1};
    *some = false;
    if (poll(&ready, 1, 0) <= 0)
        return true;
    int rc = base_receive_fds(g->fd, &c, sizeof c, came, 1, base_deadline(WEFT_SECOND));
    if (rc && rc != -EMFILE)
        return false;
    *some = true;
    memset(&a, 0, sizeof a);
    fd[0] = came[0];
    int result = rc ? -rc : guard_answer_call(g, &c, &a, fd);
    if (came[0] >= 0)
        close(came[0]); /* a valid descriptor is mapped by now */
    bool gives = result == 0 && (c.verb == GUARD_CREATE_CHANNEL || c.verb == GUARD_CREATE_CQ || c.verb == GUARD_CREATE_QP);
    a.result = result;
    bool sent = base_send_fds(g->fd, &a, sizeof a, fd, gives ? 1 : 0) == 0;
    if (gives)
        close(fd[0]);
    return sent;
}

/* --- the process --- */

/* Destroys everything in the order that devices require: queue pairs, regions, completion queues, channels, domains, contexts. */
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
                base_log(BASE_LOG_WARN, "an object of an RDMA device cannot be freed: %s", base_strerror(err));
        }
    if (n)
        base_log(BASE_LOG_INFO, "the program ended without freeing its RDMA devices: the guard did it (%u domains, %u objects)", domains,
                 n);
}

/* Sleeps until a device or the program has work for the guard. Work that arrived before both were asked to wake the guard wakes nobody, so
   the guard looks once more before it sleeps. */
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
    /* seq_cst: a program that writes a request and then reads 0 here does not ring the bell; the look below then finds its request (the
       other fence is in ring_bell(), guard_verbs.c) */
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
        /* Looking for a call is a system call: too slow to do before every request. */
        if (!some || g->now - served > WEFT_MS) {
            served = g->now;
            if (!serve_one(g, &called))
                return;
        }
        if (g->broken) {
            base_log(BASE_LOG_WARN, "the program sent an invalid request: %s; its RDMA devices are freed", g->broken);
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

static int guard_start(struct guard *g)
{
    unsigned uid;
    int pid = 0, page = base_memory_fd("weft-guard-page", base_round_up(sizeof *g->page, BASE_PAGE), false);
    if (page < 0)
        return page;
    void *p = mmap(NULL, base_round_up(sizeof *g->page, BASE_PAGE), PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    /* A pair of sockets, not a pipe: writing to a pipe whose reader has died would kill the program by SIGPIPE. */
    int rc = p == MAP_FAILED ? -errno : base_socketpair(g->bell);
    if (!rc) {
        fcntl(g->bell[0], F_SETFL, O_NONBLOCK);
        g->page = p;
        const struct guard_greeting hello = {GUARD_MAGIC, sizeof(struct guard_call), sizeof(struct guard_answer),
                                             sizeof(struct guard_completion)};
        rc = base_send_fds(g->fd, &hello, sizeof hello, (int[]){page, g->bell[1]}, 2);
        close(g->bell[1]);
    }
    close(page);
    /* The end of our socket does not always tell that the program has ended: if it has forked, its child keeps the socket open. */
    g->program = base_peer_identity(g->fd, &uid, &pid) == 0 && pid > 0 ? base_watch_process(pid) : -1;
    return rc;
}

int verbs_guard_serve(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGTTOU, SIGTTIN, SIGPIPE, SIGUSR1, SIGUSR2};
    struct guard g = {.fd = GUARD_FD, .program = -1};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN); /* the program is asked to end by these; the guard ends after the program */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    base_name_process("weft-guard");
    base_log_name("guard");
    int rc = verbs_load(&g.lib);
    if (!rc)
        rc = guard_start(&g);
    if (rc) {
        const int32_t error = -rc;
        (void)!write(g.fd, &error, sizeof error);
        return rc;
    }
    guard_run(&g);
    guard_give_back(&g);
    close(g.fd);
    return 0;
}
