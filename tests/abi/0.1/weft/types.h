/* SPDX-License-Identifier: MIT
 *
 * Words that all rooms share: the cluster-wide address, the node's handle, errors, time-outs.
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

/* One node: a process that owns one pool. Made by weft_open(), ended by weft_close(). */
typedef struct weft_node weft_node;

/* A cluster-wide address: node (16 bits) . space (4) . offset (44). 0 is null and is never handed out.
 * Space 0 is the node's host pool; 1 to 15 are GPU arenas. */
typedef uint64_t weft_gaddr;

#define WEFT_NULL           0ull
#define WEFT_OFFSET_BITS    44
#define WEFT_SPACE_BITS     4
#define WEFT_MAX_NODES      1024
#define WEFT_MAX_POOL_BYTES 17592186044416ull /* 2 to the power of WEFT_OFFSET_BITS: 16 TiB */

/* An address of its parts, and the parts of an address. Inline here, and functions of the library as well, for other languages. */
WEFT_API inline weft_gaddr weft_gaddr_make(uint32_t node, uint32_t space, uint64_t offset)
{
    return ((weft_gaddr)(node & 0xffffu) << (WEFT_OFFSET_BITS + WEFT_SPACE_BITS)) | ((weft_gaddr)(space & 0xfu) << WEFT_OFFSET_BITS) |
           (offset & (WEFT_MAX_POOL_BYTES - 1));
}

WEFT_API inline uint32_t weft_gaddr_node(weft_gaddr a)
{
    return (uint32_t)(a >> (WEFT_OFFSET_BITS + WEFT_SPACE_BITS));
}

WEFT_API inline uint32_t weft_gaddr_space(weft_gaddr a)
{
    return (uint32_t)(a >> WEFT_OFFSET_BITS) & 0xfu;
}

WEFT_API inline uint64_t weft_gaddr_offset(weft_gaddr a)
{
    return a & (WEFT_MAX_POOL_BYTES - 1);
}

/* Time-outs are relative, in nanoseconds. 0 looks once and does not wait. WEFT_TIMEOUT_DEFAULT means the node's own deadline
 * (WEFT_DEADLINE, 30 s unless set), for operations: put, get, atomics, messages, flush.
 *
 * A wait for other nodes' doing is different: weft_barrier(), weft_exchange(), weft_lock(), weft_counter_wait(), weft_wait_until(),
 * weft_reap() and weft_drain(). With WEFT_TIMEOUT_DEFAULT, and where nobody has set the deadline (environment, hostfile, weft_config), it
 * lasts as long as those it waits for live, and ends with -ECONNRESET when they are gone: a node that takes long is not an error.
 * After 30 s (WEFT_SAY_AFTER) it says once on stderr for whom it waits. A time-out, or a deadline that is set, bounds it:
 * -ETIMEDOUT.
 *
 * Of some of these nobody knows who is to end them. weft_wait_until() and weft_counter_wait(): when a node dies meanwhile it may
 * have been the one, and when no other node lives (any more) none is left. weft_reap() and weft_drain(), whose work any node can
 * do: when no other node lives, and this one has claimed nothing of that queue itself. Then the wait goes on for 30 s (the node's
 * deadline), in which others, or a thread of this process, may still end it; after that: -ECONNRESET. In a cluster of one node
 * they last until a thread of the process ends them. */
#define WEFT_TIMEOUT_DEFAULT (-1)
#define WEFT_US              1000ll
#define WEFT_MS              1000000ll
#define WEFT_SECOND          1000000000ll

/* The sentence that explains the last error of the calling thread: what failed, on which object, why,
 * and the remedy. Never NULL; empty when nothing has failed. Valid until this thread's next weft call. */
WEFT_API const char *weft_error(void);

/* The version of the library at run time, as "0.1.0". */
WEFT_API const char *weft_version(void);

#ifdef __cplusplus
}
#endif
#endif
