/* SPDX-License-Identifier: MIT
 *
 * Reports to the owner what this node has done. Used by nodes that are apart (on another host): they cannot write to the owner's board.
 */
#include "map/job.h"

void map_tally_tell(struct map_job *job)
{
    if (!map_is_apart(job))
        return;
    struct map_telling *t = &job->telling;
    pthread_mutex_lock(&t->lock);
    if (t->sent)
        weft_wait(job->w, &t->op, WEFT_TIMEOUT_DEFAULT); /* wait for the previous put, which is usually complete already */
    struct map_tally now = {0};
    for (uint32_t i = 0; i < job->slots; i++) {
        const struct map_line *line = map_line(job, job->rank, i);
        now.busy += atomic_load_explicit(&line->busy, memory_order_relaxed);
        now.pieces += atomic_load_explicit(&line->pieces, memory_order_relaxed);
        now.busy_ns += atomic_load_explicit(&line->busy_ns, memory_order_relaxed);
        now.command_ns += atomic_load_explicit(&line->command_ns, memory_order_relaxed);
    }
    now.spilled = atomic_load_explicit(&job->board->spill_bytes, memory_order_relaxed);
    now.gpu_failed = atomic_load_explicit(&job->board->gpu[job->rank], memory_order_relaxed) >= MAP_GPU_FAILED;
    t->tally = now;
    t->sent = weft_put(job->w, job->tallies + job->rank * sizeof now, &t->tally, sizeof now, &t->op) == 0;
    pthread_mutex_unlock(&t->lock);
}
