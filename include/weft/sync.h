/* SPDX-License-Identifier: MIT
 *
 * Nodes wait for each other and agree on values: barrier, exchange, lock, counter. weft/types.h explains how long a wait with
 * WEFT_TIMEOUT_DEFAULT lasts.
 *
 * In a cluster that grows (weft/node.h), barriers and exchanges are for the nodes that started together. Nodes that have joined later
 * cannot use them, and nobody waits for those nodes. Locks and counters are for all nodes.
 */
#ifndef WEFT_SYNC_H
#define WEFT_SYNC_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Wait until every node that is alive has called weft_barrier(). Only one thread of a node at a time may be in a barrier or an exchange.
 *
 * After a time-out, the other nodes still wait for this node, and the next call continues the same barrier. With a time-out of 0, the call
 * tests whether all nodes have arrived.
 *
 * If a node dies, each other node gets -ECONNRESET once, from its current or next barrier. Repeat the call until it returns 0: then all
 * remaining nodes have arrived. Later barriers wait only for the remaining nodes. A node that leaves by weft_close() does not disturb
 * barriers that it has passed.
 * Errors: -ETIMEDOUT a node has not arrived (weft_error() names it); -ECONNRESET a node is gone, so this barrier has failed; -EBUSY
 * another thread of this node is in a barrier or exchange; -EOPNOTSUPP this node has joined a running cluster; -EDEADLK called from a
 * handler; -ENOMEM no memory for a message. */
WEFT_API int weft_barrier(weft_node *w, int64_t timeout_ns);

#define WEFT_EXCHANGE_WORDS 7

/* A barrier in which every node also sends some values to all others, for example its first address. Every node sends `words` 8-byte words.
 * `words` is from 1 to WEFT_EXCHANGE_WORDS, and the same on all nodes.
 *
 * all[i * words] is the first word of node i. gave[i] is false if that node is gone; its words are then 0. Nothing is stored for nodes that
 * have joined later. `all` needs room for weft_size() * `words` words, and `gave` (may be NULL) for weft_size() values. After an error the
 * contents of both are undefined.
 *
 * After a time-out, repeat the call, as with weft_barrier(). The repeated call ignores `mine`: the words of the first call have been sent.
 * Errors: -EINVAL `words` is out of range; -ETIMEDOUT a node or its words have not arrived; -ECONNRESET a node is gone, so this exchange
 * has failed; -EBUSY another thread of this node is in a barrier or exchange; -EOPNOTSUPP this node has joined a running cluster; -EDEADLK
 * called from a handler; -ENOMEM no memory for a message. */
WEFT_API int weft_exchange(weft_node *w, const uint64_t *mine, uint32_t words, uint64_t *all, bool *gave, int64_t timeout_ns);

/* Acquire a lock: an 8-byte aligned word in the pool of any node, set to zero before its first use. Nodes get the lock in the order of
 * their calls. The lock belongs to the node, not to a thread. `*inherited` is true if the last holder of the lock has died, so the
 * protected data may be half changed. `inherited` may be NULL.
 *
 * With a time-out of 0 the call tries once, which takes up to 50 ms if the word's node does not answer. If this node gets the lock after
 * the time-out, weft releases the lock, or the next weft_lock() takes it over.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ETIMEDOUT this node did not get the lock before the
 * deadline; -ECONNRESET the word's node is gone, and the lock with it; -ENETDOWN no route to that node (tb); -ENOBUFS 1024 requests of this
 * node wait at that node; -ENOMEM no memory for one more waiter, at this node or at that node; -EDEADLK called from a handler. */
WEFT_API int weft_lock(weft_node *w, weft_gaddr word, int64_t timeout_ns, bool *inherited);

/* Release a lock. First call weft_flush() for writes that the lock protects. After 0, -EPERM or -ECONNRESET this node does not hold the
 * lock any more. After any other error it still does. If the process of the word's node is stopped, the call waits for it until the default
 * deadline, and then returns 0 all the same: weft completes the release when that process continues, and only then do other nodes get the
 * lock.
 * Errors: -EFAULT no such node, space or range; -EPERM this node does not hold it; -ECONNRESET the word's node is gone; -ENETDOWN no route
 * to that node (tb); -ETIMEDOUT the request could not be sent before the deadline; -ENOMEM no memory for it; -EDEADLK called from a
 * handler. */
WEFT_API int weft_unlock(weft_node *w, weft_gaddr word);

/* Counters are 8-byte aligned words in the pool of any node. weft_counter_add() adds `add`, and stores the counter's old value in `*old`
 * (may be NULL). weft_counter_read() reads the value. Both wait up to the default deadline.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ECONNRESET the counter's node is gone; -ENETDOWN no
 * route to the counter's node (tb); -ECONNABORTED the link broke, and the device may have added or not (rc); -ETIMEDOUT the counter's node
 * did not answer before the deadline; -EDEADLK called from a handler; -ENOMEM no memory for the request. */
WEFT_API int weft_counter_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old);
WEFT_API int weft_counter_read(weft_node *w, weft_gaddr word, uint64_t *value);

/* Wait until the counter is at least `value`. Changes of a counter in this node's own pool are noticed at once, changes of other counters
 * after at most about a millisecond.
 * Errors: -EFAULT no such node, space or range; -EINVAL the word is not aligned; -ETIMEDOUT the counter was still below `value` at the
 * deadline; -ECONNRESET the counter's node is gone, or a node died that might have added to the counter, or no other node is left;
 * -ENETDOWN no route to the counter's node (tb); -ECONNABORTED the link broke (rc): repeat the call; -EDEADLK called from a handler;
 * -ENOMEM no memory for the request. */
WEFT_API int weft_counter_wait(weft_node *w, weft_gaddr word, uint64_t value, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
