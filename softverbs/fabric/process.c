/* SPDX-License-Identifier: MIT
 *
 * Processes on a fabric: who lives, and what becomes of what the dead have left.
 *
 * A process lives while its memory holds the cookie that its entry names. One read of its memory answers for death,
 * for a number that another process has by now, and for another program started in its place.
 *
 * Where that read is forbidden (Yama's scope 2, another user namespace, a program that may not be traced), the time at which
 * the process began must do. To take a living one for dead would be the end of its queues.
 */
#include "fabric.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static _Atomic uint64_t own_space; /* of sf_know_self: a forked child may be in another one, and asks again when it joins */

/* Field 22 of /proc/PID/stat; -errno where it cannot be read. The command's name, in brackets, may have anything in it. */
static int64_t start_of(const char *path)
{
    char text[1024];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return -ESRCH;
    text[n] = 0;
    char *field = strrchr(text, ')');
    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoll(field, NULL, 10) : -EIO;
}

void sf_know_self(uint64_t *space, uint64_t *started)
{
    struct stat s;
    int64_t start = start_of("/proc/self/stat");
    *space = stat("/proc/self/ns/pid", &s) == 0 ? s.st_ino : 0;
    *started = start > 0 ? (uint64_t)start : 0;
    atomic_store_explicit(&own_space, *space, memory_order_relaxed);
}

/* Whether the process of this number is the one that began when the entry's did; yes, where that cannot be told. */
static bool same_start(const struct sf_process *p)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", p->pid);
    int64_t start = p->started ? start_of(path) : -EACCES;
    if (start < 0) /* a /proc that hides others' processes has no file for a living one */
        return kill(p->pid, 0) == 0 || errno == EPERM;
    return (uint64_t)start == p->started;
}

pid_t sf_reach(const struct sf_fabric *f, uint32_t process)
{
    return atomic_load_explicit(&f->processes[(process - 1) % SF_PROCESSES].thread, memory_order_relaxed);
}

static ssize_t read_cookie(const struct sf_process *p, pid_t by, uint64_t *cookie)
{
    struct iovec here = {cookie, sizeof *cookie}, there = {(void *)(uintptr_t)p->cookie_address, sizeof *cookie};
    return process_vm_readv(by, &here, 1, &there, 1, 0);
}

/* A process lives on when its first thread has ended; but nothing is reached by that one's number any more. */
static bool found_thread(struct sf_process *p)
{
    char path[32];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/task", p->pid);
    DIR *threads = opendir(path);
    for (struct dirent *e; threads && !found && (e = readdir(threads));) {
        uint64_t cookie;
        pid_t by = (pid_t)strtol(e->d_name, NULL, 10);
        found = by > 0 && read_cookie(p, by, &cookie) == (ssize_t)sizeof cookie && cookie == p->cookie;
        if (found)
            atomic_store_explicit(&p->thread, by, memory_order_relaxed);
    }
    if (threads)
        closedir(threads);
    return found;
}

bool sf_alive(struct sf_fabric *f, uint32_t process)
{
    if (process == 0 || process > SF_PROCESSES)
        return false;
    struct sf_process *p = &f->processes[process - 1];
    uint32_t owner = atomic_load_explicit(&p->owner, memory_order_acquire);
    if (owner == 0)
        return false;
    if (owner & SF_JOINING) /* it has not written its cookie yet: its number must do for these few microseconds */
        return kill((pid_t)(owner & ~SF_JOINING), 0) == 0 || errno == EPERM;
    uint64_t space = atomic_load_explicit(&p->space, memory_order_relaxed);
    if (space != atomic_load_explicit(&own_space, memory_order_relaxed))
        return space != SF_SPACE_DEAD; /* its number is another's here, or nobody's: only sf_attach can tell */
    uint64_t cookie = 0;
    ssize_t n = read_cookie(p, sf_reach(f, process), &cookie);
    if (n < 0 && (errno == EPERM || errno == ENOSYS))
        return same_start(p);
    return (n == (ssize_t)sizeof cookie && cookie == p->cookie) || found_thread(p);
}

void sf_recount(struct sf_fabric *f)
{
    for (uint32_t d = 0; d < f->model.topology.device_count && d < SV_DEVICES; d++) {
        struct sf_device *dev = &f->devices[d];
        dev->qps = dev->pds = dev->mrs = dev->cqs = dev->srqs = 0;
    }
#define COUNT(table, top, total, member)                                                                              \
    for (uint32_t i = 0; i < f->top && i < (total); i++)                                                             \
        if (atomic_load_explicit(&f->table[i].owner, memory_order_relaxed) != 0 && f->table[i].device < SV_DEVICES)  \
        f->devices[f->table[i].device].member++
    COUNT(qps, qp_top, SF_QPS, qps);
    COUNT(pds, pd_top, SF_PDS, pds);
    COUNT(mrs, mr_top, SF_MRS, mrs);
    COUNT(cqs, cq_top, SF_CQS, cqs);
    COUNT(srqs, srq_top, SF_SRQS, srqs);
#undef COUNT
}

/* Locks of the dead are taken over and let go, so that its number can be given out again. Completion queues come first:
 * their mending says how far the other queues are. `process` is dead, or this one's predecessor in its entry. */
static void release_locks(struct sf_view *v, uint32_t process)
{
    struct sf_fabric *f = v->fabric;
#define TAKEN(l)                                                                                                      \
    ((atomic_load_explicit(&(l).word, memory_order_relaxed) & ~SF_LOCK_WAITED) == process &&                         \
     (process == v->process || sf_lock(v, &(l)) || true))
    for (uint32_t i = 0; i < f->cq_top && i < SF_CQS; i++)
        if (TAKEN(f->cqs[i].lock)) {
            sf_mend_cq(f, &f->cqs[i]);
            sf_unlock(v, &f->cqs[i].lock);
            sf_wake_cq(v, &f->cqs[i]);
        }
    for (uint32_t i = 0; i < f->model.topology.device_count && i < SV_DEVICES; i++)
        if (TAKEN(f->devices[i].atomics))
            sf_unlock(v, &f->devices[i].atomics);
    for (uint32_t i = 0; i < f->srq_top && i < SF_SRQS; i++)
        if (TAKEN(f->srqs[i].queue.lock))
            sf_unlock(v, &f->srqs[i].queue.lock);
    for (uint32_t i = 0; i < f->qp_top && i < SF_QPS; i++) {
        struct sf_qp *qp = &f->qps[i];
        if (TAKEN(qp->lock)) {
            sf_mend_send(qp);
            sf_unlock(v, &qp->lock);
            /* What the dead one was executing may be the work of a living one: let its owner go on when it next looks. */
            atomic_store_explicit(&qp->waiting, 1, memory_order_relaxed);
            atomic_store_explicit(&f->cqs[qp->send_cq % SF_CQS].waiting, 1, memory_order_release);
            sf_wake_cq(v, &f->cqs[qp->send_cq % SF_CQS]);
        }
        if (TAKEN(qp->receive.lock)) {
            sf_unlock(v, &qp->receive.lock);
            sf_wake_cq(v, &f->cqs[qp->receive_cq % SF_CQS]);
        }
    }
#undef TAKEN
}

/* Everything that belongs to a process goes: queue pairs first, so that nothing arrives any more; each under the locks that
 * others hold while they work on it. The fabric's lock is held. */
static void bury(struct sf_view *v, uint32_t process)
{
    struct sf_fabric *f = v->fabric;
#define MINE(e) (atomic_load_explicit(&(e).owner, memory_order_relaxed) == process)
    for (uint32_t i = 0; i < f->qp_top && i < SF_QPS; i++)
        if (MINE(f->qps[i])) {
            struct sf_qp *qp = &f->qps[i];
            sf_lock_send(v, qp);
            sf_lock_receive(v, &qp->receive, NULL);
            atomic_store_explicit(&qp->state, 0, memory_order_release);
            sf_unlock(v, &qp->receive.lock);
            sf_unlock(v, &qp->lock);
            sf_free_qp(f, i);
        }
    for (uint32_t i = 0; i < f->srq_top && i < SF_SRQS; i++)
        if (MINE(f->srqs[i])) {
            sf_lock_receive(v, &f->srqs[i].queue, NULL);
            sf_free_srq(f, i);
            sf_unlock(v, &f->srqs[i].queue.lock);
        }
    for (uint32_t i = 0; i < f->cq_top && i < SF_CQS; i++)
        if (MINE(f->cqs[i])) {
            sf_lock_cq(v, &f->cqs[i]);
            sf_free_cq(f, i);
            sf_unlock(v, &f->cqs[i].lock);
        }
    for (uint32_t i = 0; i < f->mr_top && i < SF_MRS; i++)
        if (MINE(f->mrs[i])) {
            atomic_store_explicit(&f->mrs[i].live, 0, memory_order_release);
            sf_free_mr(f, i);
        }
    for (uint32_t i = 0; i < f->pd_top && i < SF_PDS; i++)
        if (MINE(f->pds[i])) {
            if (f->model.profile.pd_leaks) /* it stays counted */
                atomic_store_explicit(&f->pds[i].owner, SF_LEAKED, memory_order_release);
            else
                sf_free_pd(f, i);
        }
    for (uint32_t i = 0; i < f->context_top && i < SF_CONTEXTS; i++)
        if (MINE(f->contexts[i]))
            atomic_store_explicit(&f->contexts[i].owner, 0, memory_order_release);
#undef MINE
    sf_arena_give_all(v, process);
    atomic_store_explicit(&f->processes[process - 1].owner, 0, memory_order_release);
}

void sf_reap(struct sf_view *v, uint32_t process)
{
    if (process == 0 || process > SF_PROCESSES || process == v->process || sf_alive(v->fabric, process))
        return;
    sf_lock_fabric(v);
    /* Looked at again under the lock: another may have been here, and the number may have a new owner. */
    if (atomic_load_explicit(&v->fabric->processes[process - 1].owner, memory_order_acquire) != 0 &&
        !sf_alive(v->fabric, process)) {
        release_locks(v, process);
        bury(v, process);
    }
    sf_unlock(v, &v->fabric->lock);
}

unsigned sf_reap_all(struct sf_view *v)
{
    unsigned buried = 0;
    for (uint32_t p = 1; p <= v->fabric->process_top && p <= SF_PROCESSES; p++) {
        if (atomic_load_explicit(&v->fabric->processes[p - 1].owner, memory_order_acquire) == 0 ||
            sf_alive(v->fabric, p))
            continue;
        sf_reap(v, p);
        buried++;
    }
    return buried;
}

/* Whether a lock that bury() would take stays where it is: with a thread of this process that this call interrupted, or with a
 * process that has been stopped. A dead one's is taken over. */
static bool stuck(struct sf_view *v, struct sf_lock *l)
{
    uint32_t holder = atomic_load_explicit(&l->word, memory_order_relaxed) & ~SF_LOCK_WAITED;
    for (int turn = 0; turn < 50 && holder != 0; turn++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if ((atomic_load_explicit(&l->word, memory_order_relaxed) & ~SF_LOCK_WAITED) != holder)
            return false;
    }
    return holder != 0 && (holder == v->process || sf_alive(v->fabric, holder));
}

void sf_leave(struct sf_view *v)
{
    struct sf_fabric *f = v->fabric;
    if (stuck(v, &f->lock))
        return;
    for (uint32_t i = 0; i < f->qp_top && i < SF_QPS; i++)
        if (f->qps[i].owner == v->process && (stuck(v, &f->qps[i].lock) || stuck(v, &f->qps[i].receive.lock)))
            return;
    for (uint32_t i = 0; i < f->srq_top && i < SF_SRQS; i++)
        if (f->srqs[i].owner == v->process && stuck(v, &f->srqs[i].queue.lock))
            return;
    for (uint32_t i = 0; i < f->cq_top && i < SF_CQS; i++)
        if (f->cqs[i].owner == v->process && stuck(v, &f->cqs[i].lock))
            return;
    sf_lock_fabric(v);
    bury(v, v->process);
    sf_unlock(v, &f->lock);
}

void sf_inherit(struct sf_view *v)
{
    struct sf_fabric *f = v->fabric;
    if ((atomic_load_explicit(&f->lock.word, memory_order_relaxed) & ~SF_LOCK_WAITED) == v->process)
        sf_recount(f); /* it died with the fabric's lock: that is mine now */
    else
        sf_lock_fabric(v);
    /* Unless another was burying it when it was taken: then the entry is free, or somebody else's by now. */
    if (atomic_load_explicit(&f->processes[v->process - 1].owner, memory_order_acquire) == (SF_JOINING | (uint32_t)getpid())) {
        release_locks(v, v->process);
        bury(v, v->process);
    }
    sf_unlock(v, &v->fabric->lock);
}
