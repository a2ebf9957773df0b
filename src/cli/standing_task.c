/* SPDX-License-Identifier: MIT
 *
 * The tasks of a job: the processes, their output and their input. Each task has a thread that reads its standard output and waits for its
 * end, and one that reads its standard error. They send what they read to the command. If the command does not read, the threads wait, and
 * so do the processes. The output of a detached job is kept instead.
 *
 * A task has ended when its process has ended and its output was read. A process that has left the task's group (setsid) may keep the
 * output open. So the output is no longer read LATE_NS after the end of the task's process.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/launch.h"
#include "cli/standing_job.h"

#define LOOK_NS (200 * WEFT_MS) /* how late a thread notices that its job is to end */
#define LATE_NS WEFT_SECOND

/* --- output --- */

static void keep_output(struct job *j, uint32_t node, uint32_t which, const char *data, size_t bytes)
{
    struct piece *p = malloc(sizeof *p + bytes);
    if (!p) {
        j->dropped += bytes;
        return;
    }
    *p = (struct piece){.number = j->pieces++, .node = node, .which = which, .bytes = bytes};
    memcpy(p->data, data, bytes);
    *j->last = p;
    j->last = &p->next;
    j->kept += bytes + sizeof *p;
    while (j->kept > JOBS_KEPT_MAX) {
        struct piece *old = j->first;
        j->first = old->next;
        if (!j->first)
            j->last = &j->first;
        j->kept -= old->bytes + sizeof *old;
        j->dropped += old->bytes;
        free(old);
    }
}

static void job_output(struct job *j, uint32_t node, uint32_t which, const char *data, size_t bytes)
{
    pthread_mutex_lock(&j->send);
    if (j->detached)
        keep_output(j, node, which, data, bytes);
    else if (!j->stop && control_send(j->fd, CONTROL_OUT, node, which, data, bytes))
        j->stop = true; /* the command is gone */
    pthread_mutex_unlock(&j->send);
    if (j->detached) {
        pthread_mutex_lock(&j->all->lock);
        pthread_cond_broadcast(&j->all->changed);
        pthread_mutex_unlock(&j->all->lock);
    }
}

void job_say(struct job *j, enum control_type type, uint32_t node, uint32_t number, const char *text)
{
    pthread_mutex_lock(&j->send);
    if (!j->detached && !j->stop && control_send(j->fd, type, node, number, text, strlen(text)))
        j->stop = true;
    pthread_mutex_unlock(&j->send);
}

/* Never waits: a command whose socket is full, or to which another thread sends, needs no sign of life. */
void jobs_alive(struct jobs *all)
{
    pthread_mutex_lock(&all->lock);
    for (struct job *j = all->first; j; j = j->next) {
        if (pthread_mutex_trylock(&j->send))
            continue;
        struct pollfd p = {.fd = j->fd, .events = POLLOUT};
        if (!j->detached && !j->stop && poll(&p, 1, 0) == 1 && p.revents == POLLOUT)
            control_send(j->fd, CONTROL_TEXT, UINT32_MAX, 0, NULL, 0);
        pthread_mutex_unlock(&j->send);
    }
    pthread_mutex_unlock(&all->lock);
}

/* --- tasks --- */

/* Whether the process has ended. Kills it when that is due. */
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
        weft_process_signal(t->p, SIGKILL, WEFT_SECOND);
    return false;
}

static void task_read(struct task *t, uint32_t which)
{
    struct job *j = t->job;
    char *buf = malloc(CONTROL_PIECE_MAX);
    int64_t looked = 0;
    for (int rc = buf ? 0 : -ENOMEM; rc == 0 || rc == -ETIMEDOUT;) {
        size_t n = 0;
        rc = weft_process_read(t->p, which, buf, CONTROL_PIECE_MAX, &n, LOOK_NS);
        if (rc == 0 && n == 0)
            break;
        if (rc == 0)
            job_output(j, t->node, which, buf, n);
        if (rc == -ETIMEDOUT || base_recent_ns() - looked > LOOK_NS) {
            looked = base_recent_ns();
            if (task_over(t) && (j->stop || base_now_ns() - t->over > LATE_NS))
                break;
        }
    }
    free(buf);
}

static void *task_errors(void *arg)
{
    task_read(arg, 2);
    return NULL;
}

static int exit_status(const weft_exit *e)
{
    return e->timed_out ? LAUNCH_TIMED_OUT : e->signal ? 128 + e->signal : e->status;
}

void job_ended(struct job *j)
{
    char byte = 0;
    ssize_t n = 0;
    pthread_mutex_lock(&j->all->lock);
    if (--j->left == 0 && j->over[1] >= 0)
        n = write(j->over[1], &byte, 1);
    (void)n;
    pthread_cond_broadcast(&j->all->changed);
    pthread_mutex_unlock(&j->all->lock);
}

void *task_main(void *arg)
{
    struct task *t = arg;
    weft_exit e;
    bool errors = base_thread(&t->errors, task_errors, t) == 0;
    task_read(t, 1);
    int rc;
    while ((rc = weft_process_wait(t->p, &e, sizeof e, LOOK_NS)) == -ETIMEDOUT)
        task_over(t);
    t->over = t->over ? t->over : base_now_ns();
    if (errors)
        pthread_join(t->errors, NULL);
    if (rc) {
        t->lost = !weft_alive(t->job->all->w, t->node);
        t->status = JOBS_FAILED;
        job_say(t->job, CONTROL_ERROR, t->node, (uint32_t)-rc, base_error());
    } else {
        t->status = exit_status(&e);
        job_say(t->job, CONTROL_ENDED, t->node, (uint32_t)t->status, "");
    }
    job_ended(t->job);
    return NULL;
}

/* --- input --- */

void *job_feed(void *arg)
{
    struct job *j = arg;
    char *buf = malloc(CONTROL_PIECE_MAX);
    if (buf)
        job_say(j, CONTROL_TAKEN, UINT32_MAX, CONTROL_INPUT_MAX, ""); /* from now on the command is listened to, so it may send */
    for (bool end = !buf; !end && !j->stop;) {
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
    for (uint32_t i = 0; i < j->tasks; i++)
        if (j->task[i].p)
            weft_process_end_input(j->task[i].p);
    free(buf);
    return NULL;
}

bool job_input(struct job *j, const char *data, size_t bytes)
{
    pthread_mutex_lock(&j->feed);
    bool fits = j->input && !j->input_end && bytes <= CONTROL_INPUT_MAX - j->input_bytes;
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
