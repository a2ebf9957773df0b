/* SPDX-License-Identifier: MIT
 *
 * Node 0: progress, messages and the summary. On a terminal, progress is one line for the whole cast and one line for each host; these
 * lines are erased before anything else is printed. A message handler only queues a message, and the main thread prints it.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cast/cast.h"

#define EVERY_NS (200 * WEFT_MS)
#define FINAL_NS (5 * WEFT_SECOND) /* how long to wait for the targets' last states */
#define LINES    24u               /* at most this many hosts have a line of their own */

struct sentence {
    struct sentence *next;
    uint32_t from;
    bool failure;
    char text[];
};
struct cast_show {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sentence *first, **last;
    struct cast_state *state, *printed; /* [size]; printed: a copy, for the main thread */
    uint64_t files, bytes;              /* the sums of the list */
    bool listed;                        /* the source has reported these sums */
    uint64_t result, unsent;            /* reported by the source: 0 if there was no error; how many sources and files it could not send */
    uint32_t chain[WEFT_MAX_NODES], chain_count; /* the chain, in the format of CAST_CHAIN */
    bool chain_new;                              /* the chain was not printed yet */
    _Atomic bool over;
    bool progress;
    int64_t began, shown;
    unsigned lines; /* number of lines that are on the terminal now */
    uint64_t failures;
    json_t *messages;
};

int cast_show_open(struct cast *c, bool progress)
{
    struct cast_show *s = calloc(1, sizeof *s);
    if (s) {
        s->state = calloc(weft_size(c->w), sizeof *s->state);
        s->printed = calloc(weft_size(c->w), sizeof *s->printed);
    }
    if (!s || !s->state || !s->printed) {
        if (s) {
            free(s->state);
            free(s->printed);
        }
        free(s);
        return base_fail(-ENOMEM, "no memory for the states of %u nodes" BASE_MEMORY_HINT, weft_size(c->w));
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->last = &s->first;
    s->progress = progress;
    s->began = base_now_ns();
    s->messages = json_array();
    c->show = s;
    return 0;
}

void cast_show_close(struct cast *c)
{
    struct cast_show *s = c->show;
    if (!s)
        return;
    while (s->first) {
        struct sentence *next = s->first->next;
        free(s->first);
        s->first = next;
    }
    json_decref(s->messages);
    free(s->state);
    free(s->printed);
    free(s);
    c->show = NULL;
}

void cast_show_word(struct cast *c, uint32_t from, const struct cast_word *w, const void *payload, size_t bytes)
{
    struct cast_show *s = c->show;
    struct sentence *new = NULL;
    if (w->kind == CAST_SAY && (new = malloc(sizeof *new + bytes + 1))) {
        *new = (struct sentence){NULL, from, w->a != 0};
        memcpy(new->text, payload, bytes);
        new->text[bytes] = '\0';
    }
    pthread_mutex_lock(&s->lock);
    if (new) {
        *s->last = new;
        s->last = &new->next;
    } else if (w->kind == CAST_STATE) {
        memcpy(&s->state[from], payload, sizeof s->state[from]);
    } else if (from != c->config.head.source) {
        /* ignored: only the source may send this */
    } else if (w->kind == CAST_TOTAL) {
        s->files = w->a;
        s->bytes = w->b;
        s->listed = true;
    } else if (w->kind == CAST_CHAIN) {
        memcpy(s->chain, payload, bytes);
        s->chain_count = (uint32_t)(bytes / sizeof *s->chain);
        s->chain_new = true;
    } else if (w->kind == CAST_OVER) {
        s->over = true;
        s->result = w->a;
        s->unsent = w->b;
    }
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* --- printing --- */

static void erase(struct cast_show *s)
{
    for (; s->lines; s->lines--)
        fputs(s->lines > 1 ? "\r\033[K\033[A" : "\r\033[K", stderr);
}

/* Replace control characters: names of files may contain some, and they must not reach the terminal. */
static void make_printable(char *text)
{
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
}

/* The chain as JSON: an object for each target, in order. */
static json_t *chain_of(struct cast *c)
{
    struct cast_show *s = c->show;
    json_t *list = json_array();
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->chain_count; i++) {
        const uint32_t node = s->chain[i] & 0xffffff;
        if (node < c->config.head.size)
            json_array_append_new(list, json_pack("{ss* ss ss}", "host", c->config.hosts[node], "node", c->config.numbers[node], "link",
                                                  cast_order_link(s->chain[i] >> 24)));
    }
    pthread_mutex_unlock(&s->lock);
    return list;
}

/* Printing may take long, if the terminal is stopped: so it is done without the lock, for which message handlers would wait. */
static void print_chain(struct cast *c)
{
    struct cast_show *s = c->show;
    uint32_t chain[WEFT_MAX_NODES], count;
    pthread_mutex_lock(&s->lock);
    count = s->chain_count;
    memcpy(chain, s->chain, count * sizeof *chain);
    s->chain_new = false;
    pthread_mutex_unlock(&s->lock);
    erase(s);
    fprintf(stderr, "weft %s: chain: %s", c->sub, c->config.hosts[c->config.head.source]);
    for (uint32_t i = 0; i < count; i++)
        if ((chain[i] & 0xffffff) < c->config.head.size)
            fprintf(stderr, ", %s (%s)", c->config.hosts[chain[i] & 0xffffff], cast_order_link(chain[i] >> 24));
    fputc('\n', stderr);
}

static void print_sentences(struct cast *c)
{
    struct cast_show *s = c->show;
    pthread_mutex_lock(&s->lock);
    bool chain = s->chain_new && c->config.head.flags & CAST_VERBOSE;
    pthread_mutex_unlock(&s->lock);
    if (chain)
        print_chain(c);
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct sentence *one = s->first;
        if (one && !(s->first = one->next))
            s->last = &s->first;
        pthread_mutex_unlock(&s->lock);
        if (!one)
            return;
        erase(s);
        make_printable(one->text);
        s->failures += one->failure;
        if (c->config.head.flags & CAST_JSON)
            json_array_append_new(
                s->messages, json_pack("{ss* sb ss*}", "host", c->config.hosts[one->from], "failure", one->failure, "text", one->text));
        if (one->failure)
            fprintf(stderr, "weft %s: %s%s%s\n", c->sub, one->from ? c->config.hosts[one->from] : "", one->from ? ": " : "", one->text);
        else if (!(c->config.head.flags & CAST_JSON))
            printf("%s: %s\n", c->config.hosts[one->from], one->text);
        free(one);
    }
}

static const char *doing_of(const struct cast *c, uint32_t node, uint32_t doing)
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

static void show_progress(struct cast *c)
{
    struct cast_show *s = c->show;
    struct winsize size;
    int64_t now = base_now_ns();
    uint64_t least = UINT64_MAX, whole, files;
    char bytes[32], total[32], rate[32], line[256];
    if (!s->progress || now - s->shown < EVERY_NS || in_background())
        return;
    s->shown = now;
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
    double seconds = (double)(now - s->began) / 1e9;
    pthread_mutex_lock(&s->lock);
    memcpy(s->printed, s->state, c->config.head.size * sizeof *s->state);
    whole = s->bytes;
    files = s->files;
    pthread_mutex_unlock(&s->lock);
    erase(s);
    for (uint32_t i = 0; i < c->config.head.size; i++)
        if (cast_is_target(c, i) && weft_alive(c->w, i) && s->printed[i].bytes < least)
            least = s->printed[i].bytes;
    least = least == UINT64_MAX ? 0 : least;
    snprintf(line, sizeof line, "%3.0f%%  %s of %s, %" PRIu64 " files, %.0f s", whole ? 100.0 * (double)least / (double)whole : 0.0,
             base_format_bytes(least, bytes, sizeof bytes), base_format_bytes(whole, total, sizeof total), files, seconds);
    fprintf(stderr, "%.*s", columns - 1, line);
    s->lines = 1;
    for (uint32_t i = 0; i < c->config.head.size && s->lines < LINES; i++) {
        if (!cast_is_target(c, i))
            continue;
        const struct cast_state *t = &s->printed[i];
        snprintf(line, sizeof line, "  %-20s %10s  %10s/s  %s", c->config.hosts[i], base_format_bytes(t->bytes, bytes, sizeof bytes),
                 base_format_bytes((uint64_t)((double)t->sent / (seconds > 0 ? seconds : 1)), rate, sizeof rate), doing_of(c, i, t->doing));
        fprintf(stderr, "\n%.*s", columns - 1, line);
        s->lines++;
    }
    fflush(stderr);
}

/* Whether all targets have sent their last state. If the source reports success, targets that have ended since then have sent it, too. */
static bool all_told(struct cast *c)
{
    bool told = true;
    pthread_mutex_lock(&c->show->lock);
    for (uint32_t i = 0; i < c->config.head.size && told; i++)
        told = !cast_is_target(c, i) || (c->show->result && !weft_alive(c->w, i)) || c->show->state[i].doing >= CAST_ENDED;
    pthread_mutex_unlock(&c->show->lock);
    return told;
}

static void wait_a_little(struct cast_show *s)
{
    pthread_mutex_lock(&s->lock);
    if (!s->first && !s->over)
        cast_wait(&s->changed, &s->lock, 20 * WEFT_MS);
    pthread_mutex_unlock(&s->lock);
}

/* --- the summary --- */

/* Whether the target has all files. No target has what the source could not send. */
static bool is_complete(const struct cast_show *s, uint32_t node)
{
    return s->listed && !s->unsent && s->state[node].doing == CAST_ENDED && s->state[node].files == s->files && s->state[node].failed == 0;
}

/* Whether each target itself has reported that it has all files. The report of the source alone is not enough. */
static bool all_complete(struct cast *c)
{
    struct cast_show *s = c->show;
    bool complete = true;
    for (uint32_t i = 0; i < c->config.head.size && !(c->config.head.flags & CAST_DRY_RUN); i++) {
        if (!cast_is_target(c, i) || is_complete(s, i))
            continue;
        complete = false;
        if (s->result == 0 && s->failures == 0)
            fprintf(stderr,
                    "weft %s: %s: did not confirm that it has all files: give the same command again, which sends what is missing\n",
                    c->sub, c->config.hosts[i]);
    }
    return complete;
}

static void sum_up(struct cast *c, bool right)
{
    struct cast_show *s = c->show;
    double seconds = (double)(base_now_ns() - s->began) / 1e9;
    uint64_t discarded = 0, sent = s->state[c->config.head.source].sent;
    uint32_t hosts = 0, complete = 0;
    char bytes[32], net[32], twice[32];
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->config.head.size; i++) {
        const struct cast_state *t = &s->state[i];
        if (!cast_is_target(c, i))
            continue;
        bool all = is_complete(s, i);
        hosts++;
        complete += all;
        discarded += t->discarded;
        json_array_append_new(list, json_pack("{ss* ss sb ss sI sI sI sI sI sI}", "host", c->config.hosts[i], "node", c->config.numbers[i],
                                              "complete", all, "state", doing_of(c, i, t->doing), "files", (json_int_t)t->files, "bytes",
                                              (json_int_t)t->bytes, "files_right_before", (json_int_t)t->skipped, "files_failed",
                                              (json_int_t)t->failed, "received_bytes", (json_int_t)t->sent, "discarded_bytes",
                                              (json_int_t)t->discarded));
    }
    if (c->config.head.flags & CAST_JSON) {
        json_t *o = json_pack("{sb sI sI sI sI sf so so sO}", "ok", right, "files", (json_int_t)s->files, "bytes", (json_int_t)s->bytes,
                              "sent_bytes", (json_int_t)sent, "discarded_bytes", (json_int_t)discarded, "seconds", seconds, "chain",
                              chain_of(c), "hosts", list, "messages", s->messages);
        json_dumpf(o, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(o);
        return;
    }
    json_decref(list);
    if (!(c->config.head.flags & CAST_DRY_RUN))
        fprintf(stderr,
                "weft %s: %" PRIu64 " files, %s; %s sent, %s of that a second time; %u of %u hosts have all; "
                "%.1f s\n",
                c->sub, s->files, base_format_bytes(s->bytes, bytes, sizeof bytes), base_format_bytes(sent, net, sizeof net),
                base_format_bytes(discarded, twice, sizeof twice), complete, hosts, seconds);
}

int cast_show_run(struct cast *c)
{
    struct cast_show *s = c->show;
    bool gone = false;
    while (!s->over && !c->stopped() && !gone) {
        gone = !weft_alive(c->w, c->config.head.source);
        wait_a_little(s);
        print_sentences(c);
        show_progress(c);
    }
    for (int64_t deadline = base_deadline(FINAL_NS); s->over && !all_told(c) && base_now_ns() < deadline && !c->stopped();)
        base_sleep_ns(WEFT_MS);
    print_sentences(c);
    erase(s);
    if (c->stopped())
        return 1;
    if (!s->over)
        fprintf(stderr, "weft %s: %s: the source is gone; give the same command again, which sends what is missing\n", c->sub,
                c->config.hosts[c->config.head.source]);
    bool right = s->over && all_complete(c) && s->result == 0 && s->failures == 0;
    sum_up(c, right);
    return fflush(stdout) == 0 && right ? 0 : 1;
}
