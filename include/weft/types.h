/* SPDX-License-Identifier: MIT
 *
 * What all headers share: the cluster-wide address, the node's handle, errors, time-outs.
 */
#ifndef WEFT_TYPES_H
#define WEFT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif

#if defined(__CUDACC__)
#define WEFT_BOTH __host__ __device__ /* for kernels as well */
#else
#define WEFT_BOTH
#endif

/* One node: a process that owns one pool. weft_open() makes the handle, weft_close() frees it. */
typedef struct weft_node weft_node;

/* The address of a byte in the whole cluster. From the high bits down: node (16), space (4), offset in bytes (44). 0 is never valid. Space
 * 0 is the node's pool; 1 to 15 are memory on GPUs. */
typedef uint64_t weft_gaddr;

#define WEFT_NULL           0ull
#define WEFT_OFFSET_BITS    44
#define WEFT_SPACE_BITS     4
#define WEFT_MAX_NODES      1024              /* most nodes that can be alive at the same time */
#define WEFT_MAX_NUMBERS    65536             /* nodes have numbers below this. A cluster that grows (weft_config.grow) reuses no number */
#define WEFT_MAX_POOL_BYTES 17592186044416ull /* 2 to the power of WEFT_OFFSET_BITS: 16 TiB */

/* Make an address from its parts, or return one part. These functions are inline, and also exported by the library for other languages. */
WEFT_API WEFT_BOTH inline weft_gaddr weft_gaddr_make(uint32_t node, uint32_t space, uint64_t offset)
{
    return ((weft_gaddr)(node & 0xffffu) << (WEFT_OFFSET_BITS + WEFT_SPACE_BITS)) | ((weft_gaddr)(space & 0xfu) << WEFT_OFFSET_BITS) |
           (offset & (WEFT_MAX_POOL_BYTES - 1));
}

WEFT_API WEFT_BOTH inline uint32_t weft_gaddr_node(weft_gaddr a)
{
    return (uint32_t)(a >> (WEFT_OFFSET_BITS + WEFT_SPACE_BITS));
}

WEFT_API WEFT_BOTH inline uint32_t weft_gaddr_space(weft_gaddr a)
{
    return (uint32_t)(a >> WEFT_OFFSET_BITS) & 0xfu;
}

WEFT_API WEFT_BOTH inline uint64_t weft_gaddr_offset(weft_gaddr a)
{
    return a & (WEFT_MAX_POOL_BYTES - 1);
}

/* A time-out is in nanoseconds, from the start of the call. With 0 a call tries once and does not wait. With WEFT_TIMEOUT_DEFAULT the
 * length of the wait depends on the call.
 *
 * Calls that wait for an operation (a put, a get, an atomic, a message or a flush) wait until the node's default deadline: WEFT_DEADLINE,
 * 30 s unless set.
 *
 * Waits for other nodes last as long as the nodes that they need are alive, because a slow node is not an error. These are weft_barrier(),
 * weft_exchange(), weft_lock(), weft_counter_wait(), weft_wait_until(), weft_reap() and weft_drain(). A barrier or an exchange returns
 * -ECONNRESET when any of the nodes is gone, weft_lock() when the lock's node is gone. After 30 s (WEFT_SAY_AFTER) the call prints to
 * stderr, once, which nodes it waits for. If WEFT_DEADLINE, the hostfile or weft_config sets a deadline, these calls return -ETIMEDOUT at
 * that deadline.
 *
 * The last four calls of this list cannot know which node will end the wait. They return -ECONNRESET when probably no node will end it:
 * - weft_wait_until() and weft_counter_wait(): any node has died during the wait, or no other node is alive.
 * - weft_reap() and weft_drain(): no other node is alive, and this node has claimed nothing from the queue.
 *
 * In these cases the four calls wait for 30 s more, and then fail. In a cluster of one node they wait without limit, because another thread
 * may end the wait. */
#define WEFT_TIMEOUT_DEFAULT (-1)
#define WEFT_US              1000ll
#define WEFT_MS              1000000ll
#define WEFT_SECOND          1000000000ll

/* A sentence about the last error of the calling thread: what failed, on which object, why, and what to do. Never NULL; empty if nothing
 * has failed. The string is valid until this thread's next call of weft. */
WEFT_API const char *weft_error(void);

/* The version of the library at run time, as "0.1.0". */
WEFT_API const char *weft_version(void);

#ifdef __cplusplus
}
#endif
#endif
