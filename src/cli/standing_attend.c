/* SPDX-License-Identifier: MIT
 *
 * The thread of a job: serves its tasks and its command, and sleeps in poll().
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/standing_job.h"

#define SOON_MS 2   /* how long the frame about the start of a process may wait for further frames */
#define LOOK_MS 200 /* some changes do not wake the thread, such as the end of output: it notices these within this time */
/* How long hosts have to answer after a signal of the command. After CANCEL_NS a start that a host has not answered is cancelled. After
 * LEAVE_NS the job ends without the hosts that have not answered. */
#define CANCEL_NS (500 * WEFT_MS)
#define LEAVE_NS  WEFT_SECOND

void job_signal(struct job *j, int number, weft_op *ops)
{
    pthread_mutex_lock(&j->handles);
    for (uint32_t i = 0; i < j->tasks; i++)
        task_signal(&j->task[i], number, ops ? &ops[i] : NULL);
    pthread_mutex_unlock(&j->handles);
}

/* Send a signal of the command to all processes. Processes that have not started within CANCEL_NS do not start any more. The command's
 * second signal is SIGKILL; after it the job ends within LEAVE_NS. */
static void job_interrupt(struct job *j, int number)
{
    int64_t cancel = base_deadline(CANCEL_NS);
    j->cancel_at = cancel < j->cancel_at ? cancel : j->cancel_at;
    if (number == SIGKILL && j->leave_at == INT64_MAX)
        j->leave_at = base_deadline(LEAVE_NS);
    job_signal(j, number, NULL);
}

/* Handle a frame from the command. Returns false if the connection has ended, or if the frame is invalid. */
static bool job_listen(struct job *j, char *payload)
{
    struct control_frame f;
    int64_t deadline = base_deadline(5 * WEFT_SECOND); /* the frame has begun, so the rest should follow at once */
    if (control_read(j->fd, &f, sizeof f, deadline) || !control_frame_fits(&f, false) || control_read(j->fd, payload, f.bytes, deadline))
        return false;
    if (f.type == CONTROL_INPUT)
        return job_input(j, payload, f.bytes);
    if (f.type == CONTROL_WINDOW && j->starting)
        j->window = f.number;
    else if (f.type == CONTROL_WINDOW)
        job_window(j, f.number);
    else
        job_interrupt(j, (int)f.number);
    return true;
}

/* Handle what the command sends. `*there`: the command is still connected. */
static void job_hear(struct job *j, bool *there)
{
    if ((*there = job_listen(j, j->buf)))
        return;
    j->stop = true;
    if (j->leave_at == INT64_MAX)
        j->leave_at = base_deadline(LEAVE_NS); /* do not wait for a host that does not answer */
    shutdown(j->fd, SHUT_RDWR);
    job_signal(j, SIGKILL, NULL);
}

/* Serves the tasks that have news or, if `all` is set, all tasks, as far as is possible without waiting. Without `buf`, only checks whether
 * processes have started. Returns whether there is more to do. */
static bool job_step(struct job *j, bool all, char *buf)
{
    bool more = false, starting = j->starting;
    for (uint32_t i = 0; i < j->tasks; i++, j->at = (j->at + 1) % j->tasks) {
        struct task *t = &j->task[j->at];
        if (job_unsent(j) >= CONTROL_PIECE_MAX) { /* wait until the command has read output, and then continue with this task */
            j->held = base_now_ns();
            for (uint32_t k = 0; all && k < j->tasks; k++)
                task_look(&j->task[k]);
            return true;
        }
        if (!atomic_exchange(&t->news, false) && !all)
            continue;
        if (task_step(t, buf)) {
            t->news = true;
            more = true;
        }
    }
    return more || (starting && !j->starting);
}

/* Wait for news, for the command, or for room in its socket. */
static void job_sleep(struct job *j, bool *there, int ms)
{
    char bytes[8];
    short events = (short)((*there ? POLLIN : 0) | (job_unsent(j) ? POLLOUT : 0));
    struct pollfd p[2] = {{.fd = j->news[0], .events = POLLIN}, {.fd = events ? j->fd : -1, .events = events}};
    int n = poll(p, 2, ms);
    if (n > 0 && p[0].revents && read(j->news[0], bytes, sizeof bytes) > 0)
        j->woken = false; /* cleared before the tasks are looked at, so that later news wakes this thread again */
    if (n > 0 && events & POLLIN && p[1].revents & ~POLLOUT)
        job_hear(j, there);
}

/* Called when all processes have started or could not be started. */
static void job_begun(struct job *j)
{
    if (j->input)
        job_begin_input(j);
    if (j->window)
        job_window(j, j->window);
}

/* During the first sleep (SOON_MS) only urgent news wakes the thread, so that one send can report both start and end of a short program. */
void job_attend(struct job *j)
{
    bool there = j->fd >= 0, begun = false;
    int64_t looked = 0;
    while (true) {
        int64_t now = base_now_ns();
        bool late = now - looked > LOOK_MS * WEFT_MS;
        looked = late ? now : looked;
        bool more = job_step(j, late, j->buf);
        if (!j->unfinished)
            return;
        if (!begun && !j->starting) {
            begun = true;
            job_begun(j);
        }
        job_flush(j);
        job_sleep(j, &there, more && !job_unsent(j) ? 0 : !j->eager ? SOON_MS : LOOK_MS);
        j->eager = true;
    }
}

/* Called when the processes have ended. Reads and discards what the command sends, because a command that waits until it can send does not
 * read. */
static void job_discard(struct job *j)
{
    ssize_t n = recv(j->fd, j->buf, CONTROL_PIECE_MAX, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        j->stop = true; /* the command is gone */
}

void job_drain(struct job *j)
{
    for (job_flush(j); job_unsent(j); job_flush(j)) {
        struct pollfd p = {.fd = j->fd, .events = POLLIN | POLLOUT};
        if (poll(&p, 1, LOOK_MS) > 0 && p.revents & ~POLLOUT)
            job_discard(j);
    }
}

void job_wait_start(struct job *j)
{
    bool there = true; /* if the command ends now, the job ends, too, because nobody knows the job's number */
    j->eager = true;
    for (job_step(j, true, NULL); j->starting; job_step(j, true, NULL))
        job_sleep(j, &there, LOOK_MS);
    job_drain(j);
    for (uint32_t i = 0; i < j->tasks; i++)
        j->task[i].news = true;
}
