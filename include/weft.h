/* SPDX-License-Identifier: MIT
 *
 * weft joins processes on one or several machines into a cluster with shared memory, messages, locks and work queues. This header includes
 * all others:
 *
 *   weft/types.h   addresses, the node's handle, errors, time-outs
 *   weft/node.h    join and leave a cluster, membership
 *   weft/pool.h    the node's memory: allocate, free, pointers
 *   weft/fabric.h  put, get, atomics, messages, flush, fence, waiting
 *   weft/sync.h    barrier, exchange, lock, counter
 *   weft/queue.h   the distributed work queue
 *   weft/kernel.h  named functions over bytes, for `weft map`
 *   weft/gpu.h     GPUs, whose kernels use weft/device.h
 *   weft/service.h services of nodes: processes, names. weft/request.h has their records; weft/device_service.h is for kernels
 *   weft/net.h     sockets at a node that has a network, for nodes that have none; weft/device_net.h is for kernels
 *   weft/file.h    files of a node, read from its disk once for all nodes; weft/device_file.h is for kernels
 *
 * `man weft-glossary` explains the terms. These rules hold unless a function says otherwise:
 *   - Functions return 0 or a negative errno. weft_error() has a sentence for it. `Errors:` lists what a function can return.
 *   - Any thread may call any function.
 *   - Sizes and offsets are in bytes, times in nanoseconds.
 *   - The caller owns what it passes to a function, and weft reads it during the call only. An operation (weft/fabric.h) uses its buffers
 *     until it is complete.
 *   - No wait lasts for ever because of a dead node. An operation ends at its deadline with -ETIMEDOUT. A wait for other nodes
 *     (weft/types.h) lasts while these nodes are alive, unless a time-out or WEFT_DEADLINE bounds it.
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
#include "weft/service.h"
#include "weft/net.h"
#include "weft/file.h"

#endif
