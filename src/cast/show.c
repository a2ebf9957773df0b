/* SPDX-License-Identifier: MIT
 *
 * Node 0: messages and the summary. A message handler only queues a message, and the main thread prints it.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cast/cast.h"
#include "cast/show.h"

#define FINAL_NS (5 * WEFT_SECOND) /* how long to wait for the last states of the targets */

int cast_show_open(struct cast *c, bool progress, bool (*printed)(void))
{
    struct cast_show *s = calloc(1, sizeof *s);
    if (s) {
        s->state = calloc(weft_size(c->w), sizeof *s->state);
        s->printed = calloc(weft_size(c->w), sizeof *s->printed);
        s->heard = calloc(weft_size(c->w), sizeof *s->heard);
    }
    if (!s || !s->state || !s->printed || !s->heard) {
        if (s) {
            free(s->state);
            free(s->printed);
            free(s->heard);
        }
        free(s);
        return base_fail(-ENOMEM, "no memory for the states of %u nodes" BASE_MEMORY_HINT, weft_size(c->w));
    }
    pthread_mutex_init(&s->lock, NULL);
    base_cond_init(&s->changed);
    s->last = &s->first;
    s->progress = progress;
    s->others_printed = printed;
    s->began = base_now_ns();
    s->messages = json_array();
    s->not_sent = json_array();
    s->not_sent_encoded = json_array();
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
    json_decref(s->not_sent);
    json_decref(s->not_sent_encoded);
    for (uint32_t i = 0; i < CAST_NAMED; i++)
        free(s->name[i]);
    free(s->state);
    free(s->printed);
    free(s->heard);
    free(s);
    c->show = NULL;
}

void cast_show_word(struct cast *c, uint32_t from, const struct cast_word *w, const void *payload, size_t bytes)
{
    struct cast_show *s = c->show;
    struct sentence *new = NULL;
    if (w->kind == CAST_SAY && (new = malloc(sizeof *new + bytes + 1))) {
        *new = (struct sentence){NULL, from, w->a != 0, from == c->config.head.source ? (size_t)w->b : 0};
        memcpy(new->text, payload, bytes);
        new->text[bytes] = '\0';
    }
    pthread_mutex_lock(&s->lock);
    s->heard[from].any = base_now_ns();
    if (new) {
        *s->last = new;
        s->last = &new->next;
    } else if (w->kind == CAST_STATE) {
        memcpy(&s->state[from], payload, sizeof s->state[from]);
        s->heard[from].state = s->heard[from].any;
    } else if (from != c->config.head.source) {
        /* ignored: only the source may send messages of the following kinds */
    } else if (w->kind == CAST_TOTAL) {
        memcpy(&s->sums, payload, sizeof s->sums);
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

/* Replace control characters. Names of files may contain them, but they must not reach the terminal. */
static void make_printable(char *text)
{
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
}

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

/* Prints without the lock: printing blocks while the terminal is stopped, and message handlers need the lock. */
static void print_chain(struct cast *c)
{
    struct cast_show *s = c->show;
    uint32_t chain[WEFT_MAX_NODES], count;
    pthread_mutex_lock(&s->lock);
    count = s->chain_count;
    memcpy(chain, s->chain, count * sizeof *chain);
    s->chain_new = false;
    pthread_mutex_unlock(&s->lock);
    cast_show_erase(s);
    fprintf(stderr, "weft %s: chain: %s", c->sub, c->config.hosts[c->config.head.source]);
    for (uint32_t i = 0; i < count; i++)
        if ((chain[i] & 0xffffff) < c->config.head.size)
            fprintf(stderr, ", %s (%s)", c->config.hosts[chain[i] & 0xffffff], cast_order_link(chain[i] >> 24));
    fputc('\n', stderr);
}

/* Store the original path of a file that the source does not send, before make_printable() changes the text. */
static void note_unsent(struct cast *c, const struct sentence *one)
{
    struct cast_show *s = c->show;
    char *path = strndup(one->text, one->unsent);
    if (path && c->config.head.flags & CAST_JSON) {
        json_array_append_new(s->not_sent, cast_json_text(path));
        json_array_append_new(s->not_sent_encoded, cast_json_encoded(path));
    }
    if (path && s->names < CAST_NAMED) {
        make_printable(path);
        s->name[s->names] = path;
    } else {
        free(path);
    }
    s->names++;
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
        cast_show_erase(s);
        if (one->unsent)
            note_unsent(c, one);
        make_printable(one->text);
        s->failures += one->failure;
        if (c->config.head.flags & CAST_JSON)
            json_array_append_new(s->messages, json_pack("{so sb so}", "host", cast_json_text(c->config.hosts[one->from]), "failure",
                                                         one->failure, "text", cast_json_text(one->text)));
        if (one->failure)
            fprintf(stderr, "weft %s: %s%s%s\n", c->sub, one->from ? c->config.hosts[one->from] : "", one->from ? ": " : "", one->text);
        else if (!(c->config.head.flags & CAST_JSON))
            printf("%s: %s\n", c->config.hosts[one->from], one->text);
        free(one);
    }
}

/* Whether all targets have sent their last state. After a success, a target that is gone counts as one that has sent it: such a target ends
 * only after it has sent its last state. */
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
        base_cond_wait(&s->changed, &s->lock, base_deadline(20 * WEFT_MS));
    pthread_mutex_unlock(&s->lock);
}

/* --- the summary --- */

/* Whether the target has all files that the source could send. */
static bool has_all_sent(const struct cast_show *s, uint32_t node)
{
    const struct cast_state *t = &s->state[node];
    return s->listed && !(s->unsent && s->result == 2) && t->doing == CAST_ENDED && t->files + t->unsent == s->sums.files &&
           t->failed == t->unsent;
}

/* Whether the target has the whole copy. False for all targets if the source could not send everything. */
static bool is_complete(const struct cast_show *s, uint32_t node)
{
    return !s->unsent && has_all_sent(s, node) && s->state[node].unsent == 0;
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
            fprintf(stderr, "weft %s: %s: did not confirm that it has all files: give the same command again to send the missing files\n",
                    c->sub, c->config.hosts[i]);
    }
    return complete;
}

static const char *counted(uint64_t count, const char *what, char *out, size_t len)
{
    snprintf(out, len, "%" PRIu64 " %s%s", count, what, count == 1 ? "" : "s");
    return out;
}

/* Repeat the most important problems at the end, although messages about them were printed before. */
static void print_lacks(const struct cast *c)
{
    const struct cast_show *s = c->show;
    if (s->names) {
        fprintf(stderr, "weft %s: not sent:", c->sub);
        for (uint32_t i = 0; i < s->names && i < CAST_NAMED; i++)
            fprintf(stderr, "%s %s", i ? "," : "", s->name[i] ? s->name[i] : "?");
        if (s->names > CAST_NAMED)
            fprintf(stderr, " and %" PRIu64 " more", s->names - CAST_NAMED);
        fputs(": see the messages above\n", stderr);
    }
    if (s->sums.special == 1)
        fprintf(stderr, "weft %s: 1 file or directory has a set-user-ID or set-group-ID bit, which its copies do not have\n", c->sub);
    else if (s->sums.special)
        fprintf(stderr, "weft %s: %" PRIu64 " files or directories have set-user-ID or set-group-ID bits, which their copies do not have\n",
                c->sub, s->sums.special);
}

static void print_summary(const struct cast *c, uint64_t discarded, uint32_t complete, uint32_t hosts, double seconds)
{
    const struct cast_show *s = c->show;
    char files[32], bytes[32], net[32], twice[32];
    fprintf(stderr, "weft %s: %s, %s; %s sent, %s of that a second time; %u of %u host%s %s all%s; %.1f s\n", c->sub,
            counted(s->sums.files, "file", files, sizeof files), base_format_bytes(s->sums.bytes, bytes, sizeof bytes),
            base_format_bytes(s->state[c->config.head.source].sent, net, sizeof net), base_format_bytes(discarded, twice, sizeof twice),
            complete, hosts, hosts == 1 ? "" : "s", hosts == 1 ? "has" : "have", s->unsent ? " that could be sent" : "", seconds);
    print_lacks(c);
}

static json_t *host_of(const struct cast *c, uint32_t node)
{
    const struct cast_show *s = c->show;
    const struct cast_state *t = &s->state[node];
    return json_pack("{ss* ss sb sb ss sI sI sI sI sI sI sI}", "host", c->config.hosts[node], "node", c->config.numbers[node], "complete",
                     is_complete(s, node), "has_all_sent", has_all_sent(s, node), "state", cast_show_doing(c, node, t->doing), "files",
                     (json_int_t)t->files, "bytes", (json_int_t)t->bytes, "unfinished_bytes", (json_int_t)t->partial, "files_right_before",
                     (json_int_t)t->skipped, "files_failed", (json_int_t)t->failed, "received_bytes", (json_int_t)t->sent,
                     "discarded_bytes", (json_int_t)t->discarded);
}

static void sum_up(struct cast *c, bool right)
{
    struct cast_show *s = c->show;
    double seconds = (double)(base_now_ns() - s->began) / 1e9;
    uint64_t discarded = 0;
    uint32_t hosts = 0, complete = 0;
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->config.head.size; i++) {
        if (!cast_is_target(c, i))
            continue;
        hosts++;
        complete += has_all_sent(s, i);
        discarded += s->state[i].discarded;
        json_array_append_new(list, host_of(c, i));
    }
    if (c->config.head.flags & CAST_JSON) {
        json_t *o = json_pack("{sb sI sI sI sI sf so so sO sO sO sI}", "ok", right && !(c->config.head.flags & CAST_LEFT_OUT), "files",
                              (json_int_t)s->sums.files, "bytes", (json_int_t)s->sums.bytes, "sent_bytes",
                              (json_int_t)s->state[c->config.head.source].sent, "discarded_bytes", (json_int_t)discarded, "seconds",
                              seconds, "chain", chain_of(c), "hosts", list, "messages", s->messages, "not_sent", s->not_sent,
                              "not_sent_encoded", s->not_sent_encoded, "special_modes_not_copied", (json_int_t)s->sums.special);
        json_dumpf(o, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(o);
        return;
    }
    json_decref(list);
    if (!(c->config.head.flags & CAST_DRY_RUN))
        print_summary(c, discarded, complete, hosts, seconds);
}

int cast_show_run(struct cast *c)
{
    struct cast_show *s = c->show;
    bool gone = false;
    while (!s->over && !c->stopped() && !gone) {
        gone = !weft_alive(c->w, c->config.head.source);
        wait_a_little(s);
        print_sentences(c);
        cast_show_silent(c);
        cast_show_progress(c);
    }
    for (int64_t deadline = base_deadline(FINAL_NS); s->over && !all_told(c) && base_now_ns() < deadline && !c->stopped();)
        base_sleep_ns(WEFT_MS);
    print_sentences(c);
    cast_show_erase(s);
    if (c->stopped())
        return 1;
    if (!s->over)
        fprintf(stderr, "weft %s: %s: the source is gone; give the same command again to send the missing files\n", c->sub,
                c->config.hosts[c->config.head.source]);
    bool right = s->over && all_complete(c) && s->result == 0 && s->failures == 0;
    sum_up(c, right);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "weft %s: cannot write to standard output: %s\n", c->sub, base_strerror(errno));
        right = false;
    }
    return right ? 0 : 1;
}
