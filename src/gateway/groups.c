/* SPDX-License-Identifier: MIT
 *
 * The programs that this node runs for other nodes. The numbers of their process groups are in memory shared with a helper process, the
 * guardian. The guardian ends programs with all their descendants (base_family_kill()), so that the node need not wait until these have
 * ended. The guardian reads from a socket. When the node's process ends in any way, the socket closes, and the guardian ends the programs
 * that are left.
 */
#include "gateway/gateway.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/process.h"

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0 /* the socket has SO_NOSIGPIPE */
#endif

struct gateway_groups {
    struct gateway_place *place; /* [GATEWAY_PROCESSES] */
    pid_t guardian;
    int fd; /* this process's end of a pair of sockets with the guardian; the system closes it when this process ends */
};

enum { PLACE_RUNS, PLACE_END, PLACE_HANG_UP, PLACE_ENDED };

#define GROUPS_BYTES (GATEWAY_PROCESSES * sizeof(struct gateway_place))

static struct base_family family_of(const struct gateway_place *p)
{
    return (struct base_family){.leader = atomic_load_explicit(&p->number, memory_order_seq_cst),
                                .session = atomic_load_explicit(&p->session, memory_order_relaxed),
                                .mark = atomic_load_explicit(&p->mark, memory_order_relaxed)};
}

/* Ends the programs that are marked for that in the table. `all`: ends all programs that are left. */
static void guard_end(struct gateway_place *place, bool all)
{
    struct base_family f[GATEWAY_PROCESSES], hang_up[GATEWAY_PROCESSES];
    uint16_t of[GATEWAY_PROCESSES];
    unsigned count = 0, hung_up = 0;
    for (uint16_t i = 0; i < GATEWAY_PROCESSES; i++) {
        struct base_family one = family_of(&place[i]);
        uint32_t state = atomic_load_explicit(&place[i].state, memory_order_seq_cst);
        if (one.leader <= 1 || (!all && state != PLACE_END && state != PLACE_HANG_UP))
            continue;
        if (state == PLACE_HANG_UP || (all && one.session))
            hang_up[hung_up++] = one;
        else
            base_family_kill_first(&one);
        of[count] = i;
        f[count++] = one;
    }
    if (hung_up)
        base_family_hang_up(hang_up, hung_up);
    if (count)
        base_family_kill(f, count);
    for (unsigned i = 0; i < count; i++)
        if (atomic_load_explicit(&place[of[i]].number, memory_order_seq_cst) == f[i].leader)
            atomic_store_explicit(&place[of[i]].state, PLACE_ENDED, memory_order_seq_cst);
}

/* Runs in the forked child. The parent may have threads, so the child makes only system calls. */
static _Noreturn void guard(struct gateway_place *place, int fd)
{
    char bytes[64];
    ssize_t n;
    base_process_set_apart("weft-guardian");
    if (dup2(fd, 3) == 3) {
        base_close_from(4);
        int rc = chdir("/");
        (void)rc;
        while ((n = read(3, bytes, sizeof bytes)) > 0 || (n < 0 && errno == EINTR))
            if (n > 0)
                guard_end(place, false);
    }
    guard_end(place, true);
    _exit(0);
}

int gateway_groups_open(struct gateway_groups **out)
{
    int fds[2];
    struct gateway_groups *all = calloc(1, sizeof *all);
    if (!all)
        return base_fail(-ENOMEM, "no memory for the table of the processes that other nodes may start on this node" BASE_MEMORY_HINT);
    void *memory = mmap(NULL, GROUPS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int rc = memory == MAP_FAILED ? -errno : base_socketpair(fds);
    if (rc) {
        if (memory != MAP_FAILED)
            munmap(memory, GROUPS_BYTES);
        free(all);
        return base_fail(rc, "cannot share the table of the processes that other nodes may start on this node: %s" BASE_MEMORY_HINT,
                         base_strerror(rc));
    }
    all->place = memory;
    all->guardian = base_process_fork();
    if (all->guardian == 0)
        guard(all->place, fds[0]);
    close(fds[0]);
    if (all->guardian < 0) {
        rc = (int)all->guardian;
        close(fds[1]);
        munmap(memory, GROUPS_BYTES);
        free(all);
        return base_fail(
            rc, "cannot start the process that ends the programs of other nodes on this host when this node dies: %s" BASE_THREAD_HINT,
            base_strerror(rc));
    }
    all->fd = fds[1];
#if defined(SO_NOSIGPIPE)
    const int on = 1;
    setsockopt(all->fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    *out = all;
    return 0;
}

struct gateway_place *gateway_groups_place(struct gateway_groups *all)
{
    for (uint32_t i = 0; i < GATEWAY_PROCESSES; i++) {
        struct gateway_place *p = &all->place[i];
        int32_t none = 0;
        if (!atomic_compare_exchange_strong_explicit(&p->number, &none, -1, memory_order_seq_cst, memory_order_relaxed))
            continue;
        atomic_store_explicit(&p->state, PLACE_RUNS, memory_order_relaxed);
        atomic_store_explicit(&p->session, false, memory_order_relaxed);
        atomic_store_explicit(&p->mark, base_family_mark(), memory_order_relaxed);
        return p;
    }
    return NULL;
}

static bool guardian_is_gone(const struct gateway_groups *all)
{
    return base_process_ended(all->guardian, NULL);
}

void gateway_groups_end(struct gateway_groups *all, struct gateway_place *p)
{
    const struct base_family f = family_of(p);
    atomic_store_explicit(&p->state, f.session ? PLACE_HANG_UP : PLACE_END, memory_order_seq_cst);
    if (!f.session)
        base_family_kill_first(&f);
    /* If the socket is full, the guardian will look at the table anyway. */
    if (send(all->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
        base_family_kill(&f, 1); /* the guardian was killed */
        atomic_store_explicit(&p->state, PLACE_ENDED, memory_order_seq_cst);
    }
}

bool gateway_groups_ended(const struct gateway_groups *all, const struct gateway_place *p)
{
    return atomic_load_explicit(&p->state, memory_order_seq_cst) == PLACE_ENDED || guardian_is_gone(all);
}

void gateway_groups_close(struct gateway_groups *all)
{
    if (!all)
        return;
    close(all->fd);
    base_process_reap(all->guardian);
    munmap((void *)all->place, GROUPS_BYTES);
    free(all);
}
