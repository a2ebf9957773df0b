/* SPDX-License-Identifier: MIT
 *
 * The small command: the program that is installed as `weft` on Linux. It does the usual `weft exec` itself, because it starts faster than
 * the whole command. This matters if the program to run is short. For everything else it is replaced by the whole command (main.c).
 *
 * It uses no C library, whose start takes longer than the rest of a short job: glibc executes some forty CPUID instructions, each of which
 * takes 10 us or more in a virtual machine.
 *
 * This program does a `weft exec` to its end only if the options are common, the cluster is up, and the command ends soon and prints
 * little. Otherwise the whole command takes over: with the same arguments before the request was sent, and after that with the connection
 * (exec --connected). Frames that were not handled here are still in the socket, and signals that came meanwhile are pending.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "cli/control.h"
#include "weft/types.h"

#define REQUEST_MAX  8192u /* a larger request is left to the whole command */
#define WORDS_MAX    256u  /* a request with more arguments is left to the whole command */
#define WRITE_MAX    4096u /* a write of at most this many bytes to a pipe that is ready does not block */
#define HOLD_NS      (10 * WEFT_MS)
#define HOLD_ROUNDS  4 /* after this many waits of HOLD_NS, the whole command takes over */
#define FAILED       255
#define NULL_DEVICE  0x103 /* /dev/null */
#define STATUS_PIPE  (128 + SIGPIPE)
#define ROOM_LEAST   (128u << 10) /* the kernel's least space for arguments and environment; usually the space is a quarter of the stack */
#define ROOM_MOST    (6u << 20)
#define ROOM_MORE    (PATH_MAX + 256u) /* maximum space that hand_over() needs in addition */
#define SIGNAL(n)    (UINT64_C(1) << ((n)-1))
#define HELD_SIGNALS (SIGNAL(SIGINT) | SIGNAL(SIGTERM) | SIGNAL(SIGHUP) | SIGNAL(SIGQUIT) | SIGNAL(SIGPIPE))

/* --- without a C library --- */

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txorl %ebp, %ebp\n\tmovq %rsp, %rdi\n\tandq $-16, %rsp\n\tcall begin\n\thlt\n");

static long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long rc;
    __asm__ volatile("syscall" : "=a"(rc) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return rc;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tmov x30, xzr\n\tmov x0, sp\n\tbl begin\n\tbrk #1\n");

static long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d,
                     x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#else
#error "the small command is for x86-64 and arm64; see meson.build"
#endif

/* A note for `softverbs run`: it need not warn that this program cannot load its library, because the whole command can. */
__asm__(".pushsection .note.softverbs, \"a\", %note\n\t.balign 4\n\t.long 10, 0, 1\n\t.asciz \"softverbs\"\n\t.balign 4\n\t.popsection\n");

#define SYS(name, a, b, c, d, e, f) call(SYS_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* The compiler may make calls of these functions by itself. */
void *memcpy(void *restrict to, const void *restrict from, size_t n);
void *memmove(void *to, const void *from, size_t n);
void *memset(void *to, int byte, size_t n);
int memcmp(const void *a, const void *b, size_t n);
size_t strlen(const char *s);

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((char *)to)[i] = ((const char *)from)[i];
    return to;
}

void *memmove(void *to, const void *from, size_t n)
{
    if ((uintptr_t)to <= (uintptr_t)from)
        return memcpy(to, from, n);
    while (n--)
        ((char *)to)[n] = ((const char *)from)[n];
    return to;
}

void *memset(void *to, int byte, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((char *)to)[i] = (char)byte;
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((const uint8_t *)a)[i] != ((const uint8_t *)b)[i])
            return ((const uint8_t *)a)[i] - ((const uint8_t *)b)[i];
    return 0;
}

size_t strlen(const char *s)
{
    size_t n = 0;
    while (s[n])
        n++;
    return n;
}

static bool equal(const char *a, const char *b)
{
    size_t n = strlen(a);
    return n == strlen(b) && memcmp(a, b, n) == 0;
}

/* Returns what follows `start` in `s`, or NULL if `s` does not begin with `start`. */
static char *after(char *s, const char *start)
{
    size_t n = strlen(start);
    for (size_t i = 0; i < n; i++)
        if (s[i] != start[i])
            return NULL;
    return s + n;
}

static char **words, **environment;
static size_t word_count;

static char *variable(const char *name_and_equals)
{
    for (char **e = environment; *e; e++) {
        char *value = after(*e, name_and_equals);
        if (value)
            return value;
    }
    return NULL;
}

struct text { /* a buffer to which bytes are appended; a zero byte always follows them */
    char *bytes;
    size_t len, room;
    bool cut;
};

static void add_bytes(struct text *t, const char *bytes, size_t n)
{
    t->cut = t->cut || n >= t->room - t->len;
    if (t->cut)
        return;
    memcpy(t->bytes + t->len, bytes, n);
    t->len += n;
    t->bytes[t->len] = '\0';
}

static void add(struct text *t, const char *s)
{
    add_bytes(t, s, strlen(s));
}

static void add_number(struct text *t, unsigned long n)
{
    char digits[24], *at = digits + sizeof digits;
    do
        *--at = (char)('0' + n % 10);
    while (n /= 10);
    add_bytes(t, at, (size_t)(digits + sizeof digits - at));
}

static _Noreturn void end(int status)
{
    for (;;)
        SYS(exit_group, status, 0, 0, 0, 0, 0);
}

static bool ready(int fd, short events, long ns)
{
    struct pollfd p = {.fd = fd, .events = events};
    long time[2] = {0, ns};
    return SYS(ppoll, &p, 1, time, NULL, 0, 0) > 0;
}

/* --- the whole command --- */

/* Like self_beside() in self.c. */
static bool is_trusted(const char *path)
{
    struct stat st, self;
    if (SYS(newfstatat, AT_FDCWD, path, &st, 0, 0, 0))
        return false;
    return st.st_uid == 0 || (long)st.st_uid == SYS(geteuid, 0, 0, 0, 0, 0, 0) ||
           (SYS(newfstatat, AT_FDCWD, "/proc/self/exe", &self, 0, 0, 0) == 0 && st.st_uid == self.st_uid);
}

static long whole_path(const char *place, struct text *path)
{
    char self[PATH_MAX], link[64];
    struct text at = {.bytes = self, .room = sizeof self}, fd_link = {.bytes = link, .room = sizeof link};
    at.len = path->len = 0;
    long n = SYS(readlinkat, AT_FDCWD, "/proc/self/exe", self, sizeof self - 1, 0, 0);
    for (at.len = n > 0 ? (size_t)n : 0; at.len && self[at.len - 1] != '/'; at.len--)
        ;
    add(&at, place);
    long fd = n > 0 && !at.cut ? SYS(openat, AT_FDCWD, self, O_PATH | O_CLOEXEC, 0, 0, 0) : -ENOENT;
    if (fd < 0)
        return fd;
    add(&fd_link, "/proc/self/fd/");
    add_number(&fd_link, (unsigned long)fd);
    n = SYS(readlinkat, AT_FDCWD, link, path->bytes, path->room - 1, 0, 0);
    SYS(close, fd, 0, 0, 0, 0, 0);
    if (n <= 1 || (size_t)n >= path->room - 1)
        return -ENOENT;
    path->len = (size_t)n;
    path->bytes[n] = '\0';
    size_t slash = path->len;
    while (path->bytes[--slash] != '/')
        ;
    memcpy(self, path->bytes, slash + 1);
    self[slash ? slash : 1] = '\0';
    return is_trusted(path->bytes) && is_trusted(self) ? 0 : -EPERM;
}

/* The path of the whole command; "": not known yet. */
static char whole[PATH_MAX];

static long find_whole(void)
{
    static const char *const places[] = {WEFT_WHOLE, "whole/weft"}; /* paths of the whole command: when installed; in the build folder */
    struct text path = {.bytes = whole, .room = sizeof whole};
    long error = whole[0] ? 0 : -ENOENT;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && error == -ENOENT; i++)
        error = whole_path(places[i], &path);
    if (error)
        whole[0] = '\0';
    return error;
}

/* Replaces this process by the whole command. */
static _Noreturn void become_whole(char **arguments)
{
    static char line[2 * PATH_MAX];
    struct text message = {.bytes = line, .room = sizeof line};
    long error = find_whole();
    if (!error)
        error = SYS(execve, whole, arguments, environment, 0, 0, 0);
    add(&message, "weft: " WEFT_WHOLE ", which has all commands, cannot be executed: ");
    if (error == -EPERM || error == -ENOENT || error == -EACCES)
        add(&message, error == -EPERM ? "another user may have put it there" : error == -ENOENT ? "No such file" : "Permission denied");
    else if (error == -E2BIG)
        add(&message, "the arguments and the environment are too long");
    else {
        add(&message, "error ");
        add_number(&message, (unsigned long)-error);
    }
    add(&message, "; install weft again\n");
    SYS(write, 2, line, message.len, 0, 0, 0);
    end(word_count > 1 && equal(words[1], "exec") ? FAILED : 1);
}

/* Whether the kernel has space for the arguments that hand_over() adds for the whole command. */
static bool has_room(void)
{
    struct rlimit stack;
    size_t bytes = ROOM_MORE;
    for (char **s = words; s <= words + word_count || *s; s++) /* the environment follows the arguments */
        bytes += (*s ? strlen(*s) + 1 : 0) + sizeof *s;
    return bytes <= ROOM_LEAST ||
           (bytes <= ROOM_MOST && SYS(prlimit64, 0, RLIMIT_STACK, NULL, &stack, 0, 0) == 0 && bytes <= stack.rlim_cur / 4);
}

/* Lets the whole command take over a job that was started. `status`: the exit status so far. `written`: how many bytes of the next frame's
 * output were written already. */
static _Noreturn void hand_over(int fd, int status, size_t written)
{
    static char *arguments[WORDS_MAX + 3];
    static char state[48];
    static char option[] = "--connected";
    const long most[2] = {CONTROL_SILENT_NS / WEFT_SECOND, 0};
    struct text t = {.bytes = state, .room = sizeof state};
    add_number(&t, (unsigned long)fd);
    add(&t, ":");
    add_number(&t, (unsigned long)status);
    add(&t, ":");
    add_number(&t, (unsigned long)written);
    arguments[0] = words[0];
    arguments[1] = words[1];
    arguments[2] = option;
    arguments[3] = state;
    for (size_t i = 2; i < word_count; i++)
        arguments[i + 2] = words[i];
    SYS(fcntl, fd, F_SETFD, 0, 0, 0, 0);
    SYS(fcntl, fd, F_SETFL, 0, 0, 0, 0);
    SYS(setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, most, sizeof most, 0);
    become_whole(arguments);
}

/* --- the command line: functions return false to leave it to the whole command, which has the error messages --- */

static struct {
    const char *cluster, *directory, *hosts; /* NULL: not given */
    const char *changes[WORDS_MAX];
    size_t change_count, first; /* first: index of the command's first word */
    bool one_host;
} given;

/* The value of option `name` if the word at `*at` is `name` (then the next word is the value) or `name=value`. Returns NULL if the word is
 * another option. */
static char *value_of(const char *name, size_t *at)
{
    char *rest = after(words[*at], name);
    if (rest && *rest == '=')
        return rest + 1;
    return rest && !*rest && *at + 1 < word_count ? words[++*at] : NULL;
}

static bool read_options(void)
{
    char *value;
    size_t at = 2;
    for (; at < word_count && words[at][0] == '-' && words[at][1]; at++) {
        if (equal(words[at], "--")) {
            at++;
            break;
        }
        if ((value = value_of("--on", &at)))
            given.hosts = value;
        else if ((value = value_of("--cluster", &at)))
            given.cluster = value;
        else if ((value = value_of("--cwd", &at)))
            given.directory = value;
        else if ((value = value_of("--env", &at)) && *value && *value != '=')
            given.changes[given.change_count++] = value;
        else
            return false;
    }
    given.first = at;
    return at < word_count && words[at][0];
}

/* Adds the names of --on. Returns how many. */
static uint32_t add_hosts(struct text *t)
{
    uint32_t count = 0;
    const char *first = t->bytes + t->len;
    for (const char *at = given.hosts; at && *at;) {
        size_t n = 0;
        while (at[n] && at[n] != ',')
            n++;
        if (n) {
            add_bytes(t, at, n);
            add_bytes(t, "", 1);
            count++;
        }
        at += n + (at[n] == ',');
    }
    given.one_host = count == 1 && !equal(first, "all");
    return count;
}

/* Writes the request with its frame. */
static bool write_request(struct text *t)
{
    struct control_frame frame = {.type = CONTROL_REQUEST, .node = UINT32_MAX};
    struct control_head head = {.magic = CONTROL_MAGIC, .what = CONTROL_EXEC};
    t->len = sizeof frame + sizeof head;
    if (given.directory)
        add(t, given.directory);
    add_bytes(t, "", 1);
    head.hosts = add_hosts(t);
    for (size_t i = given.first; i < word_count; i++, head.arguments++)
        add_bytes(t, words[i], strlen(words[i]) + 1);
    for (; head.changes < given.change_count; head.changes++)
        add_bytes(t, given.changes[head.changes], strlen(given.changes[head.changes]) + 1);
    frame.bytes = (uint32_t)(t->len - sizeof frame);
    memcpy(t->bytes, &frame, sizeof frame);
    memcpy(t->bytes + sizeof frame, &head, sizeof head);
    return !t->cut && (!given.hosts || (head.hosts && head.hosts <= WEFT_MAX_NODES));
}

/* --- the control socket --- */

/* Like is_ours() in standing_place.c. */
static bool is_ours(const char *path, bool alone)
{
    struct stat st;
    return SYS(newfstatat, AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW, 0, 0) == 0 && S_ISDIR(st.st_mode) &&
           (long)st.st_uid == SYS(geteuid, 0, 0, 0, 0, 0, 0) && (st.st_mode & (alone ? 077 : 022)) == 0;
}

/* Like standing_find() in standing_place.c. */
static bool find_socket(struct text *path)
{
    const char *name = given.cluster, *run = variable("XDG_RUNTIME_DIR=");
    if (!name)
        name = variable("WEFT_CLUSTER=");
    if (!name || (!*name && !given.cluster))
        name = "default";
    bool fits = *name && *name != '.' && *name != '-' && strlen(name) <= STANDING_NAME_MAX;
    for (const char *c = name; *c && fits; c++)
        fits = (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '-' || *c == '_' || *c == '.';
    if (run && *run == '/') {
        fits = fits && is_ours(run, false);
        add(path, run);
        add(path, "/weft");
    } else {
        add(path, "/tmp/weft-");
        add_number(path, (unsigned long)SYS(geteuid, 0, 0, 0, 0, 0, 0));
    }
    fits = fits && !path->cut && is_ours(path->bytes, true);
    add(path, "/");
    add(path, name);
    fits = fits && !path->cut && is_ours(path->bytes, true);
    add(path, "/control");
    return fits && !path->cut;
}

/* The connection to the control node; negative: there is none. */
static int connect_to_node(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct text path = {.bytes = at.sun_path, .room = STANDING_PATH};
    struct ucred peer;
    socklen_t len = sizeof peer;
    if (!find_socket(&path))
        return -1;
    int fd = (int)SYS(socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, 0, 0, 0);
    if (fd < 0)
        return fd;
    if (SYS(connect, fd, &at, sizeof at, 0, 0, 0) == 0 && SYS(getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &len, 0) == 0 &&
        (long)peer.uid == SYS(geteuid, 0, 0, 0, 0, 0, 0))
        return fd;
    SYS(close, fd, 0, 0, 0, 0, 0);
    return -1;
}

/* The signals that were blocked before the job began. */
static uint64_t blocked_before;

/* Sends the request. Signals are blocked until the job is over or handed over. Returns false if no job was started. */
static bool begin_job(int fd, const struct text *request)
{
    uint64_t held = HELD_SIGNALS;
    if (SYS(rt_sigprocmask, SIG_BLOCK, &held, &blocked_before, sizeof held, 0, 0))
        return false;
    /* If one of these signals is blocked already, no job is begun, because after hand_over() the whole command would unblock it. */
    if (!(blocked_before & held) && SYS(sendto, fd, request->bytes, request->len, MSG_NOSIGNAL, NULL, 0) == (long)request->len)
        return true;
    SYS(rt_sigprocmask, SIG_SETMASK, &blocked_before, NULL, sizeof blocked_before, 0, 0);
    return false;
}

/* --- the job --- */

static struct {
    char bytes[64u << 10]; /* what can be read from the socket */
    size_t have, done;     /* done: bytes of frames that were handled */
    unsigned nodes;        /* number of nodes on which the program has started; 0: not known yet */
    int status;            /* exit status of the first process that failed */
    size_t written;        /* if a frame is left to the whole command: how many of its bytes were written already */
    bool over;
} job;

/* Reads the head of the frame at `at`. Returns false if the frame, with its payload, has not arrived as a whole. */
static bool frame_at(size_t at, struct control_frame *f)
{
    if (job.have - at < sizeof *f)
        return false;
    memcpy(f, job.bytes + at, sizeof *f);
    return f->bytes <= job.have - at - sizeof *f;
}

/* Counts the nodes that have started the program. Their frames STARTED arrive before all other frames. */
static bool count_nodes(void)
{
    struct control_frame f;
    unsigned count = 0;
    for (size_t at = 0; frame_at(at, &f); at += sizeof f + f.bytes) {
        if (f.type == CONTROL_STARTED)
            count++;
        else if (f.type != CONTROL_TEXT)
            job.nodes = count;
        if (job.nodes)
            break;
    }
    return job.nodes == 1 || (job.nodes && !given.one_host); /* the whole command prints the output of several nodes in lines */
}

/* Whether a write of up to WRITE_MAX bytes writes all of them, and does not block, as in relay.c. */
static bool takes_all(int fd)
{
    struct stat st;
    return SYS(newfstatat, fd, "", &st, AT_EMPTY_PATH, 0, 0) == 0 &&
           (S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode) || (S_ISCHR(st.st_mode) && st.st_rdev == NULL_DEVICE)) && ready(fd, POLLOUT, 0);
}

/* Prints output. Returns false if the output is left to the whole command. */
static bool print(const struct control_frame *f, const char *payload)
{
    int fd = f->number == 2 ? 2 : 1;
    bool lines = job.nodes > 1 || !given.one_host;
    if (!f->bytes || f->bytes > WRITE_MAX || f->node >= WEFT_MAX_NUMBERS || (lines && payload[f->bytes - 1] != '\n') || !takes_all(fd))
        return false;
    long n = SYS(write, fd, payload, f->bytes, 0, 0, 0);
    if (n == -EPIPE)
        end(job.status ? job.status : STATUS_PIPE);
    job.written = n > 0 && n < (long)f->bytes ? (size_t)n : 0; /* if the disk is full, the whole command writes the rest, or fails */
    return n == (long)f->bytes;
}

/* Handles a frame. Returns false if the whole command must handle it. */
static bool handle(const struct control_frame *f, const char *payload)
{
    if (!control_frame_fits(f, true))
        return false;
    switch (f->type) {
    case CONTROL_TEXT:
    case CONTROL_STARTED: return true;
    case CONTROL_OUT: return print(f, payload);
    case CONTROL_ENDED: job.status = job.status ? job.status : (int)(f->number & 0xff); return true;
    case CONTROL_DONE: job.over = true; return true;
    default: return false;
    }
}

/* Handles the frames that are in the socket, and takes them out. Returns false if frames are left for the whole command. */
static bool handle_frames(int fd)
{
    struct control_frame f;
    bool fine = true;
    long n = SYS(recvfrom, fd, job.bytes, sizeof job.bytes, MSG_PEEK | MSG_DONTWAIT, NULL, NULL);
    job.have = n > 0 ? (size_t)n : 0;
    job.done = 0;
    if (!job.nodes && !count_nodes())
        return false;
    while (fine && !job.over && frame_at(job.done, &f))
        if ((fine = handle(&f, job.bytes + job.done + sizeof f)))
            job.done += sizeof f + f.bytes;
    if (job.over) {
        /* A signal that arrived during the job must have its effect now, so that Ctrl-C ends a loop of a shell. */
        SYS(rt_sigprocmask, SIG_SETMASK, &blocked_before, NULL, sizeof blocked_before, 0, 0);
        end(job.status);
    }
    fine = fine && job.done;
    for (size_t left = job.done; left; left -= (size_t)n)
        if ((n = SYS(recvfrom, fd, job.bytes, left, MSG_DONTWAIT, NULL, NULL)) <= 0)
            end(FAILED); /* cannot happen: the bytes were seen in the socket (MSG_PEEK) */
    return fine;
}

static bool is_for_here(void)
{
    const char *preloaded = variable("LD_PRELOAD=");
    if (word_count < 3 || word_count > WORDS_MAX || !equal(words[1], "exec") || (preloaded && *preloaded))
        return false; /* the user wants a library in every program; this program cannot load libraries */
    for (int fd = 0; fd < 3; fd++)
        if (SYS(fcntl, fd, F_GETFD, 0, 0, 0, 0) < 0)
            return false;
    return read_options();
}

static void run_here(void)
{
    static char bytes[REQUEST_MAX];
    struct text request = {.bytes = bytes, .room = sizeof bytes};
    if (!is_for_here() || !write_request(&request) || !has_room() || find_whole())
        return; /* begin no job if the whole command is missing, because the job may need it */
    int fd = connect_to_node();
    if (fd < 0)
        return;
    if (!begin_job(fd, &request)) {
        SYS(close, fd, 0, 0, 0, 0, 0);
        return;
    }
    for (int i = 0; i < HOLD_ROUNDS && ready(fd, POLLIN, HOLD_NS) && handle_frames(fd); i++)
        ;
    hand_over(fd, job.status, job.written);
}

_Noreturn __attribute__((used)) void begin(long *stack);

/* The kernel puts the count of arguments, the arguments and the environment on the stack. */
_Noreturn __attribute__((used)) void begin(long *stack)
{
    word_count = (size_t)stack[0];
    words = (char **)(stack + 1);
    environment = words + word_count + 1;
    run_here();
    become_whole(words);
}
