/* SPDX-License-Identifier: MIT
 *
 * Finds the address of node 0. It is in the settings, or node 0 publishes it by PMIx.
 */
#ifndef WEFT_MEET_H
#define WEFT_MEET_H

#include "cluster/cluster.h"
#include "cluster/wire.h"

struct meet_place {
    char addresses[WIRE_INTERFACES][128]; /* addresses of node 0, the best first */
    uint32_t count;
    int listener;    /* on node 0: the listening socket if it is open; else -1 */
    char bound[128]; /* the address of `listener` */
};

/* Find the address of node 0. If the settings have no secret, `secret` becomes the secret that node 0 has published, and *has_secret is
 * true. Close the listener with meet_leave(). */
int meet_agree(struct meet_place *place, struct cluster_settings *s, uint8_t secret[WIRE_MAC], bool *has_secret, int64_t deadline);
void meet_leave(struct meet_place *place);

/* --- for tests --- */
bool meet_notice_ok(const struct wire_notice *n, uint32_t rank);
uint32_t meet_addresses(const struct wire_notice *all, uint32_t size, char out[WIRE_INTERFACES][128]);

#endif
