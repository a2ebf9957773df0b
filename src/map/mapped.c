/* SPDX-License-Identifier: MIT
 *
 * Maps a piece of a file into memory, for kernels, if the piece is too large for the pool. Reading a mapped file that was truncated raises
 * SIGBUS. This file's signal handler maps zeros in place of the missing pages, so that only the piece fails.
 */
#include "map/job.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static _Thread_local struct map_mapped *mine; /* the mapping that this thread reads now */
static struct sigaction before;
static pthread_once_t handled = PTHREAD_ONCE_INIT;

static void on_bus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    struct map_mapped *m = mine;
    uintptr_t at = (uintptr_t)info->si_addr, start = m ? (uintptr_t)m->start : 0, end = start + (m ? m->len : 0);
    if (at < start || at >= end) { /* the fault is not in our mapping: restore the former action; the fault then reaches that action */
        sigaction(sig, &before, NULL);
        return;
    }
    at -= at % (uintptr_t)m->page;
    int error = errno;
    if (mmap((void *)at, end - at, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        sigaction(sig, &before, NULL);
    errno = error;
    m->cut = 1;
}

static void mapped_handle(void)
{
    struct sigaction sa = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, &before);
}

int map_mapped_open(struct map_mapped *m, int fd, uint64_t offset, uint64_t length)
{
    struct stat st;
    *m = (struct map_mapped){.page = (size_t)sysconf(_SC_PAGESIZE)};
    if (fstat(fd, &st))
        return base_fail(-errno, "cannot get the size of an input file again (fstat): %s", base_strerror(errno));
    if (S_ISREG(st.st_mode) && (offset > (uint64_t)st.st_size || length > (uint64_t)st.st_size - offset))
        return base_fail(-ENODATA, "the input ends before the end of the piece: it was truncated during the job; run the job again once "
                                   "the file no longer changes");
    pthread_once(&handled, mapped_handle);
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
    uint64_t front = offset % m->page;
    m->len = length + front;
    m->start = mmap(NULL, m->len, PROT_READ, MAP_PRIVATE, fd, (off_t)(offset - front));
    if (m->start == MAP_FAILED)
        return base_fail(-errno, "cannot map a piece of an input file into memory: %s; a limit may be too low (ulimit -v)",
                         base_strerror(errno));
    madvise(m->start, m->len, MADV_SEQUENTIAL);
    m->bytes = (const uint8_t *)m->start + front;
    mine = m;
    return 0;
}

bool map_mapped_close(struct map_mapped *m)
{
    if (mine != m)
        return false;
    mine = NULL;
    munmap(m->start, m->len);
    return m->cut != 0;
}
