/* SPDX-License-Identifier: MIT
 *
 * base: errors, logging, time, memory, sockets and parsing, on Linux and macOS. This folder depends on no other folder of src/.
 */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define BASE_CACHE_LINE 64
#define BASE_PAGE       16384u /* the largest page size of the supported systems */

#define BASE_LIKELY(x)    __builtin_expect(!!(x), 1)
#define BASE_UNLIKELY(x)  __builtin_expect(!!(x), 0)
#define BASE_INLINE       static inline __attribute__((always_inline)) /* for functions on the fast path of operations */
#define BASE_COLD         __attribute__((cold, noinline))
#define BASE_PRINTF(f, a) __attribute__((format(printf, f, a)))
#if defined(__ELF__)
/* A thread-local variable that is read without a function call. Use this for a few bytes only, because a library that dlopen() loads gets
 * little static TLS space. */
#define BASE_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define BASE_THREAD_LOCAL _Thread_local
#endif

/* 1 in a build with the thread sanitizer, otherwise 0. gcc defines a macro, clang has __has_feature(). */
#if !defined(__has_feature)
#define BASE_HAS_FEATURE(x) 0
#else
#define BASE_HAS_FEATURE(x) __has_feature(x)
#endif
#if defined(__SANITIZE_THREAD__) || BASE_HAS_FEATURE(thread_sanitizer)
#define BASE_THREAD_SANITIZER 1
#else
#define BASE_THREAD_SANITIZER 0
#endif
#if defined(__SANITIZE_ADDRESS__) || BASE_HAS_FEATURE(address_sanitizer)
#define BASE_ADDRESS_SANITIZER 1
#else
#define BASE_ADDRESS_SANITIZER 0
#endif

static inline uint64_t base_round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* --- errors (error.c) ---
 * A function that fails uses `return base_fail(-EINVAL, "...")`: it stores the error text of this thread (see weft_error()) and returns the
 * code. Callers return the code unchanged. base_context() adds words in front of the stored text. */
int base_fail(int code, const char *format, ...) BASE_PRINTF(2, 3) BASE_COLD;
int base_context(int code, const char *format, ...) BASE_PRINTF(2, 3) BASE_COLD;
/* Remedies for the end of an error text. MEMORY: out of memory. THREAD: a thread or process cannot be started. FILES: a descriptor cannot
 * be opened. BUG: an impossible state. */
#define BASE_MEMORY_HINT "; end other programs, or raise the limit on memory (ulimit -v)"
#define BASE_THREAD_HINT "; this user may have too many processes and threads (ulimit -u)"
#define BASE_FILES_HINT  "; the limit on open files may be too low (ulimit -n)"
#define BASE_BUG_HINT    "; this is a bug of weft: please report it"
#if defined(__clang_analyzer__)
/* A static analyzer sees only one file at a time. This macro calls `f`, which is base_fail() or base_context(). It shows the analyzer that
 * the call returns `code`, and that `code` is negative. */
#define BASE_FAILURE(f, code, ...)   \
    ({                               \
        int code_ = (code);          \
        (f)(code_, __VA_ARGS__);     \
        if (code_ >= 0)              \
            __builtin_unreachable(); \
        code_;                       \
    })
#define base_fail(code, ...)    BASE_FAILURE(base_fail, code, __VA_ARGS__)
#define base_context(code, ...) BASE_FAILURE(base_context, code, __VA_ARGS__)
#endif
/* Tells the compiler and analyzers that `code` is negative. */
static inline int base_failure(int code)
{
    if (code >= 0)
        __builtin_unreachable();
    return code;
}
const char *base_error(void);
void base_error_clear(void);
/* As strerror(), but thread-safe, and for a negative or positive errno. */
const char *base_strerror(int code);

/* Overwrites a secret with zeros. The compiler cannot remove this store, although nobody reads the zeros. */
static inline void base_wipe(void *at, size_t bytes)
{
    __builtin_memset(at, 0, bytes);
    __asm__ volatile("" : : "r"(at) : "memory");
}

/* --- numbers of errors (errno.c) ---
 * Errno numbers differ between systems. A status (0 or a negative errno) that is sent to other nodes or to GPU kernels has Linux's number.
 * base_status_out() converts this system's number to Linux's, base_status_in() Linux's to this system's. Unknown numbers become EIO. */
struct base_number {
    int linux_number, own;
};
extern const struct base_number base_errnos[];
extern const size_t base_errno_count;
/* Converts `number`, an error or signal number, by the table `all`: this system's number to Linux's if `out` is true, otherwise Linux's to
 * this system's. Returns -1 if the table does not contain `number`. */
int base_number_change(const struct base_number *all, size_t count, int number, bool out);
int base_status_change(const struct base_number *all, size_t count, int status, bool out);
static inline int base_status_out(int status)
{
#if defined(__linux__)
    return status;
#else
    return base_status_change(base_errnos, base_errno_count, status, true);
#endif
}
static inline int base_status_in(int status)
{
#if defined(__linux__)
    return status;
#else
    return base_status_change(base_errnos, base_errno_count, status, false);
#endif
}

/* --- numbers of signals (signal.c) ---
 * Signal numbers are converted like errno numbers; 0 means no signal. Unknown signals become BASE_SIGNAL_OTHER, a number that no system
 * uses. */
#define BASE_SIGNAL_OTHER 100
extern const struct base_number base_signals[];
extern const size_t base_signals_count;
int base_signal_change(const struct base_number *all, size_t count, int signal, bool out);
static inline int base_signal_out(int signal)
{
#if defined(__linux__)
    return signal;
#else
    return base_signal_change(base_signals, base_signals_count, signal, true);
#endif
}
static inline int base_signal_in(int signal)
{
#if defined(__linux__)
    return signal;
#else
    return base_signal_change(base_signals, base_signals_count, signal, false);
#endif
}

/* --- logging (log.c): to stderr, one write() for each line. WEFT_LOG=error|warn|info|debug sets the level (default warn) --- */
enum base_log_level { BASE_LOG_ERROR, BASE_LOG_WARN, BASE_LOG_INFO, BASE_LOG_DEBUG };
extern _Atomic int base_log_threshold;
void base_log_set(const char *level); /* unknown names are ignored */
void base_log_name(const char *name); /* a prefix of each line, as in "node 3" */
void base_log_write(enum base_log_level level, const char *format, ...) BASE_PRINTF(2, 3) BASE_COLD;
#define base_log(level, ...)                                                                                \
    do {                                                                                                    \
        if (BASE_UNLIKELY((int)(level) <= atomic_load_explicit(&base_log_threshold, memory_order_relaxed))) \
            base_log_write(level, __VA_ARGS__);                                                             \
    } while (0)

/* --- time (time.c) --- */
int64_t base_now_ns(void);    /* monotonic */
int64_t base_cpu_ns(void);    /* processor time of this thread */
int64_t base_recent_ns(void); /* may be about 30 us behind base_now_ns(), but is cheaper */
void base_sleep_ns(int64_t ns);
/* Converts a relative time-out to a deadline; INT64_MAX on overflow. */
static inline int64_t base_after(int64_t now, int64_t timeout_ns)
{
    return timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}
static inline int64_t base_deadline(int64_t timeout_ns)
{
    return base_after(base_now_ns(), timeout_ns);
}

/* --- condition variables (cond.c) ---
 * Initialize a condition variable with base_cond_init() before base_cond_wait(). The deadline is from base_deadline() and does not depend
 * on the wall clock. base_cond_wait() returns false if the deadline has passed. As with pthread_cond_wait(), spurious wakeups are
 * possible. */
void base_cond_init(pthread_cond_t *cond);
bool base_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline);

/* Prefetches a cache line for writing. `p` need not be a valid address. */
static inline void base_fetch_to_write(const void *p)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0"
                     :
                     : "m"(*(const char *)p)); /* without -mprfchw, __builtin_prefetch() does not fetch the line for writing */
#else
    __builtin_prefetch(p, 1);
#endif
}

static inline void base_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

/* --- spinlock (spin.c): for critical sections of nanoseconds; a waiting thread yields --- */
typedef struct base_spin {
    _Atomic uint32_t held;
} base_spin;
void base_spin_wait(base_spin *s) BASE_COLD;
static inline bool base_spin_try(base_spin *s)
{
    /* acquire pairs with the release in base_spin_unlock() */
    return atomic_load_explicit(&s->held, memory_order_relaxed) == 0 && atomic_exchange_explicit(&s->held, 1, memory_order_acquire) == 0;
}
static inline void base_spin_lock(base_spin *s)
{
    if (BASE_UNLIKELY(!base_spin_try(s)))
        base_spin_wait(s);
}
static inline void base_spin_unlock(base_spin *s)
{
    atomic_store_explicit(&s->held, 0, memory_order_release);
}

/* --- the system (system.c): functions that differ between Linux and macOS --- */
/* Sets memory to zero. Pages that are already zero are not written, so untouched pages still take no memory. */
void base_clear(void *memory, size_t bytes);
/* Wait while *word == seen, at most timeout_ns. The word may be in memory that several processes share. Spurious returns are allowed. */
void base_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns);
void base_futex_wake(_Atomic uint32_t *word, int count);
/* Create anonymous shared memory of a fixed size. No process can shrink this memory. Returns a close-on-exec file descriptor. */
int base_memory_fd(const char *name, uint64_t bytes, bool huge);
/* Make a dmabuf of the first `bytes` of memory from base_memory_fd(). Returns a close-on-exec descriptor, or -ENODEV if the system is not
 * Linux, or its kernel was built without CONFIG_UDMABUF. */
int base_memory_dmabuf(int fd, uint64_t bytes);
/* Check that a descriptor from another process is memory from base_memory_fd(), of at least `bytes`. */
int base_memory_fd_check(int fd, uint64_t bytes);
/* Whether an open file really has `size` bytes, as fstat() has reported. For files of /proc and /sys, fstat() reports 0 bytes or a page
 * instead of the real size. Reads one byte of the file. */
bool base_size_is_true(int fd, uint64_t size);
#define BASE_CPU_WORDS 16
unsigned base_cpus(void);                        /* number of processors that this process may use */
void base_cpu_set(uint64_t set[BASE_CPU_WORDS]); /* the processors that this process may use: bit i is processor i, up to 1023 */
/* Restricts the calling thread to these processors. Does nothing if the thread may not use any of them, or if the system has no such
 * call. */
void base_cpu_stay(const uint64_t set[BASE_CPU_WORDS]);
/* Touches fresh memory on these processors, because Linux gives a page from the NUMA node of the processor that touches it first. Does
 * nothing if the set is empty. */
void base_touch_near(const uint64_t set[BASE_CPU_WORDS], void *memory, size_t bytes);
uint64_t base_memory_total(void); /* bytes; the machine's memory or the limit of this process's control group, whichever is less */
uint64_t base_memory_available(void);
uint64_t base_cache_bytes(void); /* size of a processor's last-level cache; 0: not known */
uint64_t base_memory_huge(void); /* bytes of free huge pages of 2 MiB; 0 if the system has none */
int base_random(void *bytes, size_t len);
/* Start a thread with all signals blocked: only the program's own threads should handle signals. Returns 0, or a negative errno
 * without base_fail(). */
int base_thread(pthread_t *out, void *(*fn)(void *), void *arg);
/* Let timed sleeps of this thread end at most `slack_ns` late, if the system supports it. Without this call Linux allows 50 us. */
void base_wake_in_time(int64_t slack_ns);
/* A pipe, both ends close-on-exec; `flags` is 0 or O_NONBLOCK. */
int base_pipe(int fd[2], int flags);
int base_socketpair(int fd[2]);
struct sockaddr;
bool base_is_loopback(const struct sockaddr *at); /* whether this is an IP address that every host has for itself, such as 127.0.0.1 */
/* --- descriptors over a Unix socket (descriptors.c) ---
 * Both functions send or receive exactly `len` bytes, together with at most BASE_FDS_MAX descriptors. `len` must be less than the socket's
 * buffer. Received descriptors are close-on-exec, and the caller closes them. Missing descriptors are set to -1. `deadline` is from
 * base_deadline(). Both return 0, or a negative errno without base_fail(); after an error no received descriptor stays open. -EMFILE means:
 * the bytes have arrived, but this process has too many open files to receive the descriptors. */
#define BASE_FDS_MAX 2u
int base_send_fds(int fd, const void *bytes, size_t len, const int *fds, unsigned count);
int base_receive_fds(int fd, void *bytes, size_t len, int *fds, unsigned count, int64_t deadline);
/* As base_send_fds(), but returns -EAGAIN if the socket is full. */
int base_send_fds_nowait(int fd, const void *bytes, size_t len, const int *fds, unsigned count);
/* recv() without waiting. `*passed` is the descriptor that arrived with these bytes, or -1. One call receives at most one descriptor,
 * because the kernel ends a read behind bytes that arrived with a descriptor. */
ssize_t base_receive_fd_nowait(int fd, void *bytes, size_t len, int *passed);
/* A place is a non-blocking listening socket with a random abstract name that contains `kind`. Processes of the same user and host connect
 * to the place and send descriptors. These functions return -EAGAIN instead of waiting. They return -EPERM if the other process belongs to
 * another user, and -ENOTSUP if the system has no abstract names. They set no error text. */
#define BASE_PLACE_NAME 64u
int base_place_open(const char *kind, char name[BASE_PLACE_NAME]);
int base_place_take(int place);      /* accept a connection: returns a socket to receive from */
int base_place_go(const char *name); /* connect to a place: returns a socket to send on */
/* Asks the kernel for the user and the process at the other end of a Unix socket. *pid 0: not known. Returns -ENOTSUP if `fd` is not a Unix
 * socket. */
int base_peer_identity(int fd, unsigned *uid, int *pid);
/* Returns the number of bytes that were written to a TCP socket and that the peer has not acknowledged yet; or a negative errno. */
int base_unacknowledged(int fd);
int64_t base_round_trip_ns(int fd); /* round-trip time of a TCP connection, as measured by the kernel; 0: not known */
/* An id of this host, of its last boot, and of the IPC and network namespaces. Two processes have the same id only if they can share
 * memory. */
void base_host_id(uint8_t id[16]);

/* Parse a whole number from `least` to `most`, as in "12" or "-1". Returns 0, or -EINVAL without an error text, because the caller knows
 * what the number is for. */
int base_parse_number(const char *text, int64_t least, int64_t most, int64_t *out);
/* base_parse_bytes() parses a size such as "64K", "1.5G" or "4096" to bytes. base_parse_duration() parses a duration such as "500ms", "2s",
 * "1m" or plain seconds to nanoseconds. Both return -EINVAL with base_fail(). */
int base_parse_bytes(const char *text, uint64_t *out);
int base_parse_duration(const char *text, int64_t *out_ns);
/* Write a size as in "1.5 MiB" to `buf`, and return `buf`. */
const char *base_format_bytes(uint64_t bytes, char *buf, size_t len);

/* --- strings.c: a list of strings stored in one buffer, each with its zero byte --- */
uint64_t base_strings_bytes(const char *const *list, uint32_t count);
char *base_strings_put(char *at, const char *const *list, uint32_t count); /* returns the end */
/* Whether these bytes are exactly `count` strings. Check bytes from outside before base_strings_take(). */
bool base_strings_fit(const char *at, size_t bytes, uint64_t count);
const char *base_strings_take(const char *at, const char **list, uint32_t count); /* sets list[0..count-1]; returns the end */

/* --- grow.c: versioned structs of the public interface. Later versions may add fields --- */
/* Copy a caller's struct `in` to `out`. The first field of `in` is the size of the struct in the caller's version of the header; fields
 * that the caller's version lacks become 0. `least`: the size of the struct in the first version; `full`: in this version. Returns -EINVAL
 * if the size is below `least` or implausibly large, and -E2BIG if a field that this version does not know is not zero. `name`: the
 * struct's name, for the error text. */
int base_take_struct(void *out, size_t full, const void *in, size_t least, const char *name);
/* Copy a struct to a caller's struct of `bytes`: as many fields as fit. Fields that this version lacks become 0. */
void base_give_struct(void *out, size_t bytes, const void *full, size_t full_bytes);

#endif
