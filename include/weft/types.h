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
typedef struct weft weft;

/* A cluster-wide address: node (16 bits) . space (4) . offset (44). 0 is null and is never handed out.
 * Space 0 is the node's host pool; 1 to 15 are GPU arenas. */
typedef uint64_t weft_gaddr;

#define WEFT_NULL            ((weft_gaddr)0)
#define WEFT_OFFSET_BITS     44
#define WEFT_SPACE_BITS      4
#define WEFT_MAX_NODES       1024u
#define WEFT_MAX_POOL_BYTES  (UINT64_C(1) << WEFT_OFFSET_BITS)

static inline weft_gaddr weft_gaddr_make(uint32_t node, uint32_t space, uint64_t offset)
{
    return ((weft_gaddr)(node & 0xffffu) << (WEFT_OFFSET_BITS + WEFT_SPACE_BITS)) |
           ((weft_gaddr)(space & 0xfu) << WEFT_OFFSET_BITS) | (offset & (WEFT_MAX_POOL_BYTES - 1));
}

static inline uint32_t weft_gaddr_node(weft_gaddr a)
{
    return (uint32_t)(a >> (WEFT_OFFSET_BITS + WEFT_SPACE_BITS));
}

static inline uint32_t weft_gaddr_space(weft_gaddr a)
{
    return (uint32_t)(a >> WEFT_OFFSET_BITS) & 0xfu;
}

static inline uint64_t weft_gaddr_offset(weft_gaddr a)
{
    return a & (WEFT_MAX_POOL_BYTES - 1);
}

/* Time-outs are relative, in nanoseconds. WEFT_DEFAULT means the node's own deadline
 * (WEFT_DEADLINE, 30 s unless set); 0 looks once and does not wait. */
#define WEFT_DEFAULT    ((int64_t)-1)
#define WEFT_US         ((int64_t)1000)
#define WEFT_MS         ((int64_t)1000000)
#define WEFT_SECOND     ((int64_t)1000000000)

/* The sentence that explains the last error of the calling thread: what failed, on which object, why,
 * and the remedy. Never NULL; empty when nothing has failed. Valid until this thread's next weft call. */
WEFT_API const char *weft_error(void);

/* The version of the library at run time, as "0.1.0". */
WEFT_API const char *weft_version(void);

#ifdef __cplusplus
}
#endif
#endif
