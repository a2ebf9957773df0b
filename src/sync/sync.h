/* SPDX-License-Identifier: MIT
 *
 * sync: barrier, lock, counters, on top of fabric. Its state hangs in w->sync.
 */
#ifndef WEFT_SYNC_ROOM_H
#define WEFT_SYNC_ROOM_H

#include "fabric/fabric.h"
#include "weft/sync.h"

int sync_open(struct weft *w); /* before joining: its handlers must be there for the first message */

#endif
