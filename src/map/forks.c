/* SPDX-License-Identifier: MIT
 *
 * Nodes on this machine: forks of the owner, which share the board with it.
 *
 * Who kills whom: every command dies with the thread that started it (PR_SET_PDEATHSIG), but its children do not. So each command has a
 * process group of its own. The group's number is on the board. When a worker dies, the owner kills the groups of that worker's commands.
 * When the owner dies, the workers kill the groups.
 */
#include "cluster/cluster.h"
#include "map/job.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A worker gets this signal when the owner dies, and then ends the whole job. SIGTERM ends only the worker itself. */
#define OWNER_DIED SIGUSR1

static struct map_job *forked; /* global, since a signal handler gets no argument from us */

static void on_worker_signal(int sig)
{
    struct map_job *job = forked;
    if (sig == OWNER_DIED)
        atomic_store_explicit(&job->board->ending, 1, memory_order_seq_cst);
    for (uint32_t node = 0; node < job->nodes; node++)
        if (sig == OWNER_DIED || node == job->rank)
            map_nodes_kill_groups(job, node);
    _exit(1);
}

static void on_forks_member(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    (void)w, (void)epoch;
    struct map_job *job = arg;
    if (!died)
        return;
    if (job->rank == 0)
        map_nodes_kill_groups(job, node);
    else if (node == 0 && !atomic_load_explicit(&job->board->ending, memory_order_relaxed))
        kill(getpid(), OWNER_DIED); /* systems without PR_SET_PDEATHSIG have not sent this signal */
}

/* Open this process's node, in a fork or in the owner. */
static int open_fork(struct map_job *job, int64_t timeout_ns)
{
    weft_config config = {.bytes = sizeof config,
                          .coord = job->coord,
                          .secret = job->coord,
                          .rank = job->rank,
                          .size = job->nodes,
                          .pool_bytes = job->pool_bytes,
                          .join_timeout_ns = timeout_ns};
    int rc = map_node_open(job, &config, on_forks_member);
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
    forked = job;
    map_on_signal(SIGTERM, on_worker_signal);
    map_on_signal(OWNER_DIED, on_worker_signal);
    /* Ignore these signals: the owner decides what to do about them. */
    map_on_signal(SIGINT, SIG_IGN);
    map_on_signal(SIGHUP, SIG_IGN);
    map_on_signal(SIGQUIT, SIG_IGN);
    map_on_signal(SIGTSTP, SIG_IGN);
    map_on_signal(SIGCONT, SIG_DFL);
    base_process_null(2); /* so that a program that reads our standard output sees end-of-file when the owner has ended */
    /* Close these descriptors, too, so that the processes at their other ends see when the owner is gone. */
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
    map_gpu_close(job);
    weft_queue_close(job->queue);
    weft_close(job->w);
    _exit(0);
}

static int fork_nodes(struct map_job *job, int64_t timeout_ns)
{
    int rc = cluster_private_address(job->coord, sizeof job->coord, "map", NULL); /* creates the secret as well */
    if (rc)
        return rc;
    memset(job->board->errors, 0, sizeof job->board->errors);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* block signals, because a handler that ends the job must find every node on the board */
    for (uint32_t node = 1; !rc && node < job->nodes; node++) {
        pid_t pid = base_process_fork();
        if (pid == 0) {
            job->rank = node;
            node_main(job, timeout_ns);
        }
        if (pid < 0)
            rc = base_fail((int)pid, "cannot start node %u: %s" BASE_THREAD_HINT, node, base_strerror((int)pid));
        else
            atomic_store_explicit(&job->board->pids[node], pid, memory_order_relaxed);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* The joining has failed: end all nodes. Returns true if one of the nodes had been killed; then a new try may succeed. Waits a little,
 * because a killed process closes its connections before wait() reports its end. */
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

int map_forks_start(struct map_job *job)
{
    /* If a node is killed during the joining, the joining fails and is tried again. Each try has a longer deadline, for a very busy
     * machine. */
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

void map_forks_check(struct map_job *job)
{
    map_gpu_report(job);
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

void map_forks_wait(struct map_job *job)
{
    int64_t deadline = base_deadline(3 * WEFT_SECOND), nap = 50 * WEFT_US;
    for (;;) {
        map_forks_check(job);
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
