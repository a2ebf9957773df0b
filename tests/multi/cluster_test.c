/* SPDX-License-Identifier: MIT
 *
 * Forks the nodes of a test and collects how they ended: see cluster_test.h.
 */
#include "cluster_test.h"
#include "fabric/fabric.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#if defined(__linux__)
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#include <sys/wait.h>
#include <time.h>

#define HANG_SECONDS  120
#define GRACE_SECONDS 10 /* for the others when a check has failed in a node: they may wait for it in vain */

static uint32_t number_of(const char *variable, uint32_t otherwise)
{
    const char *text = getenv(variable);
    int n = text ? atoi(text) : 0;
    return n > 0 ? (uint32_t)n : otherwise;
}

uint32_t repeats(uint32_t n)
{
    static _Atomic uint32_t known; /* atomic, because several threads may call this at the same time */
    uint32_t divide = atomic_load_explicit(&known, memory_order_relaxed);
    if (!divide) {
        divide = number_of("TEST_DIVIDE", 1);
        atomic_store_explicit(&known, divide, memory_order_relaxed);
    }
    return n / divide > 4 ? n / divide : n < 4 ? n : 4;
}

/* How much busier this machine is than tests/suite alone makes it, from 1 to 5: as slowness() of processes.py. */
static double crowd(void)
{
    double load = 0;
    if (getloadavg(&load, 1) != 1)
        return 1;
    load /= (double)sysconf(_SC_NPROCESSORS_ONLN) + 3;
    return load < 1 ? 1 : load > 5 ? 5 : load;
}

int64_t patience_ns(uint32_t seconds)
{
    const char *slowness = getenv("TEST_SLOWNESS");
    double times = slowness ? atof(slowness) : 1;
    return (int64_t)(seconds * (times > 1 ? times : 1) * crowd() * 1e9);
}

int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void *shared_words(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return p;
}

void wait_for(const _Atomic uint32_t *word, uint32_t at_least)
{
    while (atomic_load(word) < at_least)
        usleep(1000);
}

#if defined(__linux__)
/* Whether all threads of a process fulfil a condition, which is checked on the first line of a file below /proc for each thread. A thread
   that ends meanwhile counts as fulfilling it. */
static bool all_threads(pid_t pid, const char *file, bool (*fulfils)(const char *line))
{
    char path[300], line[512];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    CHECK(tasks);
    bool all = true;
    for (struct dirent *e; all && (e = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/%s", (int)pid, e->d_name, file);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (f && fgets(line, sizeof line, f))
            all = fulfils(line);
        if (f)
            fclose(f);
    }
    closedir(tasks);
    return all;
}

static bool is_stopped(const char *stat)
{
    const char *state = strrchr(stat, ')');
    return state && strncmp(state, ") T", 3) == 0;
}

/* The thread was in a system call that only waits. */
static bool has_waited(const char *call)
{
    static const long calls[] = {
        SYS_futex,
        SYS_ppoll,
        SYS_nanosleep,
        SYS_clock_nanosleep,
        SYS_read,
        SYS_wait4,
        SYS_restart_syscall,
        SYS_epoll_pwait,
#if defined(SYS_epoll_pwait2)
        SYS_epoll_pwait2,
#endif
#if defined(SYS_epoll_wait)
        SYS_epoll_wait,
#endif
#if defined(SYS_poll)
        SYS_poll,
#endif
    };
    long number = call[0] >= '0' && call[0] <= '9' ? strtol(call, NULL, 10) : -1;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (calls[i] == number)
            return true;
    return false;
}
#endif

void stop_asleep(pid_t pid)
{
    CHECK(kill(pid, SIGSTOP) == 0);
#if defined(__linux__)
    for (int64_t end = now_ns() + patience_ns(60);;) {
        while (!all_threads(pid, "stat", is_stopped)) { /* check the threads, because the signal reaches them a little later */
            CHECK(now_ns() < end);
            usleep(100);
        }
        if (all_threads(pid, "syscall", has_waited))
            return;
        CHECK(kill(pid, SIGCONT) == 0);
        usleep(1000);
        CHECK(kill(pid, SIGSTOP) == 0);
    }
#endif
}

void meet(_Atomic uint32_t *word, uint32_t n)
{
    atomic_fetch_add(word, 1);
    wait_for(word, n);
}

/* A line of a thread's file in /proc; "" if there is none. */
static void thread_line(pid_t pid, const char *thread, const char *file, char *out, size_t len)
{
    char path[64 + NAME_MAX];
    snprintf(path, sizeof path, "/proc/%d/task/%s/%s", (int)pid, thread, file);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(out, (int)len, f))
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    if (f)
        fclose(f);
}

void show_threads(pid_t pid)
{
    char path[64], name[64], call[256], where[64], gdb[256];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    for (struct dirent *t; tasks && (t = readdir(tasks));) {
        if (t->d_name[0] == '.')
            continue;
        thread_line(pid, t->d_name, "comm", name, sizeof name);
        thread_line(pid, t->d_name, "syscall", call, sizeof call);
        thread_line(pid, t->d_name, "wchan", where, sizeof where);
        fprintf(stderr, "process %d, thread %s (%s): system call %s, in %s\n", (int)pid, t->d_name, name, call, where);
    }
    if (tasks)
        closedir(tasks);
    snprintf(gdb, sizeof gdb, "timeout 60 gdb -p %d -batch -ex 'thread apply all bt' 2>&1 | grep -E '^(#|Thread)' >&2", (int)pid);
    if (system("command -v gdb >/dev/null 2>&1 && command -v timeout >/dev/null 2>&1") == 0 && system(gdb))
        fputs("gdb shows nothing\n", stderr);
}

static void wait_all(int n, const pid_t *pids, int *status)
{
    int64_t end = now_ns() + patience_ns(number_of("TEST_HANG", HANG_SECONDS));
    bool done[NODES_MAX] = {0}, killed = false, failed = false;
    for (int left = n; left > 0;) {
        for (int i = 0; i < n; i++) {
            if (!done[i] && waitpid(pids[i], &status[i], WNOHANG) == pids[i]) {
                done[i] = true;
                left--;
                if (WIFEXITED(status[i]) && WEXITSTATUS(status[i]) == CHECK_FAILED && !failed) {
                    failed = true;
                    int64_t sooner = now_ns() + patience_ns(GRACE_SECONDS);
                    end = sooner < end ? sooner : end;
                }
            }
        }
        if (left && now_ns() > end && !killed) {
            for (int i = 0; i < n; i++) {
                if (!done[i]) {
                    fprintf(stderr, "node %d (pid %d) %s\n", i, (int)pids[i],
                            failed ? "has not ended since a check failed in another node: killed" : "hangs: killed");
                    if (!failed) /* otherwise it probably waits for that node, whose message must not be pushed out of sight */
                        show_threads(pids[i]);
                    kill(pids[i], SIGKILL);
                }
            }
            killed = true;
        }
        usleep(1000);
    }
}

#if defined(__linux__)
void enter_namespace(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) {
        perror(path);
        _exit(1);
    }
    close(fd);
}

void enter_host(int rank)
{
    char *paths[NODES_MAX], *all = getenv("TEST_NAMESPACES") ? strdup(getenv("TEST_NAMESPACES")) : NULL, *rest = all;
    int n = 0;
    for (char *path; n < NODES_MAX && (path = strsep(&rest, ":"));)
        paths[n++] = path;
    if (n)
        enter_namespace(paths[rank % n]);
    free(all);
}
#endif

const char *first_host(void)
{
    const char *there = getenv("TEST_COORD");
    return there ? there : "127.0.0.1";
}

int socket_on_host(int rank, int family, int type)
{
#if defined(__linux__)
    int here = getenv("TEST_NAMESPACES") ? open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC) : -1;
    enter_host(rank); /* only this thread */
#else
    (void)rank;
#endif
    int fd = socket(family, type, 0);
    CHECK(fd >= 0);
#if defined(__linux__)
    CHECK(here < 0 || setns(here, CLONE_NEWNET) == 0);
    if (here >= 0)
        close(here);
#endif
    return fd;
}

void processes_run(int n, process_fn fn, void *arg, int status[NODES_MAX])
{
    pid_t pids[NODES_MAX];
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < n; i++) {
        pid_t parent = getpid();
        pids[i] = fork();
        if (pids[i] == 0) {
#if defined(__linux__)
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed leaves no node behind */
            if (getppid() != parent)
                _exit(1);
#else
            (void)parent;
#endif
            char rank[16];
            snprintf(rank, sizeof rank, "%d", i);
            setenv("WEFT_RANK", rank, 1);
            /* With softverbs, each node is on a host of its own. */
            if (getenv("SOFTVERBS_FABRIC"))
                setenv("SOFTVERBS_HOST", rank, 1);
#if defined(__linux__)
            enter_host(i);
#endif
            _exit(fn(i, arg));
        }
    }
    wait_all(n, pids, status);
}

struct plan {
    int n;
    node_fn fn;
    void *arg;
    const char *const *environment;
    char coord[64];
};

static int run_node(int rank, void *arg)
{
    (void)rank;
    struct plan *p = arg;
    char size[16];
    snprintf(size, sizeof size, "%d", p->n);
    setenv("WEFT_SIZE", size, 1);
    setenv("WEFT_COORD", p->coord, 1);
    setenv("WEFT_POOL", "64M", 0);
    for (const char *const *e = p->environment; e && *e; e++)
        putenv((char *)(uintptr_t)*e); /* the test's strings live as long as the process */
    weft_node *w;
    OK(weft_open(&w, NULL));
    p->fn(w, p->arg);
    OK(weft_close(w));
    return 0;
}

void nodes_run(int n, node_fn fn, void *arg, const char *const *environment, int status[NODES_MAX])
{
    static unsigned number;
    struct plan p = {n, fn, arg, environment, ""};
    if (getenv("TEST_COORD"))
        snprintf(p.coord, sizeof p.coord, "%s:%u", getenv("TEST_COORD"), 20000 + number++ % 10000);
    else
        snprintf(p.coord, sizeof p.coord, "unix:@weft-test-%d-%u", (int)getpid(), number++);
    processes_run(n, run_node, &p, status);
}

static int count_failed(int n, const int *status)
{
    int failed = 0;
    for (int i = 0; i < n; i++) {
        if (WIFSIGNALED(status[i]))
            fprintf(stderr, "node %d was killed by signal %d\n", i, WTERMSIG(status[i]));
        failed += status[i] != 0;
    }
    return failed;
}

int nodes_failed_with(int n, node_fn fn, void *arg, const char *const *environment)
{
    int status[NODES_MAX];
    nodes_run(n, fn, arg, environment, status);
    return count_failed(n, status);
}

int nodes_failed(int n, node_fn fn, void *arg)
{
    return nodes_failed_with(n, fn, arg, NULL);
}

int processes_failed(int n, process_fn fn, void *arg)
{
    int status[NODES_MAX];
    processes_run(n, fn, arg, status);
    return count_failed(n, status);
}

weft_gaddr symmetric_alloc(weft_node *w, size_t bytes)
{
    weft_gaddr a, all[NODES_MAX];
    OK(weft_alloc_aligned(w, bytes, 64, &a));
    memset(weft_ptr(w, a, bytes), 0, bytes);
    /* Only for the thread sanitizer, which does not see that the exchange orders these accesses. Handlers run with this lock held. */
    base_spin_lock(&w->progress);
    base_spin_unlock(&w->progress);
    OK(weft_exchange(w, &a, 1, all, NULL, patience_ns(60))); /* not the deadline, which is short in some tests */
    for (uint32_t i = 0; i < weft_size(w); i++)
        CHECK(all[i] == 0 || all[i] == on_node(a, i)); /* 0: that node is gone */
    return a;
}

void on_number(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len, void *arg)
{
    struct numbers *n = arg;
    uint32_t number;
    (void)w, (void)from, (void)header_len, (void)payload, (void)payload_len;
    memcpy(&number, header, sizeof number);
    n->wrong = n->wrong || number != n->next;
    n->next++;
}

char *softverbs(const char *words)
{
    static char text[1u << 18];
    char line[512];
    const char *command = getenv("SOFTVERBS_COMMAND");
    snprintf(line, sizeof line, "%s %s", command ? command : "softverbs", words);
    FILE *out = popen(line, "r");
    CHECK(out);
    size_t n = fread(text, 1, sizeof text - 1, out);
    text[n] = 0;
    CHECK(pclose(out) == 0);
    return text;
}
