/* SPDX-License-Identifier: MIT
 *
 * The tb protocol in random schedules. Each seed determines one simulated world.
 *
 * WEFT_TEST_SEED=N: only that seed, and print details. WEFT_TEST_LONG=1: many seeds. Arguments: FIRST COUNT.
 */
#include "sim.h"

#include <time.h>

static uint32_t rate(struct world *w)
{
    static const uint32_t rates[] = {0, 0, 50, 1000, 5000, 20000};
    return rates[sim_below(w, sim_below(w, 4) ? 5 : 6)];
}

void sim_draw(struct config *c, uint64_t seed)
{
    static struct world draw; /* used only for its random numbers */
    struct world *w = &draw;
    w->random = seed ^ 0x7ab5eed;
    *c = (struct config){.seed = seed};
    c->nodes = sim_below(w, 2) ? 2 : 2 + (uint32_t)sim_below(w, NODES_MAX - 1);
    c->lane_count = (uint32_t)sim_below(w, LANES_MAX + 1);
    for (uint32_t i = 0; i < c->lane_count; i++) {
        static const uint32_t sizes[] = {4096, 8192, 16384, 65536};
        uint32_t first = i && sim_below(w, 2) ? c->lanes[0].message : sizes[sim_below(w, 4)];
        uint32_t depth = 1 + (uint32_t)sim_below(w, sim_below(w, 2) ? 4 : TB_LANE_DEPTH);
        c->lanes[i] = (struct lane_config){.message = first, .depth = depth};
    }
    c->credits = sim_below(w, 3) != 0;
    c->pool_bytes = UINT64_C(1) << (20 + sim_below(w, 3));
    c->segment = sim_below(w, 2) ? UINT64_C(1) << 30 : UINT64_C(1) << (15 + sim_below(w, 5));
    c->control_depth = sim_below(w, 2) ? 64 : 4 + (uint32_t)sim_below(w, 40);
    c->delay_most = sim_below(w, 4) ? 5 * US : 500 * US;
    c->idle_most = sim_below(w, 3) ? 50 * US : sim_below(w, 2) ? 1 * MS : 20 * MS;
    c->handle_most = sim_below(w, 2) ? 10 * US : sim_below(w, 2) ? 2 * MS : 20 * MS;
    c->ops = 200 + (uint32_t)sim_below(w, 800);
    c->burst = sim_below(w, 2) ? 1 : 1 + (uint32_t)sim_below(w, 30);
    c->words = (uint32_t)sim_below(w, 30), c->shared = (uint32_t)sim_below(w, 30);
    c->messages = sim_below(w, 2) ? 10 : (uint32_t)sim_below(w, 60);
    if (sim_below(w, 8) == 0)
        c->words = c->shared = 0, c->messages = 100;
    c->biggest = 6 + (uint32_t)sim_below(w, 14);
    c->faults_percent = sim_below(w, 2) ? 100 : 80;
    c->wrap = sim_below(w, 4) == 0;
    c->heat = sim_below(w, 6) == 0;
    c->one_sided = sim_below(w, 4) == 0;
    struct faults *f = &c->faults;
    if (sim_below(w, 5) == 0)
        return; /* a world without faults */
    f->lose = sim_below(w, 10) || c->nodes > 2 ? rate(w) : 60000;
    if (f->lose == 60000 && sim_below(w, 2)) /* frames with credit are lost, and no other frame follows */
        c->messages = 100, c->words = c->shared = 0, c->one_sided = true;
    f->lose_lane = rate(w), f->twice = rate(w), f->spoil = rate(w), f->spoil_lane = rate(w);
    f->reorder = rate(w), f->withhold = rate(w) / 4, f->refuse = rate(w);
    f->stop = sim_below(w, 3) ? 0 : 50, f->hang = sim_below(w, 2) ? 0 : sim_below(w, 2) ? 1000 : 10000;
    /* These two faults would repair links that a bug has stopped for ever, so they are rare. */
    if (f->lose == 60000 && c->one_sided)
        c->handle_most = 500 * MS, f->stop = 0;
    f->restart = sim_below(w, 5) || f->lose == 60000 ? 0 : 2000, f->pull = sim_below(w, 3) ? 0 : 5000;
    if (sim_below(w, 5) || f->lose == 60000)
        return;
    /* Short outages with many transfers: records from before an outage arrive after it, about transfers that were given up meanwhile and
     * whose numbers are used again. */
    f->deaf = f->pull = 30000;
    c->puts = sim_below(w, 2);
    c->nodes = 2;
    c->biggest = 14 + (uint32_t)sim_below(w, 3);
    c->words = c->shared = c->messages = c->puts ? 0 : 5;
    c->idle_most = 300 * US, c->burst = 2;
    if (c->lane_count == 0)
        c->lane_count = 1;
    c->lanes[0] = (struct lane_config){.message = 4096, .depth = 16};
}

int main(int argc, char **argv)
{
    const char *seed = getenv("WEFT_TEST_SEED"), *is_long = getenv("WEFT_TEST_LONG");
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1, count = argc > 2 ? strtoull(argv[2], NULL, 0) : 200, steps = 0;
    if (is_long && *is_long && *is_long != '0' && argc < 2)
        count = 5000;
    if (seed)
        first = strtoull(seed, NULL, 0), count = 1;
    bool tell = seed || getenv("WEFT_TEST_TELL");
    for (uint64_t i = first; i < first + count; i++) {
        struct config c;
        sim_draw(&c, i);
        steps += sim_run(&c, tell);
    }
    printf("%llu worlds, %llu steps: all bytes are correct\n", (unsigned long long)count, (unsigned long long)steps);
    return 0;
}
