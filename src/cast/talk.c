/* SPDX-License-Identifier: MIT
 *
 * Sends messages, sentences for the user, and the node's state to other nodes.
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "cast/cast.h"

#define TELL_NS (100 * WEFT_MS)
#define LOOK_NS (20 * WEFT_MS) /* how often to check whether a node has died */
#define BEAT_NS (999 * WEFT_MS)

bool cast_is_target(const struct cast *c, uint32_t rank)
{
    return rank != 0 && rank != c->config.head.source;
}

uint32_t cast_handler_of(enum cast_kind kind)
{
    return kind <= CAST_QUIT ? CAST_TARGET_HANDLER : kind <= CAST_FAILED ? CAST_SOURCE_HANDLER : CAST_SHOW_HANDLER;
}

/* Whether to go on sending to this node: it is alive, and the cast has not ended. */
static bool goes_on(struct cast *c, uint32_t to)
{
    return weft_alive(c->w, to) && !c->quit && !c->stopped();
}

static int send_once(struct cast *c, uint32_t to, const struct cast_word *word, bool sure, const void *payload, size_t bytes)
{
    int rc = weft_send(c->w, to, cast_handler_of((enum cast_kind)word->kind), word, sizeof *word, payload, bytes, NULL);
    if (rc || !sure)
        return rc;
    do
        rc = weft_flush(c->w, to, LOOK_NS);
    while (rc == -ETIMEDOUT && goes_on(c, to));
    c->lost = c->lost || rc == -ECONNABORTED;
    return rc;
}

void cast_send(struct cast *c, uint32_t to, enum cast_kind kind, uint32_t round, uint64_t a, uint64_t b, const void *payload, size_t bytes)
{
    const struct cast_word word = {(uint32_t)kind, round, a, b};
    /* the receiver waits for a message of these kinds. So if the route was interrupted, the message is sent again; it may arrive twice */
    const bool sure = (kind <= CAST_FAILED && kind != CAST_QUIT) || kind == CAST_OVER;
    int rc;
    while ((rc = send_once(c, to, &word, sure && to != c->rank, payload, bytes)) == -ETIMEDOUT || rc == -ENOMEM ||
           (sure && (rc == -ENETDOWN || rc == -ECONNABORTED))) {
        if (!goes_on(c, to))
            return;
        base_sleep_ns(WEFT_MS);
    }
}

void cast_look_lost(struct cast *c, uint32_t to)
{
    c->lost = c->lost || weft_flush(c->w, to, 0) == -ECONNABORTED;
}

void cast_say(struct cast *c, bool failure, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cast_send(c, 0, CAST_SAY, 0, failure, 0, text, strlen(text));
}

void cast_say_unsent(struct cast *c, const char *path, const char *why)
{
    char text[WEFT_PAYLOAD_MAX];
    size_t n = strlen(path);
    if (n > CAST_UNSENT_MAX)
        n = CAST_UNSENT_MAX;
    snprintf(text, sizeof text, "%.*s: %s", (int)n, path, why);
    cast_send(c, 0, CAST_SAY, 0, true, n, text, strlen(text));
}

void cast_tell_sums(struct cast *c)
{
    const struct cast_sums sums = {c->list.files, c->list.bytes, c->list.special};
    cast_send(c, 0, CAST_TOTAL, 0, 0, 0, &sums, sizeof sums);
}

void cast_tell_state(struct cast *c, enum cast_doing doing, bool now)
{
    int64_t time = base_recent_ns();
    c->state.doing = (uint32_t)doing;
    if (!now && time - c->told_ns < TELL_NS)
        return;
    c->told_ns = time;
    cast_send(c, 0, CAST_STATE, 0, 0, 0, &c->state, sizeof c->state);
}

/* --- the sign of life --- */

static void *beat_thread(void *arg)
{
    struct cast_beat *b = arg;
    const struct cast_word word = {.kind = CAST_HERE};
    pthread_mutex_lock(&b->lock);
    while (!b->stop) {
        (void)send_once(b->c, 0, &word, false, NULL, 0); /* an error is ignored: the next heartbeat may arrive */
        base_cond_wait(&b->ended, &b->lock, base_deadline(BEAT_NS));
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

int cast_beat_start(struct cast_beat *b, struct cast *c)
{
    *b = (struct cast_beat){.c = c};
    pthread_mutex_init(&b->lock, NULL);
    base_cond_init(&b->ended);
    int rc = base_thread(&b->thread, beat_thread, b);
    b->running = rc == 0;
    return rc ? base_fail(rc, "cannot start the thread that tells the command that this host answers: %s" BASE_THREAD_HINT,
                          base_strerror(rc))
              : 0;
}

void cast_beat_stop(struct cast_beat *b)
{
    if (!b->running)
        return;
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_signal(&b->ended);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    pthread_cond_destroy(&b->ended);
    pthread_mutex_destroy(&b->lock);
    b->running = false;
}
