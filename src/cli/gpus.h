/* SPDX-License-Identifier: MIT
 *
 * weft run --gpus: assigns GPUs of a machine to its nodes.
 */
#ifndef WEFT_CLI_GPUS_H
#define WEFT_CLI_GPUS_H

#include <stddef.h>
#include <stdint.h>

/* An environment variable for a node on another machine: how many GPUs the node gets, and its index among the nodes of that machine, as in
 * "1:0". */
#define GPUS_ASKED   "WEFT_GPUS="
#define GPUS_VISIBLE "CUDA_VISIBLE_DEVICES="
#define GPUS_ROOM    512

/* Make the environment assignment that gives a node `each` of this machine's GPUs, or of those in CUDA_VISIBLE_DEVICES. `place`: index of
 * the node among the nodes of this machine. GPUs are assigned in turn; if there are not enough, nodes share them. Returns -ENODEV, with an
 * error text, if the machine has fewer than `each` GPUs. */
int gpus_give(uint32_t each, uint32_t place, char out[GPUS_ROOM]);
/* Like gpus_give(), for the value of the variable GPUS_ASKED. Returns -EINVAL if the value is invalid. */
int gpus_give_asked(const char *asked, char out[GPUS_ROOM]);

#endif
