/* SPDX-License-Identifier: MIT
 *
 * base: errors, logging, time, random bytes. Knows nothing of weft.
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
#define BASE_PAGE       16384u /* pool granularity: the largest page of the systems we run on */

#define BASE_LIKELY(x)    __builtin_expect(!!(x), 1)
#define BASE_UNLIKELY(x)  __builtin_expect(!!(x), 0)
#define BASE_INLINE       static inline __attribute__((always_inline)) /* on the way of every operation */
#define BASE_COLD         __attribute__((cold, noinline))
#define BASE_PRINTF(f, a) __attribute__((format(printf, f, a)))
#if defined(__ELF__)
/* One load instead of a call, for a few words: a library that is loaded late finds little room in the static block. */
#define BASE_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define BASE_THREAD_LOCAL _Thread_local
#endif

static inline uint64_t base_round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* --- errors (error.c) ---
 * A function that fails says why once, where it knows: `return base_fail(-EINVAL, "...")` stores the sentence for
 * this thread (weft_error()) and returns the code. Callers pass the code on; base_context() puts words in front. */
int base_fail(int code, const char *format, ...) BASE_PRINTF(2, 3) BASE_COLD;
int base_context(int code, const char *format, ...) BASE_PRINTF(2, 3) BASE_COLD;
#if defined(__clang_analyzer__)
/* An analyzer sees one file at a time: it must be told that these return the code they were given, and no success. */
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
/* A code that is a failure for sure. Says so to the compiler and to analyzers, where they cannot see it. */
static inline int base_failure(int code)
{
    if (code >= 0)
        __builtin_unreachable();
    return code;
}
const char *base_error(void);
void base_error_clear(void);
/* strerror, thread-safe, for a negative or positive errno. */
const char *base_strerror(int code);

/* --- logging (log.c): to stderr, one write a line, level from WEFT_LOG=error|warn|info|debug (default warn) --- */
enum base_log_level { BASE_LOG_ERROR, BASE_LOG_WARN, BASE_LOG_INFO, BASE_LOG_DEBUG };
extern _Atomic int base_log_threshold;
void base_log_set(const char *level); /* unknown names are ignored */
void base_log_name(const char *name); /* who speaks: "node 3" */
void base_log_write(enum base_log_level level, const char *format, ...) BASE_PRINTF(2, 3) BASE_COLD;
#define base_log(level, ...)                                                                                \
    do {                                                                                                    \
        if (BASE_UNLIKELY((int)(level) <= atomic_load_explicit(&base_log_threshold, memory_order_relaxed))) \
            base_log_write(level, __VA_ARGS__);                                                             \
    } while (0)

/* --- time (time.c) --- */
int64_t base_now_ns(void);    /* monotonic */
int64_t base_cpu_ns(void);    /* what this thread has had of a processor */
int64_t base_recent_ns(void); /* the same, at most some 30 us ago: cheaper for who asks all the time */
void base_sleep_ns(int64_t ns);
/* The moment a relative time-out ends; saturates. */
static inline int64_t base_after(int64_t now, int64_t timeout_ns)
{
    return timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}
static inline int64_t base_deadline(int64_t timeout_ns)
{
    return base_after(base_now_ns(), timeout_ns);
}

static inline void base_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

/* --- spinlock (spin.c): for critical sections of nanoseconds; yields when it must wait --- */
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

/* --- the system (system.c): what differs between Linux and macOS has one place --- */
/* Wait while *word == seen, at most timeout_ns; shared between processes. Spurious returns are allowed. */
void base_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns);
void base_futex_wake(_Atomic uint32_t *word, int count);
/* Anonymous shared memory of a fixed size that no one can shrink: a file descriptor, close-on-exec. */
int base_memory_fd(const char *name, uint64_t bytes, bool huge);
/* The first `bytes` of such memory as a dmabuf: a descriptor, close-on-exec. Linux with CONFIG_UDMABUF; -ENODEV elsewhere. */
int base_memory_dmabuf(int fd, uint64_t bytes);
/* Whether a descriptor from a peer is such memory, of at least `bytes`. */
int base_memory_fd_check(int fd, uint64_t bytes);
#define BASE_CPU_WORDS 16
unsigned base_cpus(void);                        /* processors that this process may use */
void base_cpu_set(uint64_t set[BASE_CPU_WORDS]); /* the same as a set: bit i for processor i, to 1023 */
uint64_t base_memory_total(void);                /* bytes of the machine, or of this process's control group if less */
uint64_t base_memory_available(void);
uint64_t base_cache_bytes(void); /* the last level's, of a processor; 0 when not known */
uint64_t base_memory_huge(void); /* bytes of free huge pages of 2 MiB; 0 where there is no such thing */
int base_random(void *bytes, size_t len);
/* A thread that gets no signals: they are for the program's own. Returns 0 or a negative errno without a sentence. */
int base_thread(pthread_t *out, void *(*fn)(void *), void *arg);
/* Timed sleeps of this thread end at most so much late, where the system lets a thread say so (Linux: 50 us otherwise). */
void base_wake_in_time(int64_t slack_ns);
/* A pipe, both ends close-on-exec; `flags` is 0 or O_NONBLOCK. */
int base_pipe(int fd[2], int flags);
/* Two connected Unix stream sockets, both close-on-exec; or a negative errno, with a sentence. */
int base_socketpair(int fd[2]);
/* --- descriptors over a Unix socket (descriptors.c) ---
 * All `len` bytes, with at most BASE_FDS_MAX descriptors. What is sent at once must be less than the socket holds. Received
 * descriptors are close-on-exec, and the caller's; those that did not come are -1. Until `deadline` (base_deadline()). 0, or a negative
 * errno without a sentence: then no descriptor is left open. -EMFILE: the bytes are there, a descriptor found no room here. */
#define BASE_FDS_MAX 2u
int base_send_fds(int fd, const void *bytes, size_t len, const int *fds, unsigned count);
int base_receive_fds(int fd, void *bytes, size_t len, int *fds, unsigned count, int64_t deadline);
/* A place where processes of this user and host can give some: a non-blocking socket, with a new name that nobody can guess (`kind` is
 * part of it). Giving and taking wait for nothing: -EAGAIN. A process of another user is refused: -EPERM. -ENOTSUP where there are no
 * such names. All without a sentence. */
#define BASE_PLACE_NAME 64u
int base_place_open(const char *kind, char name[BASE_PLACE_NAME]);
int base_place_take(int place);      /* who has come, as a socket to receive from */
int base_place_go(const char *name); /* to such a place, as a socket to send on */
/* Who is at the other end of a Unix socket, as the kernel knows it; pid is 0 where it does not say. -ENOTSUP for
 * other sockets. */
int base_peer_identity(int fd, unsigned *uid, int *pid);
/* Bytes written to a TCP socket that the other side's system has not acknowledged; a negative errno where that cannot be
 * known. */
int base_unacknowledged(int fd);
/* Identity of this host, boot and IPC namespace: equal on two processes only if they can share memory. */
void base_host_id(uint8_t id[16]);

/* "12", "-1": a whole number from `least` to `most`. -EINVAL without a sentence: it depends on what it is of. */
int base_parse_number(const char *text, int64_t least, int64_t most, int64_t *out);
/* "64K", "1.5G", "4096" to bytes; "500ms", "2s", "1m", plain seconds to nanoseconds. -EINVAL with a sentence. */
int base_parse_bytes(const char *text, uint64_t *out);
int base_parse_duration(const char *text, int64_t *out_ns);
/* "1.5 MiB" into buf; returns buf. */
const char *base_format_bytes(uint64_t bytes, char *buf, size_t len);

/* --- grow.c: structs of the public interface that later versions add fields to --- */
/* A caller's struct, whose first field is its size as the caller knows it: `out` gets what is there, and zeros behind it. -EINVAL: that
 * size is below `least`, that of the first version, or no size of such a struct. -E2BIG: what lies beyond `full` is not zero. `name`: of
 * the struct, for the sentence.
 */
int base_take_struct(void *out, size_t full, const void *in, size_t least, const char *name);
/* The other way: as much as fits into the caller's `bytes`, and zeros behind what there is. */
void base_give_struct(void *out, size_t bytes, const void *full, size_t full_bytes);

#endif
