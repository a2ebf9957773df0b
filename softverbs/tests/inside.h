/* SPDX-License-Identifier: MIT
 *
 * Tests in a child of the test's process: so its leaving the fabric is one of the things tested.
 */
#ifndef SOFTVERBS_TESTS_INSIDE_H
#define SOFTVERBS_TESTS_INSIDE_H

#include "ground.h"

/* On a fabric that is made; removes it. What `tests` returned, or 1. */
int inside_run(struct ground *, int (*tests)(void));

#endif
