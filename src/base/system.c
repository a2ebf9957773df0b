/* SPDX-License-Identifier: MIT
 *
 * Functions that differ between Linux and macOS: futexes, anonymous shared memory, processors, memory sizes, host identity, sockets.
 * Functions for processes are in process.c.
 */
#include "base/base.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <linux/memfd.h>
#include <linux/sockios.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/sysctl.h>
/* os_sync_wait_on_address() is public only since macOS 14.4. These private functions exist in earlier versions, too. */
int __ulock_wait(uint32_t operation, void *addr, uint64_t value, uint32_t timeout_us);
int __ulock_wake(uint32_t operation, void *addr, uint64_t wake_value);
#define UL_COMPARE_AND_WAIT_SHARED 3
#define ULF_WAKE_ALL               0x100
#define ULF_NO_ERRNO               0x01000000
#endif

/* --- both systems --- */

#define CLEAR_BYTES 4096u /* the smallest page size */

void base_clear(void *memory, size_t bytes)
{
    uint8_t *at = memory;
    for (size_t left = bytes; left > 0;) {
        size_t n = left < CLEAR_BYTES ? left : CLEAR_BYTES;
        if (at[0] || memcmp(at, at + 1, n - 1) != 0)
            memset(at, 0, n);
        at += n;
        left -= n;
    }
}

/* Set the size of shared memory. RLIMIT_FSIZE is checked first, because a size above this limit raises SIGXFSZ. */
static int set_size(int fd, const char *name, uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
        return base_fail(-EFBIG,
                         "%s: %llu bytes of shared memory are more than the limit on file sizes allows "
                         "(RLIMIT_FSIZE, %llu bytes); raise it with ulimit -f, or ask for a smaller pool",
                         name, (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
    if (ftruncate(fd, (off_t)bytes))
        return base_fail(-errno, "%s: cannot get %llu bytes of shared memory: %s; end other programs, or ask for less memory", name,
                         (unsigned long long)bytes, base_strerror(errno));
    return 0;
}

static int system_check_size(int fd, uint64_t bytes)
{
    struct stat st;
    if (fstat(fd, &st))
        return base_fail(-errno, "cannot get the size of the shared memory that another node has passed (fstat): %s" BASE_BUG_HINT,
                         base_strerror(errno));
    if (st.st_size < 0 || (uint64_t)st.st_size < bytes)
        return base_fail(
            -EPROTO, "another node passed shared memory of %lld bytes, but announced %llu bytes; run the same version of weft on all hosts",
            (long long)st.st_size, (unsigned long long)bytes);
    return 0;
}

/* Two FNV-1a hashes of the text with different seeds. The host's id need not be secret. */
static void host_id_of(uint8_t id[16], const char *text)
{
    for (unsigned half = 0; half < 2; half++) {
        uint64_t h = UINT64_C(0xcbf29ce484222325) + half * UINT64_C(0x9e3779b97f4a7c15);
        for (const char *p = text; *p; p++)
            h = (h ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
        memcpy(id + 8 * half, &h, 8);
    }
}

int base_pipe(int fd[2], int flags)
{
#if defined(__linux__)
    int rc = pipe2(fd, O_CLOEXEC | flags); /* sets the flags atomically, because another thread may be starting a program */
#else
    int rc = pipe(fd);
    for (int i = 0; rc == 0 && i < 2; i++) {
        fcntl(fd[i], F_SETFD, FD_CLOEXEC);
        if (flags)
            fcntl(fd[i], F_SETFL, flags);
    }
#endif
    if (rc == 0)
        return 0;
    int error = errno;
    return base_fail(-error, "cannot create a pipe: %s%s", base_strerror(error),
                     error == EMFILE || error == ENFILE ? "; raise the limit on open files (ulimit -n)" : "");
}

int base_socketpair(int fd[2])
{
#if defined(__linux__)
    int rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd);
#else
    int rc = socketpair(AF_UNIX, SOCK_STREAM, 0, fd);
    for (int i = 0; rc == 0 && i < 2; i++)
        fcntl(fd[i], F_SETFD, FD_CLOEXEC);
#endif
    return rc == 0 ? 0 : base_fail(-errno, "cannot create a pair of sockets: %s" BASE_FILES_HINT, base_strerror(errno));
}

#if defined(__linux__)

void base_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    if (timeout_ns <= 0)
        return;
    struct timespec t = {.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_nsec = (long)(timeout_ns % 1000000000)};
    syscall(SYS_futex, (void *)word, FUTEX_WAIT, seen, &t, NULL, 0);
}

void base_futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE, count, NULL, NULL, 0);
}

int base_memory_fd(const char *name, uint64_t bytes, bool huge)
{
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0u));
    if (fd < 0)
        return base_fail(-errno, "cannot create shared memory for %s (memfd_create): %s%s", name, base_strerror(errno),
                         huge ? "; reserve huge pages (as root: sysctl vm.nr_hugepages=N), or unset WEFT_POOL_HUGE" : "");
    int rc = set_size(fd, name, bytes);
    if (!rc && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        rc = base_fail(-errno,
                       "cannot protect the shared memory of %s against a change of its size (F_ADD_SEALS): %s; weft needs a Linux kernel "
                       "with memfd_create",
                       name, base_strerror(errno));
    if (rc)
        close(fd);
    return rc ? rc : fd;
}

int base_memory_dmabuf(int fd, uint64_t bytes)
{
    static const char path[] = "/dev/udmabuf";
    int device = open(path, O_RDWR | O_CLOEXEC);
    if (device < 0)
        return base_fail(errno == ENOENT ? -ENODEV : -errno, "cannot open %s: %s%s", path, base_strerror(errno),
                         errno == EACCES   ? "; only root and the group kvm may open it"
                         : errno == ENOENT ? "; load the kernel's module: modprobe udmabuf"
                                           : "");
    struct udmabuf_create what = {.memfd = (uint32_t)fd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = bytes};
    int made = ioctl(device, UDMABUF_CREATE, &what);
    int rc = made < 0 ? base_fail(-errno, "cannot create a dmabuf of %llu bytes with %s: %s", (unsigned long long)bytes, path,
                                  base_strerror(errno))
                      : made;
    close(device);
    return rc;
}

int base_memory_fd_check(int fd, uint64_t bytes)
{
    int seals = fcntl(fd, F_GET_SEALS);
    /* Without the seal the peer could shrink the memory, and this process's next access to it would raise SIGBUS. */
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return base_fail(-EPROTO, "another process passed shared memory without the seal F_SEAL_SHRINK: that process could shrink the "
                                  "memory, which would crash this process; run the same version of weft on all hosts");
    return system_check_size(fd, bytes);
}

int base_random(void *bytes, size_t len)
{
    uint8_t *p = bytes;
    while (len) {
        ssize_t n = getrandom(p, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return base_fail(-errno, "cannot get random bytes (getrandom): %s", base_strerror(errno));
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

void base_cpu_set(uint64_t set[BASE_CPU_WORDS])
{
    cpu_set_t cpus;
    memset(set, 0, BASE_CPU_WORDS * sizeof *set);
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
        for (size_t i = 0; i < BASE_CPU_WORDS * 64u && i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &cpus))
                set[i / 64] |= UINT64_C(1) << (i % 64);
    } else {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        for (long i = 0; i < (n > 0 ? n : 1) && i < BASE_CPU_WORDS * 64; i++)
            set[i / 64] |= UINT64_C(1) << (i % 64);
    }
}

void base_cpu_stay(const uint64_t set[BASE_CPU_WORDS])
{
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus))
        return;
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (i >= BASE_CPU_WORDS * 64u || !(set[i / 64] >> (i % 64) & 1))
            CPU_CLR(i, &cpus);
    if (CPU_COUNT(&cpus) > 0)
        sched_setaffinity(0, sizeof cpus, &cpus); /* ignore an error: the placement only makes the thread faster */
}

/* Returns `otherwise` if the file has no number. */
static uint64_t file_number(const char *path, uint64_t otherwise)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return otherwise;
    unsigned long long n;
    bool got = fscanf(f, "%llu", &n) == 1;
    fclose(f);
    return got ? n : otherwise;
}

static uint64_t meminfo(const char *field)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return 0;
    char line[256];
    uint64_t bytes = 0;
    size_t n = strlen(field);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, field, n) == 0 && line[n] == ':') {
            bytes = strtoull(line + n + 1, NULL, 10) * 1024;
            break;
        }
    }
    fclose(f);
    return bytes;
}

uint64_t base_memory_total(void)
{
    uint64_t total = meminfo("MemTotal");
    uint64_t group = file_number("/sys/fs/cgroup/memory.max", UINT64_MAX);
    return group < total ? group : total;
}

uint64_t base_memory_available(void)
{
    uint64_t available = meminfo("MemAvailable");
    uint64_t group = file_number("/sys/fs/cgroup/memory.max", UINT64_MAX);
    if (group != UINT64_MAX) {
        uint64_t used = file_number("/sys/fs/cgroup/memory.current", 0);
        uint64_t left = group > used ? group - used : 0;
        if (left < available)
            available = left;
    }
    return available;
}

uint64_t base_cache_bytes(void)
{
    long n = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return n > 0 ? (uint64_t)n : 0;
}

uint64_t base_memory_huge(void)
{
    return file_number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", 0) << 21;
}

int base_peer_identity(int fd, unsigned *uid, int *pid)
{
    struct ucred who;
    int domain;
    socklen_t len = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len))
        return -errno;
    if (domain != AF_UNIX)
        return -ENOTSUP;
    len = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len))
        return -errno;
    *uid = who.uid;
    *pid = who.pid;
    return 0;
}

int base_unacknowledged(int fd)
{
    int bytes;
    return ioctl(fd, SIOCOUTQ, &bytes) ? -errno : bytes;
}

int64_t base_round_trip_ns(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) ? 0 : (int64_t)info.tcpi_rtt * 1000; /* tcpi_rtt is in microseconds */
}

void base_host_id(uint8_t id[16])
{
    /* Each boot of a machine gets a new boot id. Each container has IPC and network namespaces of its own. */
    char text[256] = "", ns[64];
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (!fgets(text, 64, f))
            text[0] = '\0';
        fclose(f);
    }
    static const char *const spaces[] = {"/proc/self/ns/ipc", "/proc/self/ns/net"};
    for (unsigned i = 0; i < 2; i++) {
        ssize_t n = readlink(spaces[i], ns, sizeof ns - 1);
        if (n > 0) {
            ns[n] = '\0';
            strncat(text, ns, sizeof text - strlen(text) - 1);
        }
    }
    host_id_of(id, text);
}

#elif defined(__APPLE__)

void base_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    if (timeout_ns <= 0)
        return;
    int64_t us = timeout_ns / 1000 + 1;
    __ulock_wait(UL_COMPARE_AND_WAIT_SHARED | ULF_NO_ERRNO, (void *)word, seen, us > UINT32_MAX ? UINT32_MAX : (uint32_t)us);
}

void base_futex_wake(_Atomic uint32_t *word, int count)
{
    __ulock_wake(UL_COMPARE_AND_WAIT_SHARED | ULF_NO_ERRNO | (count > 1 ? ULF_WAKE_ALL : 0), (void *)word, 0);
}

int base_memory_fd(const char *name, uint64_t bytes, bool huge)
{
    if (huge)
        return base_fail(-ENOTSUP, "%s: macOS has no huge pages for shared memory; unset WEFT_POOL_HUGE", name);
    /* macOS has no memfd: create a shared-memory object and remove its name at once. */
    char unique[32];
    uint64_t r;
    int rc = base_random(&r, sizeof r);
    if (rc)
        return rc;
    snprintf(unique, sizeof unique, "/weft-%016llx", (unsigned long long)r);
    int fd = shm_open(unique, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return base_fail(-errno, "cannot create shared memory for %s (shm_open): %s" BASE_FILES_HINT, name, base_strerror(errno));
    shm_unlink(unique);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    rc = set_size(fd, name, bytes);
    if (rc)
        close(fd);
    return rc ? rc : fd;
}

int base_memory_dmabuf(int fd, uint64_t bytes)
{
    (void)fd, (void)bytes;
    return base_fail(-ENODEV, "macOS has no dmabufs, so this kind of memory does not work on macOS");
}

int base_memory_fd_check(int fd, uint64_t bytes)
{
    /* On macOS the size of such an object can be set only once, so no seal is needed. */
    return system_check_size(fd, bytes);
}

int base_random(void *bytes, size_t len)
{
    arc4random_buf(bytes, len);
    return 0;
}

static uint64_t sysctl_number(const char *name)
{
    uint64_t value = 0;
    size_t len = sizeof value;
    return sysctlbyname(name, &value, &len, NULL, 0) ? 0 : value;
}

void base_cpu_set(uint64_t set[BASE_CPU_WORDS])
{
    uint64_t n = sysctl_number("hw.activecpu");
    memset(set, 0, BASE_CPU_WORDS * sizeof *set);
    for (uint64_t i = 0; i < (n ? n : 1) && i < BASE_CPU_WORDS * 64; i++)
        set[i / 64] |= UINT64_C(1) << (i % 64);
}

void base_cpu_stay(const uint64_t set[BASE_CPU_WORDS])
{
    (void)set;
}

uint64_t base_memory_total(void)
{
    return sysctl_number("hw.memsize");
}

uint64_t base_memory_available(void)
{
    /* An estimate, because macOS compresses and swaps memory on demand, and does not report how much a process can get. */
    return base_memory_total() / 4 * 3;
}

uint64_t base_cache_bytes(void)
{
    return sysctl_number("hw.l3cachesize");
}

uint64_t base_memory_huge(void)
{
    return 0;
}

int base_peer_identity(int fd, unsigned *uid, int *pid)
{
    uid_t u;
    gid_t g;
    if (getpeereid(fd, &u, &g))
        return -errno;
    *uid = u;
    *pid = 0;
    return 0;
}

int base_unacknowledged(int fd)
{
    int bytes;
    socklen_t len = sizeof bytes;
    return getsockopt(fd, SOL_SOCKET, SO_NWRITE, &bytes, &len) ? -errno : bytes;
}

int64_t base_round_trip_ns(int fd)
{
    struct tcp_connection_info info = {0};
    socklen_t len = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_CONNECTION_INFO, &info, &len) ? 0 : (int64_t)info.tcpi_srtt * INT64_C(1000000);
}

void base_host_id(uint8_t id[16])
{
    memset(id, 0, 16);
    char text[64] = "";
    size_t len = sizeof text;
    sysctlbyname("kern.bootsessionuuid", text, &len, NULL, 0);
    host_id_of(id, text);
}

#else
#error "weft runs on Linux and macOS"
#endif

bool base_size_is_true(int fd, uint64_t size)
{
    char last;
    ssize_t n;
    do
        n = pread(fd, &last, 1, size ? (off_t)(size - 1) : 0);
    while (n < 0 && errno == EINTR);
    return n < 0 || (n > 0) == (size > 0); /* a read error is reported later, by the code that reads the file */
}

unsigned base_cpus(void)
{
    uint64_t set[BASE_CPU_WORDS];
    unsigned n = 0;
    base_cpu_set(set);
    for (unsigned i = 0; i < BASE_CPU_WORDS; i++)
        n += (unsigned)__builtin_popcountll(set[i]);
    return n ? n : 1;
}
