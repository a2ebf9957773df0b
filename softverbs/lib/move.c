/* SPDX-License-Identifier: MIT
 *
 * Copies data between the memory of two processes by cross-memory attach: in one copy, in the calling thread.
 *
 * All addresses come from requests and regions of programs. They are checked against the region's entry, and the system call checks that
 * they are mapped. The system call is used even within one process, so that the request fails, and the library does not crash, if the
 * program has unmapped the memory.
 */
#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN true
#endif
#endif
#if !defined(UNDER_TSAN)
#define UNDER_TSAN false
#endif

static bool add_piece(struct sv_place *p, uint64_t address, uint64_t bytes)
{
    if (bytes == 0)
        return true;
    if (p->count == SV_PIECES)
        return false;
    p->piece[p->count++] = (struct iovec){(void *)(uintptr_t)address, bytes};
    p->bytes += bytes;
    return true;
}

bool sv_place_add(struct sv_place *p, uint32_t process, uint32_t pd, uint32_t key, uint64_t address, uint64_t bytes, uint32_t access)
{
    if (bytes == 0)
        return true; /* the standard requires this: the key of an empty range is not checked */
    uint32_t index = key >> 8;
    if (index >= SF_MRS)
        return false;
    struct sf_mr *mr = &sv_lib.fabric->mrs[index];
    /* this load comes after the queue was marked busy (deliver.c); pairs with `live` = 0 before sv_quiesce() in ibv_dereg_mr() */
    if (atomic_load_explicit(&mr->live, memory_order_seq_cst) == 0 || atomic_load_explicit(&mr->owner, memory_order_relaxed) != process)
        return false;
    if ((mr->generation & 0xff) != (key & 0xff) || mr->pd != pd || (mr->access & access) != access)
        return false;
    if (address < mr->iova || bytes > mr->length || address - mr->iova > mr->length - bytes)
        return false;
    uint64_t offset = address - mr->iova;
    const uint64_t wrap = UINT64_C(1) << 32;
    if (sv_lib.profile->huge_region == SV_HUGE_WRAPS && mr->length >= wrap) {
        /* this device computes offsets modulo 2^32 */
        offset %= wrap;
        if (offset + bytes > wrap)
            return add_piece(p, mr->address + offset, wrap - offset) && add_piece(p, mr->address, offset + bytes - wrap);
    }
    return add_piece(p, mr->address + offset, bytes);
}

static pid_t pid_of(uint32_t process)
{
    return sf_reach(sv_lib.fabric, process);
}

static void move_advance(struct sv_place *p, int *first, uint64_t bytes)
{
    while (bytes > 0 && *first < p->count) {
        struct iovec *v = &p->piece[*first];
        if (v->iov_len > bytes) {
            v->iov_base = (char *)v->iov_base + bytes;
            v->iov_len -= bytes;
            return;
        }
        bytes -= v->iov_len;
        ++*first;
    }
}

static void move_cut(struct sv_place *p, uint64_t bytes)
{
    uint64_t left = bytes;
    for (int i = 0; i < p->count; i++) {
        if (p->piece[i].iov_len >= left) {
            p->piece[i].iov_len = left;
            p->count = left > 0 ? i + 1 : i;
            break;
        }
        left -= p->piece[i].iov_len;
    }
    p->bytes = bytes;
}

/* Returns Yama's ptrace scope; 0: this kernel has no Yama. */
static int yama_scope(void)
{
    char digit = '0';
    int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, &digit, 1) != 1)
            digit = '0';
        close(fd);
    }
    return digit - '0';
}

/* Logs, once for each process, why the memory of another process cannot be accessed. */
static enum sv_moved move_denied(pid_t pid, int error)
{
    static _Atomic int told;
    const char *remedy;
    if (atomic_exchange(&told, 1))
        return SV_MOVED_DENIED;
    if (error == ENOSYS)
        remedy = "This kernel has no process_vm_readv: use one with CONFIG_CROSS_MEMORY_ATTACH";
    else if (yama_scope() == 2)
        remedy =
            "Yama's ptrace_scope is 2 here: only the administrator may attach. Set it to 1 (sysctl kernel.yama.ptrace_scope=1), or give "
            "both programs CAP_SYS_PTRACE";
    else if (yama_scope() >= 3)
        remedy =
            "Yama's ptrace_scope is 3 here: nobody may attach, until the machine is started again with 1 (sysctl kernel.yama.ptrace_scope)";
    else
        remedy = "Both programs must belong to one user and one user namespace (container), and not be set-user-ID programs; a "
                 "container's seccomp profile must allow process_vm_readv and process_vm_writev (docker: --cap-add SYS_PTRACE)";
    sv_log(SV_ERROR, "data cannot move: cross-memory attach to process %d is not permitted (%s). %s", (int)pid, strerror(error), remedy);
    return SV_MOVED_DENIED;
}

/* After EFAULT, finds out which side is unmapped, by reading a byte of the other process. */
static bool other_faults(pid_t pid, const struct iovec *there)
{
    char byte;
    struct iovec here = {&byte, 1}, probe = {there->iov_base, 1};
    return process_vm_readv(pid, &here, 1, &probe, 1, 0) != 1;
}

/* Copies between this process (`here`) and another one. The thread sanitizer treats the C library's call as an access of this thread to
 * `here`. For RDMA writes and reads this is wrong, because several peers may access the same memory at once. So these use the system call
 * directly. */
static ssize_t copy(pid_t pid, bool out, bool one_sided, const struct iovec *here, unsigned long hn, const struct iovec *there,
                    unsigned long tn)
{
    if (one_sided && UNDER_TSAN)
        return (ssize_t)syscall(out ? SYS_process_vm_writev : SYS_process_vm_readv, (long)pid, here, hn, there, tn, 0UL);
    return out ? process_vm_writev(pid, here, hn, there, tn, 0) : process_vm_readv(pid, here, hn, there, tn, 0);
}

enum sv_moved sv_move(struct sv_place *source, struct sv_place *target, uint64_t bytes, bool one_sided)
{
    if (bytes == 0) { /* an empty message must not reach a dead process either */
        uint32_t other = source->process == sv_lib.view.process ? target->process : source->process;
        return other == sv_lib.view.process || sf_alive(sv_lib.fabric, other) ? SV_MOVED : SV_MOVED_DEAD;
    }
    if (bytes > source->bytes || bytes > target->bytes)
        return SV_MOVED_SOURCE; /* another process has overwritten the request: its length differs from the sum of its elements */
    bool out = source->process == sv_lib.view.process;
    struct sv_place *here = out ? source : target, *there = out ? target : source;
    pid_t pid = pid_of(there->process);
    if (source->bytes != bytes)
        move_cut(source, bytes);
    if (target->bytes != bytes)
        move_cut(target, bytes);
    int h = 0, t = 0;
    for (uint64_t left = bytes; left > 0;) {
        unsigned long hn = (unsigned long)(here->count - h), tn = (unsigned long)(there->count - t);
        ssize_t n = copy(pid, out, one_sided, here->piece + h, hn, there->piece + t, tn);
        if (n > 0) { /* usually everything; but a call moves less than 2 GiB */
            left -= (uint64_t)n;
            if (left == 0)
                break;
            move_advance(here, &h, (uint64_t)n);
            move_advance(there, &t, (uint64_t)n);
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == ESRCH)
            return SV_MOVED_DEAD;
        if (n < 0 && (errno == EPERM || errno == ENOSYS))
            return move_denied(pid, errno);
        /* EFAULT, or nothing was moved: registered memory was unmapped */
        if (there->process != sv_lib.view.process && !sf_alive(sv_lib.fabric, there->process))
            return SV_MOVED_DEAD; /* another program has the process number now */
        bool other = other_faults(pid, &there->piece[t]);
        return other == out ? SV_MOVED_TARGET : SV_MOVED_SOURCE;
    }
    return SV_MOVED;
}

static enum sv_moved move_word(uint32_t process, uint64_t address, uint64_t *value, bool write)
{
    struct iovec here = {value, 8}, there = {(void *)(uintptr_t)address, 8};
    pid_t pid = pid_of(process);
    ssize_t n = write ? process_vm_writev(pid, &here, 1, &there, 1, 0) : process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (n == 8)
        return SV_MOVED;
    if (n < 0 && errno == ESRCH)
        return SV_MOVED_DEAD;
    return n < 0 && (errno == EPERM || errno == ENOSYS) ? move_denied(pid, errno) : SV_MOVED_TARGET;
}

enum sv_moved sv_move_atomic(uint32_t process, uint32_t device, uint64_t address, bool compare, uint64_t compare_add, uint64_t swap,
                             uint64_t *old)
{
    struct sf_lock *lock = &sv_lib.fabric->devices[device % SV_DEVICES].atomics;
    uint64_t value;
    sf_lock(&sv_lib.view, lock);
    enum sv_moved r = move_word(process, address, old, false);
    if (r == SV_MOVED && (!compare || *old == compare_add)) {
        value = compare ? swap : *old + compare_add;
        r = move_word(process, address, &value, true);
    }
    sf_unlock(&sv_lib.view, lock);
    return r;
}

void sv_flip(const struct sv_place *p, uint64_t offset)
{
    for (int i = 0; i < p->count; i++) {
        if (offset >= p->piece[i].iov_len) {
            offset -= p->piece[i].iov_len;
            continue;
        }
        unsigned char byte;
        struct iovec here = {&byte, 1}, there = {(char *)p->piece[i].iov_base + offset, 1};
        if (process_vm_readv(pid_of(p->process), &here, 1, &there, 1, 0) == 1) {
            byte ^= 1;
            process_vm_writev(pid_of(p->process), &here, 1, &there, 1, 0);
        }
        return;
    }
}

void sv_quiesce(void)
{
    struct sf_fabric *f = sv_lib.fabric;
    uint32_t me = sv_lib.view.process;
    /* seq_cst: a process that marks its queue busy after this sees that the region is gone; the loop waits for processes that did so
     * before. */
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t i = 0; i < f->qp_top && i < SF_QPS; i++) {
        struct sf_qp *qp = &f->qps[i];
        uint64_t busy = atomic_load_explicit(&qp->busy, memory_order_seq_cst);
        if (!(busy & 1) || (atomic_load_explicit(&qp->owner, memory_order_relaxed) != me &&
                            atomic_load_explicit(&qp->busy_with, memory_order_relaxed) != me))
            continue;
        for (unsigned turn = 0; atomic_load_explicit(&qp->busy, memory_order_acquire) == busy; turn++) {
            if (turn % 64 == 63) {
                uint32_t holder = atomic_load_explicit(&qp->lock.word, memory_order_relaxed) & ~SF_LOCK_WAITED;
                if (holder == 0 || !sf_alive(f, holder))
                    break;
            }
            if (turn < 16)
                sched_yield();
            else
                nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        }
    }
}
