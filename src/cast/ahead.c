/* SPDX-License-Identifier: MIT
 *
 * A thread of a target verifies the checksums of the next block while the main thread writes the current one. The main thread is the
 * slowest part of the chain if all data is in memory. The main thread never waits for this thread: a block that is not verified yet is
 * verified by the main thread itself.
 */
#include "cast/cast.h"

/* Identifies a block of a round; never 0. */
static uint64_t tag_of(uint64_t round, uint64_t number)
{
    return round << 48 | (number + 1);
}

/* Whether the checksums of all pieces of files in the block are right. The writer may free the slot while this function runs. In that case
 * the writer has verified the block itself, and the result of this function is not used. */
static bool verify(struct cast *c, uint64_t round, uint64_t number)
{
    const struct cast_block *b = cast_slot(c, number);
    const uint32_t bytes = *(const volatile uint32_t *)&b->bytes; /* read once: another node may write here */
    struct cast_record r;
    const uint8_t *payload;
    uint32_t at = 0;
    int rc;
    if (!cast_block_fits(b, round, number, CAST_BLOCK) || bytes > CAST_BLOCK - sizeof *b)
        return false;
    while ((rc = cast_record_next((const uint8_t *)(b + 1), bytes, &at, &r, &payload)) == 1) {
        uint64_t hash[2];
        if (r.type != CAST_DATA)
            continue;
        cast_hash(hash, CAST_DATA, r.file, r.offset, payload, r.bytes);
        if (hash[0] != r.hash[0] || hash[1] != r.hash[1])
            return false;
    }
    return rc == 0;
}

static void *ahead_thread(void *arg)
{
    struct cast_ahead *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        const uint64_t round = a->round, number = a->number;
        if (!a->wanted) {
            pthread_cond_wait(&a->asked, &a->lock);
            continue;
        }
        a->wanted = false;
        pthread_mutex_unlock(&a->lock);
        if (verify(a->c, round, number))
            a->right = tag_of(round, number);
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

void cast_ahead_start(struct cast_ahead *a, struct cast *c)
{
    *a = (struct cast_ahead){.c = c};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->asked, NULL);
    a->running = base_thread(&a->thread, ahead_thread, a) == 0;
}

void cast_ahead_stop(struct cast_ahead *a)
{
    if (a->running) {
        pthread_mutex_lock(&a->lock);
        a->stop = true;
        pthread_cond_signal(&a->asked);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    pthread_cond_destroy(&a->asked);
    pthread_mutex_destroy(&a->lock);
}

void cast_ahead_ask(struct cast_ahead *a, uint64_t round, uint64_t number)
{
    if (!a->running)
        return;
    pthread_mutex_lock(&a->lock);
    a->round = round;
    a->number = number;
    a->wanted = true;
    pthread_cond_signal(&a->asked);
    pthread_mutex_unlock(&a->lock);
}

bool cast_ahead_is_right(const struct cast_ahead *a, uint64_t round, uint64_t number)
{
    return a->right == tag_of(round, number);
}
