/* SPDX-License-Identifier: MIT
 *
 * The progress bar: one line on a terminal. It is erased before anything else is printed, and at the end.
 */
#include "map/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define EVERY_NS (100 * WEFT_MS)
#define CELLS    20 /* the greatest width of the bar, in characters */

void map_progress_clear(struct map_job *job) /* async-signal-safe */
{
    if (atomic_exchange_explicit(&job->progress_shown, false, memory_order_relaxed))
        (void)!write(STDERR_FILENO, "\r\033[K", 4);
}

/* Whether another program has the terminal's foreground. */
static bool in_background(void)
{
    pid_t group = tcgetpgrp(STDERR_FILENO);
    return group > 0 && group != getpgrp();
}

static void format_left(double seconds, char *text, size_t room)
{
    unsigned s = seconds < 0 ? 0 : seconds > 359999 ? 359999 : (unsigned)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, room, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, room, "%u:%02u", s / 60, s % 60);
}

void map_progress_show(struct map_job *job)
{
    int64_t now = base_now_ns();
    /* `ending`: a signal handler has erased the bar, while this thread still runs. */
    if (!job->progress || now - job->progress_ns < EVERY_NS || in_background() ||
        atomic_load_explicit(&job->board->ending, memory_order_relaxed))
        return;
    job->progress_ns = now;
    const struct map_counts *c = &job->counts;
    unsigned running = 0;
    for (uint32_t node = 0; node < job->nodes; node++)
        for (uint32_t i = 0; i < job->slots; i++)
            running += atomic_load_explicit(&map_line(job, node, i)->busy, memory_order_relaxed);
    double seconds = (double)(now - c->start_ns) / 1e9, rate = seconds > 0 ? (double)c->bytes_done / seconds : 0;
    char done[32], total[32], a_second[32], left[24] = "", line[256], retried[40] = "", failed[40] = "";
    base_format_bytes(c->bytes_done, done, sizeof done);
    base_format_bytes((uint64_t)rate, a_second, sizeof a_second);
    if (c->retried)
        snprintf(retried, sizeof retried, ", %" PRIu64 " retried", c->retried);
    if (c->failed)
        snprintf(failed, sizeof failed, ", %" PRIu64 " failed", c->failed);
    /* The line must fit on the terminal, because a wrapped line cannot be erased. */
    struct winsize size;
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80, n;
    if (c->bytes_total) {
        double part = (double)c->bytes_done / (double)c->bytes_total;
        char words[200], bar[CELLS + 4] = "";
        base_format_bytes(c->bytes_total, total, sizeof total);
        if (c->bytes_done)
            format_left((double)(c->bytes_total - c->bytes_done) / rate, left, sizeof left);
        n = snprintf(words, sizeof words, "%3.0f%%  %s of %s  %s/s  %u running%s%s  %s left", part * 100, done, total, a_second, running,
                     retried, failed, left[0] ? left : "-:--");
        /* The bar gets the width that the words leave. */
        int cells = columns - 1 - n - 3;
        cells = cells > CELLS ? CELLS : cells;
        if (cells > 0) {
            bar[0] = '[';
            for (int i = 0; i < cells; i++)
                bar[1 + i] = i < (int)(part * cells) ? '#' : '.';
            memcpy(bar + 1 + cells, "] ", 3);
        }
        n = snprintf(line, sizeof line, "\r\033[K%s%s", bar, words);
    } else {
        n = snprintf(line, sizeof line, "\r\033[K%s  %s/s  %u running%s%s  %.0f s", done, a_second, running, retried, failed, seconds);
    }
    if (n > columns + 3)
        n = columns + 3;
    atomic_store_explicit(&job->progress_shown, true, memory_order_relaxed);
    (void)!write(STDERR_FILENO, line, (size_t)n);
}
