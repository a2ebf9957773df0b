/* SPDX-License-Identifier: MIT
 *
 * Runs one command on one piece. One thread feeds the command's input and reads its output and its stderr, with poll() and three pipes.
 */
#include "map/job.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FULL_MS 2 /* while the pool is full: ms until this thread looks for free memory again */

enum { OUR_IN, OUR_OUT, OUR_ERR, THEIR_IN, THEIR_OUT, THEIR_ERR, PROCESS, FDS };

struct running {
    struct map_slot *slot;
    int fds[FDS]; /* -1: closed */
    pid_t pid;
    /* The part of the input that was not fed yet. */
    struct map_span in;
    bool copy;            /* splice() does not work on this input: copy the bytes instead */
    bool full;            /* leave output in the pipe until the owner has freed memory */
    enum map_kind failed; /* why the piece fails although the command succeeds; MAP_OK: it does not fail */
};

static void command_shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int open_pipes(struct running *r)
{
    int p[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    for (int i = 0; i < FDS; i++)
        r->fds[i] = -1;
    for (int i = 0; i < 3; i++) {
        int rc = base_pipe(p[i], 0);
        if (rc) {
            for (int k = 0; k < i; k++)
                close(p[k][0]), close(p[k][1]);
            return rc;
        }
    }
    r->fds[THEIR_IN] = p[0][0];
    r->fds[OUR_IN] = p[0][1];
    r->fds[OUR_OUT] = p[1][0];
    r->fds[THEIR_OUT] = p[1][1];
    r->fds[OUR_ERR] = p[2][0];
    r->fds[THEIR_ERR] = p[2][1];
    for (int i = OUR_IN; i <= OUR_ERR; i++)
        fcntl(r->fds[i], F_SETFL, O_NONBLOCK);
#ifdef F_SETPIPE_SZ
    /* Larger pipes need fewer context switches. If the user's limit does not allow larger pipes, the pipes stay small. */
    if (r->in.length > 65536)
        fcntl(r->fds[OUR_IN], F_SETPIPE_SZ, MAP_PIPE_BYTES);
    fcntl(r->fds[OUR_OUT], F_SETPIPE_SZ, MAP_PIPE_BYTES);
#endif
    return 0;
}

/* Write as much input as the pipe takes now. Returns 0 when the pipe is full. Also returns 0 when all input is written; the pipe is closed
 * then. */
static int feed(struct running *r)
{
    struct map_span *in = &r->in;
    while (in->length) {
        ssize_t n;
        size_t want = in->length < ((size_t)1 << 30) ? (size_t)in->length : (size_t)1 << 30;
        if (in->memory) {
            n = write(r->fds[OUR_IN], in->memory, want);
#if defined(__linux__)
        } else if (!r->copy) {
            /* splice() moves pages of the page cache without a copy. */
            off_t at = (off_t)in->offset;
            n = splice(in->fd, &at, r->fds[OUR_IN], NULL, want, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
            if (n < 0 && errno == EINVAL) {
                r->copy = true;
                continue;
            }
#endif
        } else {
            uint8_t some[65536];
            ssize_t got = pread(in->fd, some, want < sizeof some ? want : sizeof some, (off_t)in->offset);
            if (got < 0 && errno == EINTR)
                continue;
            n = got > 0 ? write(r->fds[OUR_IN], some, (size_t)got) : got;
        }
        if (n > 0) {
            if (in->memory)
                in->memory += n;
            in->offset += (uint64_t)n;
            in->length -= (uint64_t)n;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && errno == EAGAIN) {
            return 0;
        } else if (n < 0 && errno == EPIPE) {
            break; /* the command has closed its input, which is no error */
        } else if (n < 0) {
            r->failed = MAP_NO_INPUT;
            return base_fail(-errno, "cannot read a piece of the input for the command: %s", base_strerror(errno));
        } else {
            r->failed = MAP_NO_INPUT;
            return base_fail(-EIO,
                             "the input ends %llu bytes before the end of the piece: it was truncated during the job; run the job again "
                             "once the file no longer changes",
                             (unsigned long long)in->length);
        }
    }
    command_shut(&r->fds[OUR_IN]);
    return 0;
}

/* Read the output that is available. Returns 0 when no more is available now. Also returns 0 when the output has ended; the pipe is closed
 * then. */
static int take_output(struct running *r, bool may_wait)
{
    for (;;) {
        uint8_t *at;
        size_t room;
        int rc = map_capture_room(&r->slot->capture, &at, &room, may_wait);
        r->full = rc == -EAGAIN;
        if (r->full)
            return 0;
        if (rc) {
            r->failed = MAP_NO_SPACE;
            return rc;
        }
        ssize_t n = read(r->fds[OUR_OUT], at, room);
        if (n > 0) {
            map_capture_commit(&r->slot->capture, (size_t)n);
            if ((size_t)n < room)
                return 0; /* the pipe is most likely empty; if not, poll() reports it again */
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
            command_shut(&r->fds[OUR_OUT]);
            return 0;
        } else if (errno == EAGAIN) {
            return 0;
        }
    }
}

static void take_errors(struct running *r)
{
    struct map_errors *e = &r->slot->errors;
    const uint64_t half = MAP_STDERR_BYTES / 2;
    for (;;) {
        char some[4096];
        ssize_t n = read(r->fds[OUR_ERR], some, sizeof some);
        for (ssize_t i = 0; i < n; i++, e->total++)
            e->bytes[e->total < half ? e->total : half + (e->total - half) % half] = some[i];
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            command_shut(&r->fds[OUR_ERR]);
        if (n >= 0 ? (size_t)n < sizeof some : errno != EINTR)
            return;
    }
}

size_t map_errors_text(const struct map_errors *e, char *text)
{
    const uint64_t half = MAP_STDERR_BYTES / 2;
    if (e->total <= 2 * half) {
        memcpy(text, e->bytes, (size_t)e->total);
        return (size_t)e->total;
    }
    memcpy(text, e->bytes, half);
    size_t n = half;
    n += (size_t)sprintf(text + n, "\n[... %llu bytes left out ...]\n", (unsigned long long)(e->total - 2 * half));
    uint64_t oldest = (e->total - half) % half;
    memcpy(text + n, e->bytes + half + oldest, half - oldest);
    memcpy(text + n + half - oldest, e->bytes + half, oldest);
    return n + half;
}

/* The process has ended: read what is left in the pipes. Children of the process may keep the pipes open; do not wait for these
 * children. */
static int command_drain(struct running *r)
{
    int rc = 0;
    for (uint64_t before = UINT64_MAX; !rc && r->fds[OUR_OUT] >= 0 && before != r->slot->capture.total;) {
        before = r->slot->capture.total;
        rc = take_output(r, false);
    }
    for (uint64_t before = UINT64_MAX; r->fds[OUR_ERR] >= 0 && before != r->slot->errors.total;) {
        before = r->slot->errors.total;
        take_errors(r);
    }
    return rc;
}

/* Move bytes until the process has ended. Kill the process when its time is over, or when this slot has lost the claim. */
static int pump(struct running *r, int64_t deadline, siginfo_t *info, bool *timed_out)
{
    struct map_slot *slot = r->slot;
    int64_t renew = base_now_ns() + slot->job->renew_ns;
    const _Atomic uint32_t *stopped = &slot->job->board->stopped;
    const _Atomic int64_t *stopped_ns = &slot->job->board->stopped_ns;
    int64_t not_counted = atomic_load_explicit(stopped_ns, memory_order_relaxed);
    /* With a time limit, do not leave output in the pipe: the time in which the command waits for room in the pipe would count as its run
     * time. */
    const bool may_wait = !slot->job->options->timeout_ns;
    bool killed = false;
    int rc = 0;
    for (;;) {
        struct pollfd p[4] = {{r->fds[OUR_IN], POLLOUT, 0},
                              {r->full ? -1 : r->fds[OUR_OUT], POLLIN, 0},
                              {r->fds[OUR_ERR], POLLIN, 0},
                              {r->fds[PROCESS], POLLIN, 0}};
        int64_t until = killed || renew < deadline ? renew : deadline, now = base_now_ns();
        int64_t wait_ms = until > now ? (until - now) / WEFT_MS + 1 : 0;
        if (r->fds[PROCESS] < 0 && wait_ms > 5)
            wait_ms = 5; /* this system has no descriptor that becomes readable when the process ends, so look every 5 ms */
        if (r->full && wait_ms > FULL_MS)
            wait_ms = FULL_MS;
        int n = poll(p, 4, wait_ms > 60000 ? 60000 : (int)wait_ms);
        if (((n > 0 && p[1].revents) || r->full) && !rc)
            rc = take_output(r, may_wait);
        if (n > 0 && p[2].revents)
            take_errors(r);
        if (n > 0 && p[0].revents && r->fds[OUR_IN] >= 0 && !rc)
            rc = feed(r);
        if ((n > 0 && p[3].revents) || r->fds[PROCESS] < 0) {
            if (base_process_ended(r->pid, info))
                return rc ? rc : command_drain(r);
        }
        now = base_now_ns();
        if (!killed && now >= deadline) {
            /* Time during which the job is or was stopped does not count. acquire: pairs with on_continue(), which first adds the time and
             * then clears `stopped`. */
            bool held = atomic_load_explicit(stopped, memory_order_acquire);
            int64_t more = atomic_load_explicit(stopped_ns, memory_order_relaxed) - not_counted;
            not_counted += more;
            deadline = (held ? now + 10 * WEFT_MS : deadline) + more;
            *timed_out = !held && now >= deadline;
        }
        if (!killed && now >= renew) {
            renew = now + slot->job->renew_ns;
            slot->lost = weft_renew(slot->job->queue, slot->claim) == -ESTALE;
        }
        if (!killed && (rc || *timed_out || slot->lost)) {
            kill(-r->pid, SIGKILL);
            killed = true;
        }
        if (rc) /* the output is no longer read: only wait for the end of the process */
            command_shut(&r->fds[OUR_OUT]), command_shut(&r->fds[OUR_IN]);
    }
}

void map_command_run(struct map_slot *slot, const char *path, char *const *argv, const struct map_span *in, enum map_kind *kind, int *code)
{
    struct map_job *job = slot->job;
    struct running r = {.slot = slot, .in = *in};
    slot->errors.total = 0;
    slot->lost = false;
    int rc = open_pipes(&r);
    if (rc) {
        *kind = MAP_NO_INPUT; /* this node has too few descriptors; another node may have enough */
        *code = -rc;
        return;
    }
    /* Feed the pipe before the command starts, because a whole small piece fits into it. */
    rc = feed(&r);
    int64_t start = base_now_ns();
    if (!rc) {
        /* The command itself writes its process group to the board, so that other nodes can kill it even if this process dies now. */
        int start_rc = map_spawn(path, argv, &r.fds[THEIR_IN], &slot->line->group, &r.pid);
        if (start_rc) {
            *kind = MAP_NO_START;
            *code = -start_rc;
            goto out;
        }
        /* Pairs with map_end_all(): either that function sees the group, or this load sees `ending`. */
        if (atomic_load_explicit(&job->board->ending, memory_order_seq_cst))
            kill(-r.pid, SIGKILL);
        /* Pairs with on_stop(): either that handler sees the group, or this load sees `stopped`. If the job was continued meanwhile, the
         * command must be continued, too. */
        if (atomic_load_explicit(&job->board->stopped, memory_order_seq_cst)) {
            kill(-r.pid, SIGSTOP);
            if (!atomic_load_explicit(&job->board->stopped, memory_order_seq_cst))
                kill(-r.pid, SIGCONT);
        }
        command_shut(&r.fds[THEIR_IN]);
        command_shut(&r.fds[THEIR_OUT]);
        command_shut(&r.fds[THEIR_ERR]);
        r.fds[PROCESS] = base_watch_process(r.pid);
        siginfo_t info;
        bool timed_out = false;
        int64_t deadline = job->options->timeout_ns ? base_deadline(job->options->timeout_ns) : INT64_MAX;
        rc = pump(&r, deadline, &info, &timed_out);
        kill(-r.pid, SIGKILL); /* also kills the processes that the command has left running */
        atomic_store_explicit(&slot->line->group, 0, memory_order_seq_cst);
        base_process_reap(r.pid);
        atomic_fetch_add_explicit(&slot->line->command_ns, (uint64_t)(base_now_ns() - start), memory_order_relaxed);
        if (!rc) {
            *kind = timed_out ? MAP_TIMED_OUT : info.si_code != CLD_EXITED ? MAP_SIGNALLED : info.si_status ? MAP_EXITED : MAP_OK;
            *code = timed_out ? 0 : info.si_status;
        }
    }
    if (rc) {
        *kind = r.failed;
        *code = -rc;
    }
out:
    for (int i = 0; i < FDS; i++)
        command_shut(&r.fds[i]);
}
