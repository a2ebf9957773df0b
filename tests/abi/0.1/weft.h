/* SPDX-License-Identifier: MIT
 *
 * The header of weft 0.1, without its comments: a program that was built with it must run with a later library.
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

#endif
