/* SPDX-License-Identifier: MIT
 *
 * Barrier, exchange, lock, counter. weft/types.h explains how long a wait with WEFT_TIMEOUT_DEFAULT lasts.
 *
 * In a cluster that grows (weft/node.h), barriers and exchanges are for the nodes that started together, which have the lowest numbers.
 * Nodes that joined later do not take part, and do not disturb them. Locks and counters are for all nodes.
 */
#ifndef WEFT_SYNC_H
#define WEFT_SYNC_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Wait until all nodes that started together and are alive have called weft_barrier() the same number of times. Only one thread of a node
 * may call it at a time.
 *
 * After a time-out the barrier is still under way: the node's next call continues the same barrier. So all nodes count the same barriers,
 * whichever of them timed out, and a time-out of 0 tests whether all nodes have arrived. The other nodes wait until the node that timed out
 * has called again.
 *
 * After -ECONNRESET the next barrier is among the nodes that are still alive (weft_alive()). Repeat the call until it returns 0: then all
 * these nodes have arrived. A node that leaves by weft_close() does not disturb barriers that it has passed.
 * Errors: -ETIMEDOUT a node has not arrived (weft_error() names it); -ECONNRESET a node is gone, so this barrier has failed; -EBUSY another
 * thread of this node is in a barrier or exchange; -EOPNOTSUPP this node has joined a running cluster; -EDEADLK called from a handler;
 * -ENOMEM no memory for a message. */
WEFT_API int weft_barrier(weft_node *w, int64_t timeout_ns);

#define WEFT_EXCHANGE_WORDS 7

/* A barrier that carries values: every node gives `words` 8-byte words (1 to WEFT_EXCHANGE_WORDS, the same number on all nodes) and gets
 * those of every node. This is how nodes learn each other's first addresses.
 *
 * all[i * words] is the first word of node i. `all` needs room for weft_size() * `words` words, and `gave` for weft_size() values; `gave`
 * may be NULL. If node i is gone, gave[i] is false and the node's words are 0. After an error the contents of `all` and `gave` are
 * undefined. After a time-out, repeat the call, as with weft_barrier(). The repeated call ignores `mine`, because other nodes may already
 * have the words of the first call.
 * Errors: -EINVAL `words` is out of range; -ETIMEDOUT a node or its words have not arrived; -ECONNRESET a node is gone, so this exchange
 * has failed; -EBUSY another thread of this node is in a barrier or exchange; -EOPNOTSUPP this node has joined a running cluster; -EDEADLK
 * called from a handler; -ENOMEM no memory for a message. */
WEFT_API int weft_exchange(weft_node *w, const uint64_t *mine, uint32_t words, uint64_t *all, bool *gave, int64_t timeout_ns);

/* Acquire a lock: an 8-byte aligned word of any pool, zero before its first use. The pool's node is the lock's home. Waiters are served in
 * the order in which their requests reach the home. The lock belongs to the node that holds it, not to the thread. When the holder dies,
 * the next waiter gets the lock and `*inherited` (may be NULL) is true: the data that the lock protects may be half changed.
 *
 * With a time-out of 0 the call tries once, and waits at most 50 ms for the home's answer. If a home that was stopped grants the lock after
 * the time-out, weft gives the lock back, or this node's next weft_lock() gets it.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ETIMEDOUT another node held it until the deadline, or the
 * home did not answer; -ECONNRESET the home is gone, and the lock with it; -ENETDOWN no route to the home (tb); -ENOBUFS 1024 requests of
 * this node wait at the home; -ENOMEM no memory for one more waiter, here or at the home; -EDEADLK called from a handler. */
WEFT_API int weft_lock(weft_node *w, weft_gaddr word, int64_t timeout_ns, bool *inherited);

/* Release a lock. If the call returns 0, -EPERM or -ECONNRESET, this node does not hold the lock any more. After any other error this node
 * still holds the lock. The call may return 0 before the home has answered, at the default deadline: other nodes then get the lock as soon
 * as the home runs again.
 * Errors: -EFAULT no such node, space or range; -EPERM this node does not hold it; -ECONNRESET the home is gone; -ENETDOWN no route to the
 * home (tb); -ETIMEDOUT no room in the queue to the home before the deadline; -ENOMEM no memory for it; -EDEADLK called from a handler. */
WEFT_API int weft_unlock(weft_node *w, weft_gaddr word);

/* Counters: 8-byte aligned words of any pool. weft_counter_add() adds `add`, and wakes the threads that wait at the counter's node; `*old`
 * (may be NULL) receives the former value. weft_counter_read() reads the value. Both calls wait up to the node's default deadline.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ECONNRESET the counter's node is gone; -ENETDOWN no route
 * to the counter's node (tb); -ECONNABORTED the link broke, and the device may have added or not (rc); -ETIMEDOUT the counter's node did
 * not answer before the deadline; -EDEADLK called from a handler; -ENOMEM no memory for the request. */
WEFT_API int weft_counter_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old);
WEFT_API int weft_counter_read(weft_node *w, weft_gaddr word, uint64_t *value);

/* Wait until the counter is at least `value`. A change of a counter in this node's own pool wakes the waiter; a counter at another node is
 * polled, at least every millisecond.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ETIMEDOUT the counter was still below `value` at the
 * deadline; -ECONNRESET the counter's node is gone, or a node died that might have added to the counter, or no other node is left;
 * -ENETDOWN no route to the counter's node (tb); -ECONNABORTED the link broke (rc): repeat the call; -EDEADLK called from a handler;
 * -ENOMEM no memory for the request. */
WEFT_API int weft_counter_wait(weft_node *w, weft_gaddr word, uint64_t value, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
