/* SPDX-License-Identifier: MIT
 *
 * The header of weft 0.1, without its comments: a program that was built with it must run with a later library.
 */
#ifndef WEFT_SYNC_H
#define WEFT_SYNC_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

WEFT_API int weft_barrier(weft_node *w, int64_t timeout_ns);

#define WEFT_EXCHANGE_WORDS 7
WEFT_API int weft_exchange(weft_node *w, const uint64_t *mine, uint32_t words, uint64_t *all, bool *gave, int64_t timeout_ns);

WEFT_API int weft_lock(weft_node *w, weft_gaddr word, int64_t timeout_ns, bool *inherited);

WEFT_API int weft_unlock(weft_node *w, weft_gaddr word);

WEFT_API int weft_counter_add(weft_node *w, weft_gaddr word, uint64_t add, uint64_t *old);
WEFT_API int weft_counter_read(weft_node *w, weft_gaddr word, uint64_t *value);

WEFT_API int weft_counter_wait(weft_node *w, weft_gaddr word, uint64_t value, int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
