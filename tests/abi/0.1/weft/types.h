/* SPDX-License-Identifier: MIT
 *
 * The header of weft 0.1, without its comments: a program that was built with it must run with a later library.
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

typedef struct weft_node weft_node;

typedef uint64_t weft_gaddr;

#define WEFT_NULL           0ull
#define WEFT_OFFSET_BITS    44
#define WEFT_SPACE_BITS     4
#define WEFT_MAX_NODES      1024
#define WEFT_MAX_POOL_BYTES 17592186044416ull

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

#define WEFT_TIMEOUT_DEFAULT (-1)
#define WEFT_US              1000ll
#define WEFT_MS              1000000ll
#define WEFT_SECOND          1000000000ll

WEFT_API const char *weft_error(void);

WEFT_API const char *weft_version(void);

#ifdef __cplusplus
}
#endif
#endif
