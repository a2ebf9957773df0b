/* SPDX-License-Identifier: MIT
 *
 * Runs tests in a child process, so that leaving the fabric at its exit is tested too.
 */
#ifndef SOFTVERBS_TESTS_INSIDE_H
#define SOFTVERBS_TESTS_INSIDE_H

#include "ground.h"

/* Runs `tests` on a fabric that was made, and removes the fabric. Returns what `tests` returned, or 1. */
int inside_run(struct ground *, int (*tests)(void));

#endif
