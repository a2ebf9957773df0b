/* SPDX-License-Identifier: MIT
 *
 * Computes, from the measurements of a link, their table and a proposal for the lanes of the tb transport (WEFT_TB_LANES).
 */
#include <stdio.h>

#include "cli/probe_link.h"

#define SMALL (32u << 10) /* the smallest transfer that goes over a lane */

const uint32_t link_depths[DEPTHS] = {1, 2, 4, 8, 16, 32, 64};

/* Combine the results of both directions, because a lane has the same size and depth in both directions. */
static struct link_result both_ways(const struct link_result of[WAYS])
{
    const struct link_result *a = &of[THERE], *b = &of[BACK];
    if (!b->tried)
        return *a;
    return (struct link_result){
        .tried = true,
        .refused = a->refused || b->refused,
        .sent = a->sent + b->sent,
        .lost = a->lost + b->lost,
        .damaged = a->damaged + b->damaged,
        .bytes_per_second = a->bytes_per_second < b->bytes_per_second ? a->bytes_per_second : b->bytes_per_second,
    };
}

/* Among the results that reach 95 % of the best bandwidth, choose the size and depth with the fewest bytes in flight. Results with losses
 * count only if all results had losses. Returns the best bandwidth. */
static uint64_t lanes_choose(const struct link_measures *l, uint32_t size_most, uint32_t *size, uint32_t *depth)
{
    uint64_t best = 0, least = UINT64_MAX;
    bool clean = false;
    for (unsigned i = 0; i < SIZES * DEPTHS; i++) {
        const struct link_result both = both_ways(l->results[i / DEPTHS][i % DEPTHS]), *r = &both;
        if (!r->tried || r->refused || r->damaged || l->sizes[i / DEPTHS] > size_most || (clean && r->lost))
            continue;
        if (!clean && r->lost == 0) {
            clean = true;
            best = 0;
        }
        best = r->bytes_per_second > best ? r->bytes_per_second : best;
    }
    *size = *depth = 0;
    for (unsigned i = 0; i < SIZES * DEPTHS && best; i++) {
        const struct link_result both = both_ways(l->results[i / DEPTHS][i % DEPTHS]), *r = &both;
        uint32_t s = l->sizes[i / DEPTHS], d = link_depths[i % DEPTHS];
        if (!r->tried || r->refused || r->damaged || s > size_most || (clean && r->lost) || r->bytes_per_second < best - best / 20 ||
            (uint64_t)s * d >= least)
            continue;
        least = (uint64_t)s * d;
        *size = s;
        *depth = d;
    }
    return best;
}

const char *link_lanes_text(const struct link_measures *l, char *out, size_t len)
{
    size_t n = 0;
    out[0] = '\0';
    for (unsigned i = 4; i-- > 0;) {
        unsigned k = i ? i - 1 : 0;
        if (l->lane_size[k])
            n += (size_t)snprintf(out + n, len - n, "%s%uK:%u", n ? "," : "", l->lane_size[k] >> 10, l->lane_depth[k]);
    }
    return out;
}

void link_propose(struct link_measures *l)
{
    l->best = lanes_choose(l, UINT32_MAX, &l->lane_size[0], &l->lane_depth[0]);
    if (l->lane_size[0] > 4 * SMALL)
        lanes_choose(l, l->lane_size[0] / 4, &l->lane_size[1], &l->lane_depth[1]);
    if (l->lane_size[0] > SMALL)
        lanes_choose(l, SMALL, &l->lane_size[2], &l->lane_depth[2]);
    if (l->lane_size[1] <= SMALL)
        l->lane_size[1] = 0;
    for (unsigned i = 0; i < 3 * SIZES * DEPTHS; i++) {
        unsigned lane = i % 3, size = i / 3 / DEPTHS, depth = i / 3 % DEPTHS;
        const struct link_result r = both_ways(l->results[size][depth]);
        if (l->lane_size[lane] == l->sizes[size] && l->lane_depth[lane] == link_depths[depth]) {
            l->lane_sent += r.sent;
            l->lane_lost += r.lost;
        }
    }
}

static void cell(const struct link_result of[WAYS], char *out, size_t len)
{
    const struct link_result both = both_ways(of), *r = &both;
    if (!r->tried)
        snprintf(out, len, "-");
    else if (r->damaged)
        snprintf(out, len, "DAMAGED");
    else if (r->refused)
        snprintf(out, len, "refused");
    else
        snprintf(out, len, r->lost ? "%.2f %.2f, %llu lost" : "%.2f %.2f", (double)of[THERE].bytes_per_second / 1e9,
                 (double)of[BACK].bytes_per_second / 1e9, (unsigned long long)r->lost);
}

struct cli_table *link_table(const struct link_measures *l)
{
    struct cli_column columns[1 + DEPTHS] = {{"message", true}};
    static const char *const titles[DEPTHS] = {"x 1", "x 2", "x 4", "x 8", "x 16", "x 32", "x 64"};
    char cells[1 + DEPTHS][48];
    const char *row[1 + DEPTHS];
    for (unsigned k = 0; k < DEPTHS; k++)
        columns[1 + k] = (struct cli_column){titles[k], true};
    struct cli_table *t = cli_table_new(columns, 1 + DEPTHS);
    for (unsigned i = 0; i < SIZES && t; i++) {
        bool any = false;
        snprintf(cells[0], sizeof cells[0], "%u KiB", l->sizes[i] >> 10);
        row[0] = cells[0];
        for (unsigned k = 0; k < DEPTHS; k++) {
            any = any || l->results[i][k][THERE].tried;
            cell(l->results[i][k], cells[1 + k], sizeof cells[1 + k]);
            row[1 + k] = cells[1 + k];
        }
        if (any && cli_table_add(t, row)) {
            cli_table_free(t);
            return NULL;
        }
    }
    return t;
}
