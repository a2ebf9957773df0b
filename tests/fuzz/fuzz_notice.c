/* SPDX-License-Identifier: MIT
 *
 * Any bytes as what nodes under mpirun tell each other, and as what the members of a running cluster tell each other about a node that
 * joins: each input is refused, or all of it can be used.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/join.h"
#include "cluster/meet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MOST 4u

static void member(const uint8_t *data, size_t size)
{
    struct grow_message m = {0};
    struct grow_ask ask;
    size_t head = size < sizeof m ? size : sizeof m;
    memcpy(&m, data, head);
    m.magic = GROW_MAGIC;
    if (!grow_message_ok(&m, data + head, size - head) || m.kind != GROW_ASK)
        return;
    memcpy(&ask, data + head, sizeof ask);
    if (ask.card.rank != m.number || m.number >= WEFT_MAX_NUMBERS || strlen(ask.card.host) >= sizeof ask.card.host ||
        strlen(ask.card.side) >= sizeof ask.card.side || strlen(ask.card.away) >= sizeof ask.card.away || ask.card.liveness_ns <= 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    member(data, size);
    uint32_t n = (uint32_t)(size / sizeof(struct wire_notice));
    n = n > MOST ? MOST : n;
    struct wire_notice *all = calloc(n + 1, sizeof *all); /* the last one is incomplete, and must be refused */
    if (!all)
        return 0;
    memcpy(all, data, size < (n + 1) * sizeof *all ? size : (n + 1) * sizeof *all);
    for (uint32_t i = 0; i <= n; i++) {
        all[i].magic = WIRE_MAGIC; /* correct, so that the other fields are checked, too */
        all[i].rank = i;
        if (!meet_notice_ok(&all[i], i)) {
            n = i;
            break;
        }
        if (strlen(all[i].host) >= sizeof all[i].host || strlen(all[i].text) >= sizeof all[i].text)
            abort();
    }
    char addresses[WIRE_INTERFACES][128];
    uint32_t count = n ? meet_addresses(all, n, addresses) : 0;
    for (uint32_t i = 0; i < count; i++)
        if (cluster_address_check(addresses[i]))
            abort();
    free(all);
    return 0;
}
