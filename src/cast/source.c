/* SPDX-License-Identifier: MIT
 *
 * The source: leads the rounds. One thread fills blocks (send.c), and another thread sends them to the first target (chain.c). Message
 * handlers update what the source knows about the targets.
 */
#include <stdlib.h>
#include <string.h>

#include "cast/cast.h"
#include "cast/source.h"

#define LOOK_NS    (20 * WEFT_MS)  /* how often to check whether a target has died */
#define AGAIN_NS   (100 * WEFT_MS) /* pause before a failed round is repeated: a link may be down only for a moment */
#define STALLS_MAX 3u /* the source gives up after this many complete rounds in which the number of needed files did not decrease */

int cast_source_open(struct cast *c)
{
    uint32_t size = c->config.head.size;
    struct cast_source *s = calloc(1, sizeof *s);
    if (s)
        s->receiver = calloc(size, sizeof *s->receiver);
    if (!s || !s->receiver) {
        free(s);
        return base_fail(-ENOMEM, "no memory for the states of %u nodes" BASE_MEMORY_HINT, size);
    }
    s->c = c;
    s->follow.fd = -1;
    for (uint32_t i = 0; i < size; i++)
        s->receiver[i].chosen = cast_is_target(c, i);
    c->source = s;
    return 0;
}

void cast_source_close(struct cast *c)
{
    struct cast_source *s = c->source;
    if (!s)
        return;
    cast_follow_close(s);
    for (uint32_t i = 0; i < c->config.head.size; i++) {
        free(s->receiver[i].need);
        free(s->receiver[i].cost);
    }
    free(s->receiver);
    free(s->least);
    free(s);
    c->source = NULL;
}

/* --- messages --- */

static void take_needs(struct cast_source *s, struct receiver *t, const void *payload, size_t bytes)
{
    const struct cast_list *l = &s->c->list;
    for (size_t at = 0; at < bytes && t->need; at += sizeof(struct cast_need)) {
        struct cast_need n;
        memcpy(&n, (const uint8_t *)payload + at, sizeof n);
        if (n.file < l->count && l->entry[n.file].type == CAST_FILE && n.have <= cast_size_most(s->c, n.file) && n.verified <= n.have) {
            t->need[n.file / 8] |= (uint8_t)(1u << n.file % 8);
            s->least[n.file].have = n.have < s->least[n.file].have ? n.have : s->least[n.file].have;
            s->least[n.file].verified = n.verified < s->least[n.file].verified ? n.verified : s->least[n.file].verified;
        }
    }
}

void cast_source_word(struct cast *c, uint32_t from, const struct cast_word *w, const void *payload, size_t bytes)
{
    struct cast_source *s = c->source;
    struct receiver *t = &s->receiver[from];
    pthread_mutex_lock(&c->lock);
    if (w->kind == CAST_LINKS) {
        cast_order_take(s, from, payload, bytes);
    } else if (!t->chosen || (w->round != s->round && w->kind != CAST_FAILED)) {
        /* ignored: a message of an earlier round */
    } else if (w->kind == CAST_NEED) {
        take_needs(s, t, payload, bytes);
    } else if (w->kind == CAST_READY) {
        t->stage = (uint32_t)w->a + 1;
        t->needed = w->b;
    } else if (w->kind == CAST_BROKEN) {
        s->broken = true;
    } else {
        t->failed = true;
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void send_file(struct cast_source *s, uint32_t file)
{
    if (s->follow.fd >= 0 && !s->follow.complete)
        cast_follow_file(s, file);
    else
        cast_send_file(s, file);
}

/* Wait until all living targets have reached a stage of this round. `chain`: wait only for targets in the chain. */
static bool wait_stage(struct cast_source *s, uint32_t stage, bool chain)
{
    struct cast *c = s->c;
    for (;;) {
        uint32_t missing = 0;
        pthread_mutex_lock(&c->lock);
        for (uint32_t i = 0; i < c->config.head.size; i++) {
            const struct receiver *t = &s->receiver[i];
            bool asked = t->chosen && weft_alive(c->w, i) && !(chain && t->failed);
            missing += asked && t->stage < stage;
        }
        if (missing) {
            base_cond_wait(&c->changed, &c->lock, base_deadline(LOOK_NS));
        }
        pthread_mutex_unlock(&c->lock);
        cast_relay_test(&s->relay);
        if (cast_send_aborted(s))
            return false;
        if (!missing)
            return true;
    }
}

/* --- rounds --- */

static int choose_chain(struct cast_source *s, bool *list)
{
    struct cast *c = s->c;
    const size_t count = (size_t)c->list.count + 1;
    pthread_mutex_lock(&c->lock);
    int rc = s->least || (s->least = malloc(count * sizeof *s->least))
                 ? 0
                 : base_fail(-ENOMEM, "no memory for the state of %u files: use several commands", c->list.count);
    if (!rc)
        memset(s->least, 0xff, count * sizeof *s->least);
    s->count = 0;
    s->broken = s->aborted = false;
    s->number = s->used = 0;
    *list = false;
    s->round++;
    for (uint32_t i = 0; i < c->config.head.size; i++) {
        struct receiver *t = &s->receiver[i];
        t->stage = 0;
        if (!t->chosen || t->failed || !weft_alive(c->w, i))
            continue;
        s->chain[s->count++] = i;
        *list = *list || !t->listed;
        if (!t->need && !(t->need = malloc(count / 8 + 1)))
            rc = base_fail(-ENOMEM, "no memory for the state of %u files: use several commands", c->list.count);
        else
            memset(t->need, 0, count / 8 + 1);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Returns true if the round was completed. */
static bool run_round(struct cast_source *s, bool list, bool verify)
{
    struct cast *c = s->c;
    for (uint32_t i = 0; i < c->config.head.size; i++)
        if (s->receiver[i].chosen && weft_alive(c->w, i))
            cast_send(c, i, CAST_BEGIN, s->round, list, verify, s->chain, s->count * sizeof *s->chain);
    bool going = wait_stage(s, 1, false);
    if (going && list)
        cast_send_list(s);
    going = going && wait_stage(s, 2, true);
    for (uint32_t i = 0; i < s->count; i++)
        s->receiver[s->chain[i]].listed = s->receiver[s->chain[i]].listed || s->receiver[s->chain[i]].stage >= 2;
    if (going && !(c->config.head.flags & CAST_DRY_RUN))
        for (uint32_t i = 0; i < c->list.count && !cast_send_aborted(s); i++)
            if (c->list.entry[i].type == CAST_FILE)
                send_file(s, i);
    if (going) {
        cast_send_record(s, CAST_ROUND_END, s->failed != 0, 0, 0);
        cast_send_flush(s);
        going = wait_stage(s, 3, true);
    }
    return going;
}

/* Returns the number of files that targets of the chain still need. Counts each target that is gone as failed, once. */
static uint64_t look_at_targets(struct cast_source *s, uint32_t *left)
{
    uint64_t sum = 0;
    *left = 0;
    for (uint32_t i = 0; i < s->c->config.head.size; i++) {
        struct receiver *t = &s->receiver[i];
        if (!t->chosen)
            continue;
        if (!weft_alive(s->c->w, i)) {
            cast_say(s->c, true, "%s is gone; the other hosts still get the files", s->c->config.hosts[i]);
            t->chosen = false;
            s->targets_failed++;
        } else if (!t->failed) {
            ++*left;
            sum += t->needed;
        }
    }
    return sum;
}

/* Run rounds until all targets have all files. Returns 0, or a negative errno with base_error(). */
static int run_rounds(struct cast_source *s)
{
    struct cast *c = s->c;
    uint64_t before = UINT64_MAX;
    uint32_t left, stalls = 0;
    bool list, verified = !(c->config.head.flags & CAST_VERIFY), dry = c->config.head.flags & CAST_DRY_RUN;
    bool verify = false;
    for (;;) {
        int rc = choose_chain(s, &list);
        if (rc || !s->count || c->quit || c->stopped())
            return rc;
        cast_order_chain(s);
        if (s->round == CAST_ROUNDS - 1)
            return base_fail(-EIO, "after %u attempts some files are still missing: give the same command again to send the missing files",
                             s->round);
        if ((rc = cast_relay_start(&s->relay, c, s->chain[0], s->round)))
            return rc;
        bool complete = run_round(s, list, verify);
        cast_relay_stop(&s->relay);
        uint64_t need = look_at_targets(s, &left);
        if (!complete && !c->stopped() && !c->quit)
            base_sleep_ns(AGAIN_NS);
        if (complete && need == 0) {
            verified = verified || verify;
            if (verified || dry)
                return 0;
            verify = true;
            continue;
        }
        verified = verified || (complete && verify);
        verify = verify && !complete;
        stalls = complete && need >= before ? stalls + 1 : 0;
        before = complete ? need : before;
        if (stalls == STALLS_MAX)
            return base_fail(-EIO, "the data arrived damaged several times: check the links with `weft status`");
    }
}

void cast_source_run(struct cast *c)
{
    struct cast_source *s = c->source;
    uint32_t left = 0;
    int rc = c->config.head.follow ? cast_follow_open(s) : cast_walk(c, &s->failed);
    cast_tell_sums(c);
    if (!rc && !c->list.count && s->failed) /* no source could be read */
        rc = base_fail(-ENOENT, "there is nothing to send, because no source could be read: see the messages above");
    if (!rc)
        cast_order_wait(s);
    if (!rc)
        rc = run_rounds(s);
    if (c->stopped())
        rc = base_fail(-EINTR, "the source was stopped by a signal: give the same command again to send the missing files");
    if (rc && (c->rank || !c->stopped())) /* no message if the user has stopped the cast on node 0 */
        cast_say(c, true, "%s", base_error());
    look_at_targets(s, &left);
    for (uint32_t i = 0; i < c->config.head.size; i++)
        if (cast_is_target(c, i) && weft_alive(c->w, i))
            cast_send(c, i, CAST_QUIT, 0, 0, 0, NULL, 0);
    cast_tell_state(c, CAST_ENDED, true);
    cast_send(c, 0, CAST_OVER, 0, rc ? 2 : s->failed || s->targets_failed || !left, s->failed, NULL, 0);
}
