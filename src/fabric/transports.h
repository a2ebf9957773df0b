/* SPDX-License-Identifier: MIT
 *
 * The transports, for the code that makes a node (node/open.c). A new transport is a folder here, a line in this file, and a line in
 * node/open.c.
 */
#ifndef WEFT_TRANSPORTS_H
#define WEFT_TRANSPORTS_H

struct fab_transport;
extern const struct fab_transport fab_shm, fab_rc, fab_tb, fab_ofi;

#endif
