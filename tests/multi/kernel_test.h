/* SPDX-License-Identifier: MIT
 *
 * Helpers of the tests of services that kernels ask, on the GPU `host`.
 */
#ifndef WEFT_TESTS_KERNEL_TEST_H
#define WEFT_TESTS_KERNEL_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "cluster_test.h"

static inline weft_gpu *gpu_with_arena(weft_node *w, uint32_t *space)
{
    weft_gpu *g;
    weft_gpu_config config = {.bytes = sizeof config, .name = "host"};
    OK(weft_gpu_open(w, &config, &g));
    OK(weft_gpu_arena(g, 32u << 20, space));
    return g;
}

/* A record for requests, in the pool or in the arena. */
static inline weft_gaddr new_record(weft_node *w, weft_gpu *g, uint32_t space, bool in_arena)
{
    static const uint8_t zeros[WEFT_REQUEST_BYTES];
    weft_gaddr at;
    if (in_arena)
        OK(weft_gpu_alloc(g, space, WEFT_REQUEST_BYTES, &at));
    else
        OK(weft_alloc_aligned(w, WEFT_REQUEST_BYTES, 64, &at));
    OK(weft_put_blocking(w, at, zeros, sizeof zeros));
    return at;
}

/* A copy of the text in the pool. */
static inline weft_gaddr at_text(weft_node *w, const char *text, uint32_t *bytes)
{
    weft_gaddr at;
    OK(weft_alloc(w, 256, &at));
    memcpy(weft_ptr(w, at, 256), text, strlen(text) + 1);
    *bytes = (uint32_t)strlen(text);
    return at;
}

/* Runs two nodes: node `killed` is killed, and the other one ends well. */
static inline void one_is_killed(node_fn fn, const char *const *environment, int killed)
{
    int status[NODES_MAX];
    nodes_run(2, fn, shared_words(4096), environment, status);
    assert_true(WIFSIGNALED(status[killed]) && WTERMSIG(status[killed]) == SIGKILL);
    assert_int_equal(status[!killed], 0);
}

#endif
