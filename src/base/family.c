/* SPDX-License-Identifier: MIT
 *
 * Finds a program and all processes that descend from it (struct base_family). On Linux, weft writes a number, the mark, into the soft
 * limit RLIMIT_RTTIME of the program. All descendants inherit the mark, even in a new session, a new process group or an empty environment.
 * Other processes can read the mark. As a limit it has no effect: RLIMIT_RTTIME is a time in microseconds for real-time threads, and a mark
 * stands for more than 140,000 years. A subreaper would not be enough: it gets the orphans of all its programs, and cannot tell which
 * orphan belongs to which program.
 *
 * This file only makes system calls, because the guardian of a process with threads calls its functions after fork().
 */
#include "base/process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

#if defined(__linux__)
#include <sys/syscall.h>

/* a mark: bits 60 to 63 are 4; bits 28 to 59 are random for each process that makes marks; bits 0 to 27 are a counter of that process */
#define MARK_KIND  UINT64_C(4)
#define MARK_SHIFT 60u
#define MARK_COUNT 28u

uint64_t base_family_mark(void)
{
    static _Atomic uint64_t first, count;
    uint64_t random = atomic_load(&first);
    if (!random) {
        uint64_t other = 0;
        if (base_random(&random, sizeof random))
            random = (uint64_t)base_now_ns() ^ (uint64_t)getpid() << 32;
        random = random >> (64 - MARK_SHIFT) | 1u << MARK_COUNT; /* not 0 */
        if (!atomic_compare_exchange_strong(&first, &other, random))
            random = other;
    }
    uint64_t low = (UINT64_C(1) << MARK_COUNT) - 1;
    return MARK_KIND << MARK_SHIFT | (random & ~low) | ((random + atomic_fetch_add(&count, 1)) & low);
}

static void set_mark(bool none, uint64_t mark)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_RTTIME, &l) == 0 && (none ? l.rlim_cur >> MARK_SHIFT == MARK_KIND : mark <= l.rlim_max)) {
        l.rlim_cur = none ? l.rlim_max : mark;
        setrlimit(RLIMIT_RTTIME, &l);
    }
}

void base_family_join(uint64_t mark)
{
    set_mark(false, mark);
}

void base_family_leave(void)
{
    set_mark(true, 0);
}

/* Whether a process is neither dead nor a zombie. */
static bool still_runs(pid_t pid)
{
    char path[32] = "/proc/", stat[512];
    char digits[12];
    unsigned n = 0, at = 6;
    for (pid_t p = pid; p; p /= 10)
        digits[n++] = (char)('0' + p % 10);
    while (n)
        path[at++] = digits[--n];
    memcpy(path + at, "/stat", 6);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, stat, sizeof stat - 1);
    close(fd);
    stat[got < 0 ? 0 : got] = '\0';
    const char *name_end = strrchr(stat, ')'); /* the name may contain any byte */
    return name_end && name_end[1] && name_end[2] && !strchr("ZX", name_end[2]);
}

static bool is_member(pid_t pid, const struct base_family *f, unsigned count, bool sessions)
{
    struct rlimit l;
    uint64_t mark = prlimit(pid, RLIMIT_RTTIME, NULL, &l) ? 0 : (uint64_t)l.rlim_cur;
    mark = mark >> MARK_SHIFT == MARK_KIND ? mark : 0;
    pid_t session = sessions ? getsid(pid) : 0;
    for (unsigned i = 0; (mark || session > 1) && i < count; i++)
        if ((mark && f[i].mark == mark) || (f[i].session && f[i].leader == session))
            return true;
    return false;
}

struct entry { /* what SYS_getdents64 returns */
    uint64_t inode;
    int64_t next;
    uint16_t bytes;
    uint8_t type;
    char name[];
};

unsigned base_family_signal(const struct base_family *f, unsigned count, int signal)
{
    _Alignas(struct entry) char entries[8192];
    unsigned left = 0;
    bool sessions = false;
    for (unsigned i = 0; i < count; i++)
        sessions = sessions || f[i].session;
    int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    /* A process that is created during this loop gets a higher number, so the loop finds it, too, unless the numbers wrap around. */
    for (long n; (n = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0;)
        for (long at = 0; at < n;) {
            const struct entry *e = (const struct entry *)(entries + at);
            at += e->bytes;
            pid_t pid = e->name[0] >= '1' && e->name[0] <= '9' ? (pid_t)strtol(e->name, NULL, 10) : 0;
            if (pid > 1 && pid != getpid() && is_member(pid, f, count, sessions) && kill(pid, signal) == 0)
                left += still_runs(pid);
        }
    close(fd);
    return left;
}

#elif defined(__APPLE__)
#include <libproc.h>

uint64_t base_family_mark(void)
{
    return 0;
}

void base_family_join(uint64_t mark)
{
    (void)mark;
}

void base_family_leave(void)
{
}

#define CHILDREN 256
#define DEPTH    64u

/* Signals all descendants in the same session. Processes that left the session are skipped: helpers of this library leave it because they
 * must outlive the program. */
static unsigned signal_children(pid_t pid, pid_t session, int signal, unsigned depth)
{
    pid_t child[CHILDREN];
    unsigned left = 0;
    int n = depth < DEPTH ? proc_listchildpids(pid, child, sizeof child) : 0;
    for (int i = 0; i < n && i < CHILDREN; i++) {
        if (child[i] <= 1 || getsid(child[i]) != session)
            continue;
        kill(child[i], SIGSTOP); /* stop the child first, so that it cannot create children that this walk would miss */
        left += signal_children(child[i], session, signal, depth + 1);
        struct proc_bsdinfo info; /* proc_pidinfo() fails if the process has ended */
        left += kill(child[i], signal) == 0 && proc_pidinfo(child[i], PROC_PIDTBSDINFO, 0, &info, sizeof info) > 0;
        kill(child[i], SIGCONT);
    }
    return left;
}

unsigned base_family_signal(const struct base_family *f, unsigned count, int signal)
{
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++) {
        pid_t session = getsid(f[i].leader);
        if (session > 0)
            left += signal_children(f[i].leader, session, signal, 0);
    }
    return left;
}
#endif

#define KILL_ROUNDS_NS INT64_C(2000000000)
#define HANG_UP_NS     INT64_C(200000000)
#define BETWEEN_NS     INT64_C(2000000)
#define ROUNDS_AT_ONCE 4u

/* Repeats a signal until no process is left, or until the time is over. */
static void signal_rounds(const struct base_family *f, unsigned count, int signal, int64_t ns)
{
    int64_t deadline = base_deadline(ns);
    for (unsigned round = 0; base_family_signal(f, count, signal) && base_now_ns() < deadline; round++)
        if (round >= ROUNDS_AT_ONCE)
            base_sleep_ns(BETWEEN_NS);
}

void base_family_hang_up(const struct base_family *f, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        kill(-f[i].leader, SIGHUP);
        kill(-f[i].leader, SIGCONT);
    }
    (void)base_family_signal(f, count, SIGHUP);
    int64_t deadline = base_deadline(HANG_UP_NS);
    while (base_family_signal(f, count, SIGCONT) && base_now_ns() < deadline)
        base_sleep_ns(BETWEEN_NS);
}

void base_family_kill_first(const struct base_family *f)
{
#if defined(__linux__)
    kill(-f->leader, SIGKILL);
#else
    (void)f; /* the descendants can be found only while the leader lives */
#endif
}

void base_family_kill(const struct base_family *f, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        base_family_kill_first(&f[i]);
    signal_rounds(f, count, SIGKILL, KILL_ROUNDS_NS);
    for (unsigned i = 0; i < count; i++)
        kill(-f[i].leader, SIGKILL);
}
