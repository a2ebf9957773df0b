/* SPDX-License-Identifier: MIT
 *
 * weft run --gpus: which GPUs of its machine a node is given.
 */
#ifndef WEFT_CLI_GPUS_H
#define WEFT_CLI_GPUS_H

#include <stddef.h>
#include <stdint.h>

#define GPUS_ASKED   "WEFT_GPUS=" /* in an order to another machine: how many a node gets, and its place among the nodes there: "1:0" */
#define GPUS_VISIBLE "CUDA_VISIBLE_DEVICES="
#define GPUS_ROOM    512

/* The assignment of GPUS_VISIBLE that gives `each` of this machine's GPUs to the node with that place among the machine's nodes. They are
 * dealt in turn: where nodes want more than there are, they share. CUDA_VISIBLE_DEVICES of this process, if it is set, says which there
 * are. -ENODEV, with a sentence: a node wants more than the machine has. */
int gpus_give(uint32_t each, uint32_t place, char out[GPUS_ROOM]);
/* The same, of the text behind GPUS_ASKED. -EINVAL: it is none. */
int gpus_give_asked(const char *asked, char out[GPUS_ROOM]);

#endif
