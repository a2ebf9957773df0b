/* SPDX-License-Identifier: MIT
 *
 * Used by all nodes of a job: the board, signals, ending everything at once, and opening a node. The board is memory that forks share, so
 * that signal handlers can read it, and other nodes after a node has died.
 */
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
        return base_fail(-errno, "no memory for the shared state of %zu slots: use fewer (--slots)", lines);
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
    /* Kill the group before its number is removed from the board, because this process may be killed in between. */
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

static void on_owner_signal(int sig)
{
    struct map_job *job = signalled;
    if (job)
        map_end_all(job);
    if (!job || !job->apart)
        _exit(128 + sig);
    map_signal_pass(sig);
}

/* --- Ctrl-Z. The terminal signals only our process group. Commands have groups of their own, so the handler stops and continues them. Of
 * the forked nodes only the owner stops. The other nodes read on the board that they must start nothing, and can still end if the owner is
 * killed. Nodes on several hosts get both signals from the launcher, and do not stop. --- */
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
        /* Pairs with map_command_run(): either this handler sees the new command, or that function sees `stopped`. */
        atomic_store_explicit(&job->board->stopped, 1, memory_order_seq_cst);
        signal_commands(job, SIGSTOP);
        /* Repeat this: a slot that has just started a command cannot stop the command after this process has stopped. */
        for (int round = 0; round < 10 && !job->apart; round++) {
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
        /* Pairs with pump(): when pump() sees that `stopped` is 0, it must also see the added time. */
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
        return; /* SIGTSTP is ignored, so there may be no shell that would continue the job: do not stop it */
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
    /* Wait until the nodes have ended, which takes time only on a very busy machine. */
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
    map_progress_clear(job); /* erase a bar that was being drawn when the signal arrived */
    /* The node may have started a command after the first loop, and may have been killed before it could end this command. So kill the
     * commands of all nodes again. */
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

/* Install a handler unless the signal is ignored: nohup starts programs with SIGHUP ignored, and it must stay ignored. */
static void on_signal_unless_ignored(int sig, void (*handler)(int))
{
    struct sigaction sa;
    if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_IGN)
        map_on_signal(sig, handler);
}

/* Message from the owner: free outcomes of this node. */
static void on_release(weft_node *w, uint32_t from, const void *header, size_t header_len, const void *payload, size_t payload_len,
                       void *arg)
{
    (void)header, (void)header_len;
    struct map_job *job = arg;
    weft_gaddr at;
    (void)atomic_load_explicit(&job->stored, memory_order_acquire); /* pairs with map_capture_finish() */
    for (size_t i = 0; from == 0 && i + sizeof at <= payload_len; i += sizeof at) {
        memcpy(&at, (const char *)payload + i, sizeof at);
        weft_free(w, at);
    }
}

/* The library's error for a pool that is too large names WEFT_POOL. `weft map` sets WEFT_POOL from --memory, so name that option
 * instead. */
static int say_memory(int rc)
{
    char text[512];
    snprintf(text, sizeof text, "%s", weft_error());
    char *setting = strstr(text, "WEFT_POOL");
    if (!setting)
        return rc == -ENOMEM ? base_fail(rc, "%s; a limit may be too low (ulimit -v), or give less --memory", text) : rc;
    return base_fail(rc, "%.*s--memory%s", (int)(setting - text), text, setting + strlen("WEFT_POOL"));
}

int map_node_open(struct map_job *job, const weft_config *config, weft_member_fn on_member)
{
    int rc = weft_open(&job->w, config);
    if (rc)
        return say_memory(rc);
    if (!getenv("WEFT_LOG"))
        base_log_set("error"); /* `weft map` reports deaths itself */
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

/* Set up the owner's signal handlers, and do other one-time setup. */
void map_nodes_prepare_owner(struct map_job *job)
{
    job->owner_pid = getpid();
    signalled = job;
    /* Adopt orphans, so that the system does not reuse the group numbers of a dead node's commands before the groups are killed. */
    base_adopt();
    map_on_signal(SIGPIPE, SIG_IGN);
    map_on_signal(SIGXFSZ, SIG_IGN);
    map_on_signal(SIGTERM, on_owner_signal);
    on_signal_unless_ignored(SIGINT, on_owner_signal);
    on_signal_unless_ignored(SIGHUP, on_owner_signal);
    map_nodes_stop_with(job);
}
