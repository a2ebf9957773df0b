/* SPDX-License-Identifier: MIT
 *
 * Where the nodes meet: at the address that the settings have, or, where a launcher has started them by PMIx, at one that node 0 tells all.
 */
#ifndef WEFT_MEET_H
#define WEFT_MEET_H

#include "cluster/cluster.h"
#include "cluster/wire.h"

struct meet_place {
    char addresses[WIRE_INTERFACES][128]; /* of node 0, the one to be tried first in front */
    uint32_t count;
    int listener;    /* node 0: it listens already; -1: it does not */
    char bound[128]; /* where */
};

/* The place, and what the nodes' proofs are keyed with if no setting has a secret: WIRE_MAC bytes at `secret`, `*has_secret`. What place
 * has is ended with meet_leave(). */
int meet_agree(struct meet_place *place, struct cluster_settings *s, uint8_t secret[WIRE_MAC], bool *has_secret, int64_t deadline);
void meet_leave(struct meet_place *place);

/* --- for tests --- */
/* Whether what came as the notice of this node is one. */
bool meet_notice_ok(const struct wire_notice *n, uint32_t rank);
/* Addresses of node 0, best first. Returns how many. */
uint32_t meet_addresses(const struct wire_notice *all, uint32_t size, char out[WIRE_INTERFACES][128]);

#endif
