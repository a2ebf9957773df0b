/* SPDX-License-Identifier: MIT
 *
 * The nodes of the job: starting them, seeing them end, and ending all at once. The board is plain memory that the
 * forks share, because it must be read after a node has died, and by signal handlers.
 *
 * Who kills whom: every command dies with the thread that started it (PR_SET_PDEATHSIG), but what the command has
 * started does not. So each command has a process group, its number is on the board, and whoever outlives a node
 * kills the groups of that node: the owner when a worker dies, every worker when the owner dies.
 */
#include "cluster/cluster.h"
#include "map/job.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int map_board_create(struct map_job *job, size_t lines)
{
    job->board_bytes = sizeof *job->board + lines * sizeof(struct map_line);
    void *p = mmap(NULL, job->board_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return base_fail(-errno, "no memory for %zu slots", lines);
    job->board = p;
    return 0;
}

void map_board_destroy(struct map_job *job)
{
    if (job->board)
        munmap(job->board, job->board_bytes);
    job->board = NULL;
}

void map_line_kill(struct map_line *line)
{
    int32_t group = atomic_load_explicit(&line->group, memory_order_seq_cst);
    if (group <= 0)
        return;
    /* Killed before it is taken off the board: else, should we be killed in between, nobody would know of it. */
    kill(-group, SIGKILL);
    atomic_compare_exchange_strong_explicit(&line->group, &group, 0, memory_order_seq_cst, memory_order_seq_cst);
}

static void line_signal(struct map_line *line, int sig)
{
    int32_t group = atomic_load_explicit(&line->group, memory_order_seq_cst);
    if (group > 0)
        kill(-group, sig);
}

void map_nodes_kill_groups(struct map_job *job, uint32_t node)
{
    for (uint32_t i = 0; i < job->slots; i++)
        map_line_kill(map_line(job, node, i));
}

/* The job that a signal ends. */
static struct map_job *signalled;

/* In a worker. The owner's death has a signal of its own, for then all is over; SIGTERM means this node only. */
#define OWNER_DIED SIGUSR1

static void on_worker_signal(int sig)
{
    struct map_job *job = signalled;
    if (sig == OWNER_DIED)
        atomic_store_explicit(&job->board->ending, 1, memory_order_seq_cst);
    for (uint32_t node = 0; node < job->nodes; node++)
        if (sig == OWNER_DIED || node == job->rank)
            map_nodes_kill_groups(job, node);
    _exit(1);
}

static void on_owner_signal(int sig)
{
    struct map_job *job = signalled;
    if (job)
        map_end_all(job);
    if (!job || !job->apart)
        _exit(128 + sig);
    map_signal_pass(sig);
}

/* --- Ctrl-Z. It reaches this process group, and commands have their own: they are stopped here, and continued. Of the nodes only
 * the owner stops: the others see on the board that they are to start nothing, and still end when the owner is killed. Nodes that
 * are apart get both signals from the launcher, which stops, and none of them does. --- */
static struct map_job *stoppable;

static void signal_commands(struct map_job *job, int sig)
{
    uint32_t first = job->apart ? job->rank : 0, end = job->apart ? first + 1 : job->nodes;
    for (uint32_t node = first; node < end; node++)
        for (uint32_t i = 0; i < job->slots; i++)
            line_signal(map_line(job, node, i), sig);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * WEFT_SECOND + t.tv_nsec;
}

static void on_stop(int sig)
{
    (void)sig;
    struct map_job *job = stoppable;
    int error = errno;
    if (job && job->board) {
        if (!atomic_load_explicit(&job->board->stopped, memory_order_relaxed))
            atomic_store_explicit(&job->board->stopped_since, now_ns(), memory_order_relaxed);
        /* Pairs with map_command_run(): either this sees the command that is being started, or that sees this. */
        atomic_store_explicit(&job->board->stopped, 1, memory_order_seq_cst);
        signal_commands(job, SIGSTOP);
        for (int round = 0; round < 10 && !job->apart; round++) { /* a slot of ours could look no more once we have stopped */
            struct timespec ms = {0, 1000000};
            nanosleep(&ms, NULL);
            signal_commands(job, SIGSTOP);
        }
        map_progress_clear(job);
    }
    if (!job || !job->apart)
        kill(getpid(), SIGSTOP);
    errno = error;
}

static void on_continue(int sig)
{
    (void)sig;
    struct map_job *job = stoppable;
    int error = errno;
    if (job && job->board && atomic_load_explicit(&job->board->stopped, memory_order_relaxed)) {
        int64_t since = atomic_load_explicit(&job->board->stopped_since, memory_order_relaxed);
        atomic_fetch_add_explicit(&job->board->stopped_ns, now_ns() - since, memory_order_relaxed);
        /* Release: pairs with pump(), which must see that time when it sees that all goes on. */
        atomic_store_explicit(&job->board->stopped, 0, memory_order_seq_cst);
        signal_commands(job, SIGCONT);
    }
    errno = error;
}

void map_nodes_stop_with(struct map_job *job)
{
    struct sigaction sa;
    stoppable = job;
    if (sigaction(SIGTSTP, NULL, &sa) || sa.sa_handler == SIG_IGN)
        return; /* nobody is there to continue it */
    sa = (struct sigaction){.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigfillset(&sa.sa_mask);
    sigaction(SIGTSTP, &sa, NULL);
    sa.sa_handler = on_continue;
    sigaction(SIGCONT, &sa, NULL);
}

void map_nodes_forget(void)
{
    signalled = NULL;
    stoppable = NULL;
}

void map_end_all(struct map_job *job)
{
    if (!job->board)
        return;
    atomic_store_explicit(&job->board->ending, 1, memory_order_seq_cst);
    for (uint32_t node = 0; node < job->nodes; node++)
        map_nodes_kill_groups(job, node);
    if (job->emit.temporary_path)
        unlink(job->emit.temporary_path);
    map_progress_clear(job);
    /* They end at once; the patience is for a machine that is very busy. */
    for (int round = 0; round < 400; round++) {
        bool left = false;
        for (uint32_t node = 1; node < job->nodes; node++) {
            int32_t pid = atomic_load_explicit(&job->board->pids[node], memory_order_relaxed);
            if (pid <= 0)
                continue;
            if (round == 0 || round == 200)
                kill(pid, round ? SIGKILL : SIGTERM);
            if (waitpid(pid, NULL, WNOHANG) == 0)
                left = true;
            else
                atomic_store_explicit(&job->board->pids[node], 0, memory_order_relaxed);
        }
        if (!left)
            break;
        struct timespec ms = {0, 1000000};
        nanosleep(&ms, NULL);
    }
    map_progress_clear(job); /* one that was being drawn when all this began */
    /* What a node started while it was being ended. */
    for (uint32_t node = 0; node < job->nodes; node++)
        map_nodes_kill_groups(job, node);
}

static struct sigaction earlier[NSIG];

void map_on_signal(int sig, void (*handler)(int))
{
    struct sigaction sa = {.sa_handler = handler};
    sigfillset(&sa.sa_mask);
    sigaction(sig, &sa, &earlier[sig]);
}

void map_signal_pass(int sig)
{
    sigaction(sig, &earlier[sig], NULL);
    kill(getpid(), sig);
}

/* An ignored signal stays ignored: nohup means it. */
static void on_signal_unless_ignored(int sig, void (*handler)(int))
{
    struct sigaction sa;
    if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_IGN)
        map_on_signal(sig, handler);
}

/* The owner is done with outcomes of this node. */
static void on_release(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    (void)header, (void)header_len, (void)arg;
    weft_gaddr at;
    for (size_t i = 0; from == 0 && i + sizeof at <= payload_len; i += sizeof at) {
        memcpy(&at, (const char *)payload + i, sizeof at);
        weft_free(w, at);
    }
}

static void on_member(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    (void)w, (void)epoch;
    struct map_job *job = arg;
    if (job->apart)
        map_apart_gone(job, node, died);
    else if (!died)
        return;
    else if (job->rank == 0)
        map_nodes_kill_groups(job, node);
    else if (node == 0 && !atomic_load_explicit(&job->board->ending, memory_order_relaxed))
        kill(getpid(), OWNER_DIED); /* the kernel has told most likely; here without PR_SET_PDEATHSIG */
}

/* The library's remedy for too large a pool is its own setting; here an option decides. */
static int say_memory(int rc)
{
    char text[512];
    snprintf(text, sizeof text, "%s", weft_error());
    char *setting = strstr(text, "WEFT_POOL");
    if (!setting)
        return rc == -ENOMEM ? base_fail(rc, "%s; a limit may be too low (ulimit -v), or give less --memory", text) : rc;
    return base_fail(rc, "%.*s--memory%s", (int)(setting - text), text, setting + strlen("WEFT_POOL"));
}

int map_node_open(struct map_job *job, const weft_config *config)
{
    int rc = weft_open(&job->w, config);
    if (rc)
        return say_memory(rc);
    if (!getenv("WEFT_LOG"))
        base_log_set("error"); /* we say ourselves who died, in words of the job */
    rc = weft_handle(job->w, MAP_HANDLER_RELEASE, on_release, job);
    if (!rc)
        rc = weft_on_change(job->w, on_member, job);
    if (rc) {
        weft_close(job->w);
        job->w = NULL;
    }
    return rc;
}

int map_queue_open(struct map_job *job)
{
    weft_queue_config q = {.bytes = sizeof q, .slots = 2 * MAP_WINDOW, .lease_ns = job->lease_ns, .submit_only = job->rank != 0};
    return weft_queue_open(job->w, "map", &q, &job->queue);
}

/* A fork, or the owner of some. */
static int open_fork(struct map_job *job, int64_t timeout_ns)
{
    weft_config config = {.bytes = sizeof config,
                          .coord = job->coord,
                          .secret = job->coord,
                          .rank = job->rank,
                          .size = job->nodes,
                          .pool_bytes = job->pool_bytes,
                          .join_timeout_ns = timeout_ns};
    int rc = map_node_open(job, &config);
    if (!rc && (rc = map_queue_open(job))) {
        weft_close(job->w);
        job->w = NULL;
    }
    return rc;
}

static _Noreturn void node_main(struct map_job *job, int64_t timeout_ns)
{
    if (!base_end_with(job->owner_pid, OWNER_DIED))
        _exit(1);
    map_on_signal(SIGTERM, on_worker_signal);
    map_on_signal(OWNER_DIED, on_worker_signal);
    /* The owner decides what these mean. */
    map_on_signal(SIGINT, SIG_IGN);
    map_on_signal(SIGHUP, SIG_IGN);
    map_on_signal(SIGQUIT, SIG_IGN);
    map_on_signal(SIGTSTP, SIG_IGN);
    map_on_signal(SIGCONT, SIG_DFL);
    base_process_null(2); /* else the reader of the output would wait for this node too */
    /* Nor would its writer, or the reader of a pipe given to --output, see that the owner is gone. */
    close(job->emit.fd);
    for (uint32_t i = 0; i < job->input_count; i++)
        if (job->inputs[i].stream)
            close(job->inputs[i].fd);
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);

    int rc = open_fork(job, timeout_ns);
    if (!rc)
        rc = map_slots_start(job);
    if (rc) {
        snprintf(job->board->errors[job->rank], sizeof job->board->errors[0], "%s", weft_error());
        _exit(1);
    }
    map_slots_join(job);
    weft_queue_close(job->queue);
    weft_close(job->w);
    _exit(0);
}

/* What the owner does with signals, and what is set once. */
void map_nodes_prepare_owner(struct map_job *job)
{
    job->owner_pid = getpid();
    signalled = job;
    base_adopt(); /* then the process groups of a dead node keep their numbers until they are killed */
    map_on_signal(SIGPIPE, SIG_IGN);
    map_on_signal(SIGXFSZ, SIG_IGN);
    map_on_signal(SIGTERM, on_owner_signal);
    on_signal_unless_ignored(SIGINT, on_owner_signal);
    on_signal_unless_ignored(SIGHUP, on_owner_signal);
    map_nodes_stop_with(job);
}

static int fork_nodes(struct map_job *job, int64_t timeout_ns)
{
    int rc = cluster_private_address(job->coord, sizeof job->coord, "map", NULL); /* the secret as well */
    if (rc)
        return rc;
    memset(job->board->errors, 0, sizeof job->board->errors);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a handler that ends all must find each on the board */
    for (uint32_t node = 1; !rc && node < job->nodes; node++) {
        pid_t pid = base_process_fork();
        if (pid == 0) {
            job->rank = node;
            node_main(job, timeout_ns);
        }
        if (pid < 0)
            rc = base_fail((int)pid, "cannot start node %u: %s", node, base_strerror((int)pid));
        else
            atomic_store_explicit(&job->board->pids[node], pid, memory_order_relaxed);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* The joining has failed: end all nodes. True when one of them was killed, which a new try may not meet. Its connections
 * tell of that a little before it can be waited for. */
static bool stop_nodes(struct map_job *job)
{
    bool killed = false;
    for (int64_t until = base_deadline(100 * WEFT_MS); !killed && base_now_ns() < until; base_sleep_ns(WEFT_MS)) {
        for (uint32_t node = 1; node < job->nodes && !killed; node++) {
            siginfo_t info;
            pid_t pid = atomic_load_explicit(&job->board->pids[node], memory_order_relaxed);
            if (pid > 0 && base_process_ended(pid, &info))
                killed = info.si_code != CLD_EXITED;
        }
    }
    for (uint32_t node = 1; node < job->nodes; node++) {
        int32_t pid = atomic_exchange_explicit(&job->board->pids[node], 0, memory_order_relaxed);
        if (pid > 0)
            base_process_kill(pid);
    }
    return killed;
}

int map_nodes_start(struct map_job *job)
{
    /* A node that is killed while all join makes the joining fail, at the latest at its deadline; nothing is lost
     * then but time. The deadline grows, for a machine that is very busy. */
    if (job->apart)
        return map_apart_start(job);
    static const int64_t timeouts[] = {2 * WEFT_SECOND, 6 * WEFT_SECOND, 30 * WEFT_SECOND};
    map_nodes_prepare_owner(job);
    fflush(NULL);
    int rc = 0;
    for (size_t i = 0; i < sizeof timeouts / sizeof timeouts[0]; i++) {
        rc = fork_nodes(job, timeouts[i]);
        if (!rc)
            rc = open_fork(job, timeouts[i]);
        if (!rc)
            return 0;
        if (!stop_nodes(job) && rc != -ETIMEDOUT)
            break;
    }
    for (uint32_t node = 1; node < job->nodes; node++)
        if (job->board->errors[node][0])
            return base_fail(rc, "node %u: %s", node, job->board->errors[node]);
    return rc;
}

void map_nodes_check(struct map_job *job)
{
    if (job->apart) {
        map_apart_check(job);
        return;
    }
    for (uint32_t node = 1; node < job->nodes; node++) {
        int32_t pid = atomic_load_explicit(&job->board->pids[node], memory_order_relaxed);
        int status;
        if (pid <= 0 || waitpid(pid, &status, WNOHANG) != pid)
            continue;
        atomic_store_explicit(&job->board->pids[node], 0, memory_order_relaxed);
        map_nodes_kill_groups(job, node);
        for (uint32_t i = 0; i < job->slots; i++)
            atomic_store_explicit(&map_line(job, node, i)->busy, 0, memory_order_relaxed);
        if (job->over && WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        job->counts.nodes_died++;
        if (WIFSIGNALED(status))
            map_say(job, "node %u (process %d) was killed by signal %d (%s); its pieces run again elsewhere", node, (int)pid,
                    WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            map_say(job, "node %u (process %d) ended with status %d; its pieces run again elsewhere", node, (int)pid, WEXITSTATUS(status));
    }
}

void map_nodes_wait(struct map_job *job)
{
    job->over = true;
    if (job->apart) {
        map_apart_wait(job);
        return;
    }
    int64_t deadline = base_deadline(3 * WEFT_SECOND), nap = 50 * WEFT_US;
    for (;;) {
        map_nodes_check(job);
        bool left = false;
        for (uint32_t node = 1; node < job->nodes; node++)
            left = left || atomic_load_explicit(&job->board->pids[node], memory_order_relaxed) > 0;
        if (!left)
            return;
        if (base_now_ns() > deadline)
            break;
        base_sleep_ns(nap);
        nap = nap < WEFT_MS ? 2 * nap : WEFT_MS;
    }
    for (uint32_t node = 1; node < job->nodes; node++) {
        int32_t pid = atomic_load_explicit(&job->board->pids[node], memory_order_relaxed);
        if (pid > 0)
            base_process_kill(pid);
    }
}
