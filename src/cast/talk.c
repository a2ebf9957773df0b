/* SPDX-License-Identifier: MIT
 *
 * What a node of a cast sends to others: words, sentences for the user, and what it is doing; and how its threads wait for one another.
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "cast/cast.h"

#define TELL_NS (100 * WEFT_MS)

bool cast_is_target(const struct cast *c, uint32_t rank)
{
    return rank != 0 && rank != c->config.head.source;
}

uint32_t cast_handler_of(enum cast_kind kind)
{
    return kind <= CAST_QUIT ? CAST_TARGET_HANDLER : kind <= CAST_FAILED ? CAST_SOURCE_HANDLER : CAST_SHOW_HANDLER;
}

void cast_send(struct cast *c, uint32_t to, enum cast_kind kind, uint32_t round, uint64_t a, uint64_t b, const void *payload, size_t bytes)
{
    const struct cast_word word = {(uint32_t)kind, round, a, b};
    int rc;
    while ((rc = weft_send(c->w, to, cast_handler_of(kind), &word, sizeof word, payload, bytes, NULL)) == -ETIMEDOUT || rc == -ENOMEM) {
        if (!weft_alive(c->w, to) || c->quit || c->stopped()) /* else others would wait for this word for ever */
            return;
        base_sleep_ns(WEFT_MS);
    }
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

void cast_tell_state(struct cast *c, enum cast_doing doing, bool now)
{
    int64_t time = base_recent_ns();
    c->state.doing = (uint32_t)doing;
    if (!now && time - c->told_ns < TELL_NS)
        return;
    c->told_ns = time;
    cast_send(c, 0, CAST_STATE, 0, 0, 0, &c->state, sizeof c->state);
}

void cast_wait(pthread_cond_t *changed, pthread_mutex_t *lock, int64_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ns;
    until.tv_sec += until.tv_nsec / WEFT_SECOND;
    until.tv_nsec %= WEFT_SECOND;
    pthread_cond_timedwait(changed, lock, &until);
}
