/* SPDX-License-Identifier: MIT
 *
 * The measurements of `weft probe link` (probe_link.c), and the lanes that are proposed from them (probe_lanes.c).
 */
#ifndef WEFT_CLI_PROBE_LINK_H
#define WEFT_CLI_PROBE_LINK_H

#include "cli/command.h"

enum { SIZES = 9, DEPTHS = 7 };
enum { THERE, BACK, WAYS };
extern const uint32_t link_depths[DEPTHS];

struct link_result {
    bool tried, refused; /* refused: the queue was full at a smaller depth */
    uint64_t sent, lost, damaged, bytes_per_second;
};

struct link_measures {
    uint32_t sizes[SIZES];
    struct link_result results[SIZES][DEPTHS][WAYS];
    /* The proposal of link_propose(): message size and depth of the lanes for large transfers [0] (WEFT_TB_LANES gets two such lanes), for
     * middle-sized transfers [1], and for small transfers [2]. Size 0: there is no such lane. */
    uint32_t lane_size[3], lane_depth[3];
    uint64_t best, lane_sent,
        lane_lost; /* best: bandwidth of lane [0]; the others: messages sent and lost in the measurements of all lanes */
};

void link_propose(struct link_measures *l);
/* Write the proposal to `out` as a value for WEFT_TB_LANES, and return `out`. */
const char *link_lanes_text(const struct link_measures *l, char *out, size_t len);
struct cli_table *link_table(const struct link_measures *l); /* NULL: no memory */

#endif
