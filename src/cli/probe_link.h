/* SPDX-License-Identifier: MIT
 *
 * The measurements of weft probe link (probe_link.c), and the lanes that follow from them (probe_lanes.c).
 */
#ifndef WEFT_CLI_PROBE_LINK_H
#define WEFT_CLI_PROBE_LINK_H

#include "cli/command.h"

enum { SIZES = 9, DEPTHS = 7 };
enum { THERE, BACK, WAYS };
extern const uint32_t link_depths[DEPTHS];

struct link_result {
    bool tried, refused; /* refused: the queue took fewer than that */
    uint64_t sent, lost, damaged, bytes_per_second;
};

struct link_measures {
    uint32_t sizes[SIZES];
    struct link_result results[SIZES][DEPTHS][WAYS];
    uint32_t lane_size[3], lane_depth[3]; /* proposed: the largest, two of it; between; for what is not large. 0: none */
    uint64_t best, lane_sent, lane_lost;  /* of what is proposed: the largest's speed; messages in all */
};

void link_propose(struct link_measures *l); /* fills in what is proposed */
/* The proposal as WEFT_TB_LANES has it, into out; returns out. */
const char *link_lanes_text(const struct link_measures *l, char *out, size_t len);
struct cli_table *link_table(const struct link_measures *l); /* NULL: no memory */

#endif
