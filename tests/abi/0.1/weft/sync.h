/* SPDX-License-Identifier: MIT
 *
 * Barrier, exchange, lock, counter.
 */
#ifndef WEFT_SYNC_H
#define WEFT_SYNC_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Wait until every node that is alive has called it the same number of times. One call at a time a node.
 * -ECONNRESET: a node has gone, and this barrier with it. weft_alive() then says who is left, and the next barrier is
 * theirs: after an error, call it until it returns 0, and those that are left have met. A node that leaves by
 * weft_close() does not disturb the barriers it has passed. -ETIMEDOUT: the error names a node that has not come. The next call
 * goes on with this barrier, it does not begin another: call it until it returns something else, and the nodes' barriers
 * stay in step, whoever of them timed out. So a time-out of 0 asks whether all have come. The others wait for a node that
 * timed out and does not call again. -EBUSY: another thread of this node is in one. */
WEFT_API int weft_barrier(weft_node *w, int64_t timeout_ns);

/* Give a few words, and get every node's: all[i * words] is the first of node i's. `words`: 1 to WEFT_EXCHANGE_WORDS, the same on all
 * nodes. `all` has room for weft_size() * words words, and `gave` (may be NULL) for weft_size(): gave[i] is false, and node i's words are
 * 0, when it is gone. This is how nodes learn each other's first addresses. A barrier, with its errors; after an error `all` and `gave`
 * say nothing. One that timed out is entered again like a barrier; then the words of the first call stand, which others may have
 * already. -EINVAL: `words` is out of range. */
#define WEFT_EXCHANGE_WORDS 7
WEFT_API int weft_exchange(weft_node *w, const uint64_t *mine, uint32_t words, uint64_t *all, bool *gave, int64_t timeout_ns);

/* A lock is an 8-byte aligned word of any pool, zero before its first use. Waiters are served in the order their
 * requests reach the word's node. It belongs to the node (not the thread) that holds it. When the holder dies the
 * next in line gets it, and `*inherited` (may be NULL) is true: what the lock guards may be half done.
 * -ETIMEDOUT: not acquired; a time-out of 0 asks once, which at a node that does not answer takes 50 ms. Where the word's node was stopped,
 * and does what it was asked after that, it is undone, or had by this node's next call. -ECONNRESET: the word's node is gone, and with it
 * the lock. -ENOMEM: the word's node has no memory for one more that waits; -ENOBUFS: it keeps 1024 requests of a node at most. -EDEADLK:
 * called from a handler. */
WEFT_API int weft_lock(weft_node *w, weft_gaddr word, int64_t timeout_ns, bool *inherited);
/* After a 0 this node does not hold it any more; where the word's node does not answer before the deadline, others can have it as soon
 * as it does. -EPERM when this node does not hold it. -ECONNRESET: the word's node is gone. After any other error, -EDEADLK (called
 * from a handler) among them, this node holds it as before. */
WEFT_API int weft_unlock(weft_node *w, weft_gaddr word);

/* A counter is an 8-byte aligned word of any pool. */
WEFT_API int weft_counter_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old);
WEFT_API int weft_counter_read(weft_node *w, weft_gaddr word, uint64_t *value);
/* Wait until the counter, on any node, is at least `value`. -ECONNRESET: the counter's node is gone, or a node that may have been
 * the one to add (see weft/types.h). */
WEFT_API int weft_counter_wait(weft_node *w, weft_gaddr word, uint64_t value, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
