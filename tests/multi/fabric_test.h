/* SPDX-License-Identifier: MIT
 *
 * The tests of fabric_messages.c, which test_fabric.c runs.
 */
#ifndef WEFT_FABRIC_TEST_H
#define WEFT_FABRIC_TEST_H

#include "cluster_test.h"

void test_messages(void **state);
void test_handlers(void **state);
void test_late_handler(void **state);
void test_backpressure(void **state);

#endif
