/* SPDX-License-Identifier: MIT
 *
 * The header of weft 0.1, without its comments: a program that was built with it must run with a later library.
 */
#ifndef WEFT_NODE_H
#define WEFT_NODE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_POOL_HUGE     0x1u
#define WEFT_POOL_LOCK     0x2u
#define WEFT_POOL_PREFAULT 0x4u

typedef struct weft_config {
    size_t bytes;
    const char *coord;
    const char *hostfile;
    const char *secret;
    const char *transport;
    uint32_t rank;
    uint32_t size;
    uint64_t pool_bytes;
    uint32_t pool_flags;
    int64_t deadline_ns;
    int64_t join_timeout_ns;
    int64_t reconnect_ns;
} weft_config;

WEFT_API int weft_open(weft_node **out, const weft_config *config);

WEFT_API int weft_close(weft_node *w);

WEFT_API uint32_t weft_rank(const weft_node *w);
WEFT_API uint32_t weft_size(const weft_node *w);

WEFT_API uint64_t weft_epoch(const weft_node *w);
WEFT_API bool weft_alive(const weft_node *w, uint32_t node);
WEFT_API uint32_t weft_alive_count(const weft_node *w);

typedef void (*weft_member_fn)(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg);
WEFT_API int weft_on_change(weft_node *w, weft_member_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
