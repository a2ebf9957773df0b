/* SPDX-License-Identifier: MIT
 *
 * The tasks of a job: the processes, their output and their input. The job's thread does everything for all tasks except writing their
 * input. News about a process wakes this thread (gateway_process_notice()).
 *
 * A task is done when its process has ended and its output was read. A process that has left the task's group (setsid) may keep the output
 * open. So the output is read only for LATE_NS, or LATE_BYTES, after the end of the task's process. Time in which the command does not read
 * does not count.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/launch.h"
#include "cli/standing_job.h"
#include "gateway/gateway.h"

#define LOOK_NS    (200 * WEFT_MS) /* the thread that passes on the input notices within this time that its job must end */
#define LATE_NS    WEFT_SECOND
#define LATE_BYTES ((size_t)4 << 20)

/* --- tasks --- */

void task_notice(void *task, bool soon)
{
    struct task *t = task;
    atomic_store(&t->news, true);
    if (soon || t->job->eager)
        job_wake(t->job);
}

/* Free the handle of a process. Takes a lock, because a command may be sending a signal to this process. */
void task_close(struct task *t)
{
    pthread_mutex_lock(&t->job->handles);
    if (t->kills)
        weft_request_cancel(t->job->all->w, &t->kill); /* from here on the memory of this op may be freed */
    if (t->p)
        gateway_process_notice(t->p, NULL, NULL);
    weft_process_close(t->p);
    t->p = NULL;
    pthread_mutex_unlock(&t->job->handles);
}

static void task_done(struct task *t, int status)
{
    struct jobs *all = t->job->all;
    t->done = true;
    t->job->unfinished--;
    t->status = status;
    pthread_mutex_lock(&all->lock);
    t->job->left--;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

void task_not_started(struct task *t, int rc)
{
    char said[512];
    snprintf(said, sizeof said, "%s", base_error());
    if (rc == -ECONNRESET)
        base_fail(rc, "%s; `weft status` lists the nodes that are up", said);
    else if (rc == -ENOMEM)
        base_fail(rc, "%s; each node that runs a command takes a part of this host's pool: start the cluster with a larger --pool", said);
    job_put(t->job, CONTROL_ERROR, t->node, (uint32_t)-rc, base_error(), strlen(base_error()));
    task_done(t, rc == -ENOENT ? LAUNCH_NOT_FOUND : rc == -EACCES ? LAUNCH_NOT_USABLE : JOBS_FAILED);
}

void task_signal(struct task *t, int number, weft_op *op)
{
    int rc = t->over ? -ESRCH : t->p ? gateway_process_signal(t->p, number, op) : -EINPROGRESS;
    if (rc == -EINPROGRESS)
        t->due |= UINT64_C(1) << (number - 1);
}

/* Sends the signals that arrived before the task's process had started. */
static void task_signal_due(struct task *t)
{
    pthread_mutex_lock(&t->job->handles);
    for (int number = 1; t->due; number++, t->due >>= 1)
        if (t->due & 1)
            gateway_process_signal(t->p, number, NULL);
    pthread_mutex_unlock(&t->job->handles);
}

/* Whether the job no longer waits for the start of the task's process. */
static bool task_cancelled(const struct task *t)
{
    const struct job *j = t->job;
    int64_t now = base_now_ns();
    return j->stop || now > j->kill_at || now > j->cancel_at;
}

/* Cancels the start of the task's process. If the host has started the process already, it is killed when the answer arrives here. */
static int task_cancel(struct task *t)
{
    char host[64];
    int rc = weft_request_cancel(t->job->all->w, &t->op);
    if (rc)
        return weft_test(t->job->all->w, &t->op); /* not cancelled: the answer has arrived just now */
    jobs_host(t->job->all, t->node, host, sizeof host);
    return base_fail(-ECANCELED,
                     "node %u (%s) has not answered, so the start of the command there is cancelled; if the node stays silent (see `weft "
                     "status`), end its process (kill -9), and another node takes its place",
                     t->node, host);
}

/* Called when the task's process has started or could not be started. After the last task of the job, look at all tasks, because their
 * output was held back until then. */
static void task_begun(struct task *t)
{
    struct job *j = t->job;
    t->starts = false;
    if (--j->starting == 0)
        for (uint32_t i = 0; i < j->tasks; i++)
            j->task[i].news = true;
}

/* Returns false if the task's process has not started yet, or could not be started. */
static bool task_started(struct task *t)
{
    struct jobs *all = t->job->all;
    char host[64];
    if (t->starts)
        /* the gateway calls task_notice() before it completes the operation, and holds its lock during both. This call waits for the lock,
         * so that weft_test() sees the result */
        (void)weft_process_pid(t->p);
    int rc = t->starts ? weft_test(all->w, &t->op) : 0;
    if (rc == -EINPROGRESS && task_cancelled(t))
        rc = task_cancel(t);
    if (rc == -EINPROGRESS)
        return false;
    if (rc) {
        rc = rc == -ECANCELED ? rc : weft_process_wait(t->p, NULL, 0, 0); /* sets the error text */
        task_not_started(t, rc);
        task_begun(t);
        task_close(t);
        return false;
    }
    if (!t->starts)
        return true;
    task_begun(t);
    task_signal_due(t);
    t->pid = weft_process_pid(t->p);
    jobs_host(all, t->node, host, sizeof host);
    job_put(t->job, CONTROL_STARTED, t->node, t->pid, host, strlen(host));
    return true;
}

/* Sends SIGKILL. If a request to send it has timed out, the next call sends it again. */
static void task_kill(struct task *t)
{
    if (!t->kills || weft_test(t->job->all->w, &t->kill) != -EINPROGRESS)
        t->kills = gateway_process_signal(t->p, SIGKILL, &t->kill) == 0;
}

/* Whether the process has ended. Kills the process when that is due. */
static bool task_over(struct task *t)
{
    struct job *j = t->job;
    if (t->over)
        return true;
    if (weft_process_wait(t->p, NULL, 0, 0) != -ETIMEDOUT) {
        t->over = base_now_ns();
        return true;
    }
    if (j->stop || base_now_ns() > j->kill_at)
        task_kill(t);
    return false;
}

/* Passes on a piece of output. Returns true if there may be more output. */
static bool task_read(struct task *t, unsigned which, char *buf)
{
    size_t n = 0;
    if (t->read[which])
        return false;
    int rc = weft_process_read(t->p, which + 1, buf, CONTROL_PIECE_MAX, &n, 0);
    if (rc == -ETIMEDOUT)
        return false;
    t->read[which] = rc || n == 0;
    if (n)
        job_output(t->job, t->node, which + 1, buf, n);
    t->late_bytes += t->over ? n : 0;
    return !t->read[which];
}

static int exit_status(const weft_exit *e)
{
    return e->timed_out ? LAUNCH_TIMED_OUT : e->signal ? 128 + e->signal : e->status;
}

static void task_end(struct task *t)
{
    struct job *j = t->job;
    weft_exit e;
    int rc = weft_process_wait(t->p, &e, sizeof e, 0);
    int status = rc ? JOBS_FAILED : exit_status(&e);
    if (rc) {
        t->lost = !weft_alive(j->all->w, t->node);
        job_put(j, CONTROL_ERROR, t->node, (uint32_t)-rc, base_error(), strlen(base_error()));
    } else {
        job_put(j, CONTROL_ENDED, t->node, (uint32_t)status, NULL, 0);
    }
    task_done(t, status);
}

/* Stops waiting for a process that was killed but has not ended: the host hangs, or the process is in a system call that does not return.
 */
static void task_leave(struct task *t)
{
    char text[512], host[64];
    jobs_host(t->job->all, t->node, host, sizeof host);
    snprintf(text, sizeof text,
             "node %u (%s) has not ended process %u, although it was told to kill it: the process ends when the node goes on; if the node "
             "stays silent (see `weft status`), end its process (kill -9)",
             t->node, host, t->pid);
    job_put(t->job, CONTROL_ERROR, t->node, ETIMEDOUT, text, strlen(text));
    t->over = base_now_ns();
    task_done(t, JOBS_FAILED);
}

/* Whether output that still arrives must be from other processes: see the top of this file. */
static bool task_late(const struct task *t)
{
    int64_t held = t->late_bytes < LATE_BYTES ? t->job->held : 0;
    return base_now_ns() - (held > t->over ? held : t->over) > LATE_NS;
}

void task_look(struct task *t)
{
    if (t->p && !t->starts && !t->done)
        task_over(t);
}

bool task_step(struct task *t, char *buf)
{
    struct job *j = t->job;
    if (t->done || !task_started(t))
        return false;
    if (j->starting || !buf) {
        if (j->stop || base_now_ns() > j->kill_at) /* do not wait with this until all processes have started: a host may hang */
            task_kill(t);
        return false;
    }
    bool more = task_read(t, 0, buf);
    more = task_read(t, 1, buf) || more;
    if (task_over(t) && ((t->read[0] && t->read[1]) || j->stop || task_late(t)))
        task_end(t);
    else if (!t->over && base_now_ns() > j->leave_at)
        task_leave(t);
    return more && !t->done;
}

/* --- input --- */

void *job_feed(void *arg)
{
    struct job *j = arg;
    char *buf = malloc(CONTROL_PIECE_MAX);
    pthread_mutex_lock(&j->feed);
    while (!j->input_begun && !j->input_end && !j->stop)
        pthread_cond_wait(&j->fed, &j->feed);
    bool begun = buf && j->input_begun;
    pthread_mutex_unlock(&j->feed);
    if (begun)
        job_say(j, CONTROL_TAKEN, UINT32_MAX, CONTROL_INPUT_MAX, "");
    for (bool end = !begun; !end && !j->stop;) {
        pthread_mutex_lock(&j->feed);
        while (!j->input_bytes && !j->input_end && !j->stop)
            pthread_cond_wait(&j->fed, &j->feed);
        size_t n = j->input_bytes < CONTROL_PIECE_MAX ? j->input_bytes : CONTROL_PIECE_MAX;
        memcpy(buf, j->input, n);
        memmove(j->input, j->input + n, j->input_bytes - n);
        j->input_bytes -= n;
        end = n == 0;
        pthread_mutex_unlock(&j->feed);
        for (uint32_t i = 0; i < j->tasks && n; i++) {
            struct task *t = &j->task[i];
            size_t put = 0, at = 0;
            int rc = t->p ? -ETIMEDOUT : -EPIPE;
            while (rc == -ETIMEDOUT && !j->stop && !t->over) {
                rc = weft_process_write(t->p, buf + at, n - at, &put, LOOK_NS);
                at += put;
            }
        }
        if (n)
            job_say(j, CONTROL_TAKEN, UINT32_MAX, (uint32_t)n, "");
    }
    for (uint32_t i = 0; i < j->tasks; i++) {
        /* if the job ends early, the job's thread may be closing the handles of processes that could not be started */
        pthread_mutex_lock(&j->handles);
        if (j->task[i].p)
            weft_process_end_input(j->task[i].p);
        pthread_mutex_unlock(&j->handles);
    }
    free(buf);
    return NULL;
}

void job_begin_input(struct job *j)
{
    pthread_mutex_lock(&j->feed);
    j->input_begun = true;
    pthread_cond_signal(&j->fed);
    pthread_mutex_unlock(&j->feed);
}

bool job_input(struct job *j, const char *data, size_t bytes)
{
    pthread_mutex_lock(&j->feed);
    bool fits = j->input && j->input_begun && !j->input_end && bytes <= CONTROL_INPUT_MAX - j->input_bytes;
    if (fits && bytes)
        memcpy(j->input + j->input_bytes, data, bytes);
    j->input_bytes += fits ? bytes : 0;
    j->input_end = j->input_end || bytes == 0;
    pthread_cond_signal(&j->fed);
    pthread_mutex_unlock(&j->feed);
    return fits;
}

void job_window(struct job *j, uint32_t window)
{
    pthread_mutex_lock(&j->handles);
    if (j->task[0].p && !j->task[0].over)
        weft_process_window(j->task[0].p, (uint16_t)window, (uint16_t)(window >> 16), WEFT_SECOND);
    pthread_mutex_unlock(&j->handles);
}
