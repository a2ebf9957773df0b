/* SPDX-License-Identifier: MIT
 *
 * The timers of completion channels. A timer wakes a process that sleeps on a channel when one of its queue pairs must be checked.
 */
#include "lib.h"

#include <sys/timerfd.h>
#include <unistd.h>

static const uint64_t forever = ~UINT64_C(0);

void sv_alarm_set(struct sv_channel *ch, uint64_t at)
{
    if (at == 0 || at == forever)
        return;
    pthread_mutex_lock(&ch->mutex);
    if (ch->timer_at == 0 || at < ch->timer_at) {
        struct itimerspec when = {.it_value = {(time_t)(at / 1000000000), (long)(at % 1000000000)}};
        timerfd_settime(ch->timer, TFD_TIMER_ABSTIME, &when, NULL);
        ch->timer_at = at;
    }
    pthread_mutex_unlock(&ch->mutex);
}

void sv_wake_at(uint32_t entry, uint64_t until)
{
    struct sf_cq *shared;
    uint32_t owner;

    if (!sv_lib.joined || entry >= SF_CQS || until == 0 || until == forever)
        return;
    shared = &sv_lib.fabric->cqs[entry];
    owner = atomic_load_explicit(&shared->owner, memory_order_relaxed);
    if (shared->channel_fd < 0)
        return;
    if (owner == sv_lib.view.process) {
        /* While this mutex is held, the channel exists: before a channel is freed, its queue is removed from the table, which needs the
         * same mutex. Lock order: a queue's lock, then this mutex. */
        pthread_mutex_lock(&sv_lib.mutex);
        if (sv_lib.cqs[entry] && sv_lib.cqs[entry]->channel)
            sv_alarm_set(sv_lib.cqs[entry]->channel, until);
        pthread_mutex_unlock(&sv_lib.mutex);
    } else if (owner) {
        sv_signal(owner, shared->channel_fd, &(struct sv_event){.kind = 2, .entry = entry});
    }
}

bool sv_alarm_rang(struct sv_channel *ch)
{
    uint64_t times;
    bool yes;

    pthread_mutex_lock(&ch->mutex);
    yes = read(ch->timer, &times, sizeof times) == (ssize_t)sizeof times;
    if (yes)
        ch->timer_at = 0;
    pthread_mutex_unlock(&ch->mutex);
    return yes;
}
