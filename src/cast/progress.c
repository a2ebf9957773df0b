/* SPDX-License-Identifier: MIT
 *
 * Node 0: shows progress on a terminal, in one line for the whole cast and one line for each host. These lines are erased before anything
 * else is printed. Also reports nodes that do not answer, by the heartbeat that each node sends every second.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cast/cast.h"
#include "cast/show.h"

#define EVERY_NS  (200 * WEFT_MS)
#define LINES     24u                /* maximum number of hosts that have a line of their own */
#define SILENT_NS (3 * WEFT_SECOND)  /* after this time without an answer, the host's line says that the host does not answer */
#define TELL_NS   (10 * WEFT_SECOND) /* after this time without an answer, a message is printed, too */
#define ASLEEP_NS WEFT_SECOND        /* if the main thread pauses for this time, the process was stopped or the machine was asleep */

void cast_show_erase(struct cast_show *s)
{
    /* the launcher or a shell may print while this process is stopped or in the background */
    bool others = s->others_printed() || base_now_ns() - s->shown > ASLEEP_NS;
    if (others && s->lines > 1)
        s->lines = 1;
    for (; s->lines; s->lines--)
        fputs(s->lines > 1 ? "\r\033[K\033[A" : "\r\033[K", stderr);
}

const char *cast_show_doing(const struct cast *c, uint32_t node, uint32_t doing)
{
    static const char *const words[CAST_DOINGS] = {"starting",      "comparing", "waiting for data", "writing",
                                                   "relaying only", "done",      "gave up"};
    return doing >= CAST_ENDED && doing < CAST_DOINGS ? words[doing]
           : !weft_alive(c->w, node)                  ? "gone"
                                                      : words[doing < CAST_DOINGS ? doing : 0];
}

/* Whether another program is in the foreground of the terminal. This node has its own process group; the user's command is its parent. */
static bool in_background(void)
{
    pid_t group = tcgetpgrp(STDERR_FILENO);
    return group > 0 && group != getpgid(getppid());
}

static uint64_t bytes_of(const struct cast_state *t, uint64_t whole)
{
    return t->partial > whole || t->bytes > whole - t->partial ? whole : t->bytes + t->partial;
}

static struct cast_heard heard_from(struct cast_show *s, uint32_t node)
{
    pthread_mutex_lock(&s->lock);
    struct cast_heard h = s->heard[node];
    pthread_mutex_unlock(&s->lock);
    return h;
}

/* The text of a target's line: what the target is doing, and the time since its last report. */
static const char *news_of(const struct cast *c, uint32_t node, uint32_t doing, int64_t now, char *out, size_t len)
{
    const struct cast_heard h = heard_from(c->show, node);
    const char *word = cast_show_doing(c, node, doing);
    if (doing == CAST_ENDED || !weft_alive(c->w, node) || now - h.state < SILENT_NS)
        snprintf(out, len, "%s", word);
    else if (now - h.any >= SILENT_NS)
        snprintf(out, len, "no answer for %d s", (int)((now - h.any) / WEFT_SECOND));
    else /* the target waits for its disk */
        snprintf(out, len, "%s, no progress for %d s", word, (int)((now - h.state) / WEFT_SECOND));
    return out;
}

static void print_line(struct cast_show *s, int columns, const char *line)
{
    fprintf(stderr, "%s%.*s", s->lines ? "\n" : "", columns - 1, line);
    s->lines++;
}

/* Copies the reported states. Returns the progress of the slowest target that has not failed, in bytes. */
static uint64_t take_states(struct cast *c, struct cast_sums *sums)
{
    struct cast_show *s = c->show;
    uint64_t least = UINT64_MAX;
    pthread_mutex_lock(&s->lock);
    memcpy(s->printed, s->state, c->config.head.size * sizeof *s->state);
    *sums = s->sums;
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < c->config.head.size; i++) {
        const struct cast_state *t = &s->printed[i];
        uint64_t bytes = bytes_of(t, sums->bytes);
        bool failed = t->doing == CAST_GAVE_UP || t->doing == CAST_RELAYING || !weft_alive(c->w, i);
        if (cast_is_target(c, i) && !failed && bytes < least)
            least = bytes;
    }
    return least == UINT64_MAX ? 0 : least;
}

void cast_show_progress(struct cast *c)
{
    struct cast_show *s = c->show;
    struct cast_sums sums;
    struct winsize size;
    int64_t now = base_now_ns();
    char bytes[32], total[32], rate[32], news[64], line[256];
    if (!s->progress || now - s->shown < EVERY_NS || in_background())
        return;
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
    double seconds = (double)(now - s->began) / 1e9;
    uint64_t least = take_states(c, &sums);
    cast_show_erase(s);
    s->shown = now;
    snprintf(line, sizeof line, "%3d%%  %s of %s, %" PRIu64 " file%s, %.0f s",
             sums.bytes ? (int)(100 * ((long double)least / (long double)sums.bytes)) : 0, base_format_bytes(least, bytes, sizeof bytes),
             base_format_bytes(sums.bytes, total, sizeof total), sums.files, sums.files == 1 ? "" : "s", seconds);
    print_line(s, columns, line);
    for (uint32_t i = 0; i < c->config.head.size && s->lines < LINES; i++) {
        const struct cast_state *t = &s->printed[i];
        if (!cast_is_target(c, i))
            continue;
        snprintf(line, sizeof line, "  %-20s %10s  %10s/s  %s", c->config.hosts[i],
                 base_format_bytes(bytes_of(t, sums.bytes), bytes, sizeof bytes),
                 base_format_bytes((uint64_t)((double)t->sent / (seconds > 0 ? seconds : 1)), rate, sizeof rate),
                 news_of(c, i, t->doing, now, news, sizeof news));
        print_line(s, columns, line);
    }
    const uint32_t source = c->config.head.source;
    const int64_t silent = now - heard_from(s, source).any;
    if (source && weft_alive(c->w, source) && silent >= SILENT_NS) { /* print a line for the source only if it does not answer */
        snprintf(line, sizeof line, "  %-20s no answer for %d s (the source)", c->config.hosts[source], (int)(silent / WEFT_SECOND));
        print_line(s, columns, line);
    }
    fflush(stderr);
}

/* --- nodes that do not answer --- */

/* What the user must be told about a node now: nothing (ANSWERS), that it has stopped answering (SILENT), or that it answers again
 * (AGAIN). */
enum answer { ANSWERS, SILENT, AGAIN };
static enum answer answer_of(struct cast *c, uint32_t node, int64_t now, int64_t *seconds)
{
    struct cast_show *s = c->show;
    struct cast_heard *h = &s->heard[node];
    enum answer answer = ANSWERS;
    pthread_mutex_lock(&s->lock);
    if (!weft_alive(c->w, node) || s->state[node].doing == CAST_ENDED) {
        h->since = 0;
    } else if (!h->since && now - h->any >= TELL_NS) {
        h->since = h->any;
        answer = SILENT;
    } else if (h->since && now - h->any < SILENT_NS) {
        *seconds = (h->any - h->since) / WEFT_SECOND;
        h->since = 0;
        answer = AGAIN;
    }
    if (answer == SILENT)
        *seconds = (now - h->any) / WEFT_SECOND;
    pthread_mutex_unlock(&s->lock);
    return answer;
}

void cast_show_silent(struct cast *c)
{
    struct cast_show *s = c->show;
    const int64_t now = base_now_ns(), paused = now - s->looked;
    int64_t seconds = 0;
    if (paused < EVERY_NS)
        return;
    s->looked = now;
    /* this node did not run, and messages may be waiting, so this time does not count. (The condition is also true at the first call) */
    if (paused > ASLEEP_NS) {
        pthread_mutex_lock(&s->lock);
        for (uint32_t i = 0; i < c->config.head.size; i++) {
            struct cast_heard *h = &s->heard[i];
            h->any = h->any + paused < now ? h->any + paused : now;
            h->state = h->state + paused < now ? h->state + paused : now;
            h->since = h->since ? h->since + paused : 0;
        }
        pthread_mutex_unlock(&s->lock);
        return;
    }
    for (uint32_t i = 1; i < c->config.head.size; i++) {
        const char *host = c->config.hosts[i];
        switch (answer_of(c, i, now, &seconds)) {
        case ANSWERS: break;
        case AGAIN:
            cast_show_erase(s);
            fprintf(stderr, "weft %s: %s: answers again, after %" PRId64 " s\n", c->sub, host, seconds);
            break;
        case SILENT:
            cast_show_erase(s);
            fprintf(stderr,
                    "weft %s: %s: no answer for %" PRId64 " s, and the copy waits for it; if its process `weft %s --as-node` is stopped "
                    "there, continue it (kill -CONT), or end it (kill -KILL)%s; Ctrl-C ends the copy, and the same command later sends "
                    "what is missing\n",
                    c->sub, host, seconds, c->sub, i == c->config.head.source ? "" : ", and the others go on without it");
        }
    }
}
