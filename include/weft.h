/* SPDX-License-Identifier: MIT
 *
 * weft: a few machines made into one. This is the umbrella header; each room has one of its own:
 *
 *   weft/types.h   gaddr, the node's handle, errors, time-outs
 *   weft/node.h    joining a cluster, membership
 *   weft/pool.h    the node's memory: allocate, free, look
 *   weft/fabric.h  put, get, atomics, messages, flush, fence, waiting
 *   weft/sync.h    barrier, exchange, lock, counter
 *   weft/queue.h   the distributed work queue
 *   weft/kernel.h  named functions over bytes (the `host` back end)
 *   weft/gpu.h     GPUs, whose kernels use weft/device.h
 *
 * Rules that hold everywhere, unless a function says otherwise:
 *   - functions return 0 or a negative errno; weft_error() has the sentence that goes with it;
 *   - any thread may call any function;
 *   - sizes and offsets are bytes, times are nanoseconds;
 *   - nothing waits for ever for the dead: an operation ends at its deadline with -ETIMEDOUT; a wait for other nodes' doing
 *     (weft/types.h) lasts as long as they live, unless a time-out or WEFT_DEADLINE bounds it.
 */
#ifndef WEFT_H
#define WEFT_H

#include "weft/types.h"
#include "weft/node.h"
#include "weft/pool.h"
#include "weft/fabric.h"
#include "weft/sync.h"
#include "weft/queue.h"
#include "weft/kernel.h"
#include "weft/gpu.h"

#endif
