/* SPDX-License-Identifier: MIT
 *
 * Barrier, exchange, lock, counter. weft/types.h explains how long a wait with WEFT_TIMEOUT_DEFAULT lasts.
 *
 * In a cluster that grows (weft/node.h), barriers and exchanges are for the nodes that started together, the first ones by number: nodes
 * that have joined since neither take part nor disturb them. Locks and counters are for all.
 */
#ifndef WEFT_SYNC_H
#define WEFT_SYNC_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Wait until every node that is alive, of those that started together, has called it the same number of times. One thread of a node at a
 * time.
 *
 * After a time-out the barrier is not over: the next call continues it, and does not begin another. So all nodes count the same
 * barriers, whichever of them timed out, and a time-out of 0 tests whether all have arrived. Nodes wait for one that timed out until it
 * calls again.
 *
 * After -ECONNRESET the next barrier is among the nodes that are left (weft_alive()). Call it until it returns 0: then all of these have
 * arrived. A node that leaves by weft_close() does not disturb the barriers it has passed.
 * Errors: -ETIMEDOUT a node has not arrived (weft_error() names it); -ECONNRESET a node is gone, so this barrier has failed; -EBUSY another
 * thread of this node is in a barrier or exchange; -EOPNOTSUPP this node has joined a running cluster; -EDEADLK called from a handler;
 * -ENOMEM no memory for a message. */
WEFT_API int weft_barrier(weft_node *w, int64_t timeout_ns);

#define WEFT_EXCHANGE_WORDS 7

/* A barrier that carries values: every node gives `words` 8-byte words (1 to WEFT_EXCHANGE_WORDS, the same number on all nodes) and gets
 * those of every node. This is how nodes learn each other's first addresses.
 *
 * all[i * words] is the first word of node i; `all` has room for `words` words of each node that started, which weft_size() is enough for.
 * gave[i] is false, and node i's words are 0, if it is gone; `gave` has room for as many nodes, or is NULL. After an error both are
 * undefined. After a time-out, call it again as you would a barrier. The words of the first call are used: other nodes may have them
 * already. Errors: -EINVAL `words` is out of range; -ETIMEDOUT a node or its words have not arrived; -ECONNRESET a node is gone, so this
 * exchange has failed; -EBUSY another thread of this node is in a barrier or exchange; -EOPNOTSUPP this node has joined a running
 * cluster; -EDEADLK called from a handler; -ENOMEM no memory
 * for a message. */
WEFT_API int weft_exchange(weft_node *w, const uint64_t *mine, uint32_t words, uint64_t *all, bool *gave, int64_t timeout_ns);

/* Acquire a lock: an 8-byte aligned word of any pool, zero before its first use. The pool's node is the lock's home. Waiters are served in
 * the order in which their requests reach the home. The lock belongs to the node that holds it, not to the thread. When the holder dies,
 * the next waiter gets the lock and `*inherited` (may be NULL) is true: the data that the lock protects may be half changed.
 *
 * With a time-out of 0 the call tries once; if the home does not answer, it takes 50 ms. If a stopped home grants the lock after the
 * time-out, the grant is undone, or this node's next call gets the lock.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ETIMEDOUT another node held it until the deadline, or the
 * home did not answer; -ECONNRESET the home is gone, and the lock with it; -ENETDOWN no route to the home (tb); -ENOBUFS 1024 requests of
 * this node wait at the home; -ENOMEM no memory for one more waiter, here or at the home; -EDEADLK called from a handler. */
WEFT_API int weft_lock(weft_node *w, weft_gaddr word, int64_t timeout_ns, bool *inherited);

/* Release a lock. After 0 this node does not hold it any more; if the home does not answer before the default deadline, other nodes get the
 * lock as soon as it does. After -EPERM or -ECONNRESET this node does not hold it either. After any other error it holds it as before.
 * Errors: -EFAULT no such node, space or range; -EPERM this node does not hold it; -ECONNRESET the home is gone; -ENETDOWN no route to the
 * home (tb); -ETIMEDOUT no room in the queue to the home before the deadline; -ENOMEM no memory for it; -EDEADLK called from a handler. */
WEFT_API int weft_unlock(weft_node *w, weft_gaddr word);

/* Counters: 8-byte aligned words of any pool. weft_counter_add() adds, and wakes threads that wait at the counter's node; `*old` (may be
 * NULL) receives the former value. weft_counter_read() reads. Both wait up to the node's default deadline. Errors: -EFAULT no such node,
 * space or range; -EINVAL the word is not aligned; -ECONNRESET the counter's node is gone; -ENETDOWN no route to it (tb); -ECONNABORTED the
 * link broke, and the device may have done it or not (rc); -ETIMEDOUT its node did not answer before the deadline; -EDEADLK called from a
 * handler; -ENOMEM no memory for it. */
WEFT_API int weft_counter_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old);
WEFT_API int weft_counter_read(weft_node *w, weft_gaddr word, uint64_t *value);

/* Wait until the counter is at least `value`. A change of a counter in this node's own pool wakes the waiter; a counter at another node is
 * polled, at least every millisecond.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ETIMEDOUT still less at the deadline; -ECONNRESET the
 * counter's node is gone, or a node died that might have added to it, or no other node is left; -ENETDOWN no route to it (tb);
 * -ECONNABORTED the link broke (rc): call it again; -EDEADLK called from a handler; -ENOMEM no memory for it. */
WEFT_API int weft_counter_wait(weft_node *w, weft_gaddr word, uint64_t value, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
