/* SPDX-License-Identifier: MIT
 *
 * weft plan: computes how many regions and queue pairs a traffic pattern needs, with one region for each buffer and with a pool.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/device_words.h"
#include "cluster/cluster.h"

static const char help[] =
    "Usage: weft plan [OPTIONS]\n"
    "\n"
    "Tells whether an RDMA device has enough resources for a program: memory regions (parts of the memory that the device may\n"
    "access) and queue pairs (ends of connections). It compares two ways to give buffers to the device:\n"
    "  regions alone    the program makes a region for each buffer, as many programs do\n"
    "  regions pooled   the buffers are in weft's pool: a region for each gigabyte, and one for weft's own use\n"
    "\n"
    "A node, one process of the program, sends messages to all other nodes of its group. For each message size it has --depth\n"
    "buffers to send from, and --depth buffers to receive into for each other node.\n"
    "\n"
    "  --peers N[,N...]       how many nodes a group has, this node included (default: 2)\n"
    "  --sizes SIZE[,SIZE...] message sizes (default: eight sizes from 4K to 512K)\n"
    "  --depth N[,N...]       buffers for each message size and node (default: 4)\n"
    "  --lanes N              for devices without reliable connections: queue pairs for large data to each other node, 1 to 8\n"
    "                         (default: as in WEFT_TB_LANES, or 3); one more is needed for small messages\n"
    "  --device NAME          compare with this device (default: a Thunderbolt 5 device)\n"
    "  --regions N            assume that the device has this number of regions\n"
    "  --qps N                assume that the device has this number of queue pairs\n"
    "  --json                 print JSON\n"
    "  -h, --help             print this text\n"
    "\n"
    "  weft plan --peers 2,3 --depth 4,5,6,8\n"
    "  weft plan --device rdma_en3 --peers 3 --sizes 64K,1M --depth 16\n"
    "\n"
    "The command assumes that one device leads to all other nodes. If the node has a device for each of them, each device needs\n"
    "fewer queue pairs.\n"
    "Exit status: 0, even if a device has too few; 1 if there is no such device; 2 if the command line is wrong.\n";

enum { LIST = 32 };

struct plan {
    uint64_t peers[LIST], depths[LIST], sizes[LIST];
    unsigned peer_count, depth_count, size_count;
    uint64_t lanes, regions, qps; /* regions, qps: how many the device has */
    uint64_t segment;
    bool reliable;
    char against[64];
};

struct need {
    uint64_t buffers, bytes, regions, pool_regions, qps;
};

static struct need compute(const struct plan *p, uint64_t peers, uint64_t depth)
{
    /* A node has one set of buffers to send from, and one set for each other node to receive into. That makes `peers` sets, because `peers`
     * includes this node. */
    struct need n = {.buffers = p->size_count * depth * peers};
    for (unsigned i = 0; i < p->size_count; i++)
        n.bytes += p->sizes[i] * depth * peers;
    n.regions = n.buffers;
    /* As in the tb transport: one region for each segment of the pool, and one for frames. The devices of rc can register thousands of
     * regions. */
    n.pool_regions = (n.bytes ? (n.bytes - 1) / p->segment + 1 : 0) + 1;
    n.qps = p->reliable ? peers - 1 : (peers - 1) * (1 + p->lanes);
    return n;
}

static const char *left_text(uint64_t budget, uint64_t needed, char *out, size_t len)
{
    int64_t left = (int64_t)budget - (int64_t)needed;
    snprintf(out, len, left < 0 ? "%" PRId64 ": too many" : "%" PRId64, left);
    return out;
}

static int plan_add_row(struct cli_table *t, const struct plan *p, uint64_t peers, uint64_t depth)
{
    struct need n = compute(p, peers, depth);
    char text[6][32], left[3][48], bytes[32];
    snprintf(text[0], 32, "%" PRIu64, peers);
    snprintf(text[1], 32, "%" PRIu64, depth);
    snprintf(text[2], 32, "%" PRIu64, n.buffers);
    snprintf(text[3], 32, "%" PRIu64, n.regions);
    snprintf(text[4], 32, "%" PRIu64, n.pool_regions);
    snprintf(text[5], 32, "%" PRIu64, n.qps);
    const char *cells[] = {text[0], text[1],
                           text[2], base_format_bytes(n.bytes, bytes, sizeof bytes),
                           text[3], left_text(p->regions, n.regions, left[0], sizeof left[0]),
                           text[4], left_text(p->regions, n.pool_regions, left[1], sizeof left[1]),
                           text[5], left_text(p->qps, n.qps, left[2], sizeof left[2])};
    return cli_table_add(t, cells);
}

static int plan_print_table(const struct plan *p)
{
    static const struct cli_column columns[] = {{"peers", true},         {"depth", true}, {"buffers", true},        {"memory", true},
                                                {"regions alone", true}, {"left", true},  {"regions pooled", true}, {"left", true},
                                                {"queue pairs", true},   {"left", true}};
    struct cli_table *t = cli_table_new(columns, 10);
    int rc = t ? 0 : -ENOMEM;
    for (unsigned i = 0; rc == 0 && i < p->peer_count; i++)
        for (unsigned k = 0; rc == 0 && k < p->depth_count; k++)
            rc = plan_add_row(t, p, p->peers[i], p->depths[k]);
    if (rc) {
        cli_table_free(t);
        return cli_error("plan", "no memory for the table of needs" BASE_MEMORY_HINT);
    }
    printf("%u message size%s; %s: %" PRIu64 " regions, %" PRIu64 " queue pairs\n", p->size_count, p->size_count == 1 ? "" : "s",
           p->against, p->regions, p->qps);
    cli_table_print(t, stdout);
    cli_table_free(t);
    return cli_flush("plan");
}

static json_t *side_json(uint64_t needed, uint64_t budget)
{
    return json_pack("{s:I, s:I, s:b}", "needed", (json_int_t)needed, "left", (json_int_t)budget - (json_int_t)needed, "fits",
                     needed <= budget);
}

static int plan_print_json(const struct plan *p)
{
    json_t *rows = json_array();
    for (unsigned i = 0; i < p->peer_count; i++)
        for (unsigned k = 0; k < p->depth_count; k++) {
            struct need n = compute(p, p->peers[i], p->depths[k]);
            json_array_append_new(rows, json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "peers", (json_int_t)p->peers[i], "depth",
                                                  (json_int_t)p->depths[k], "buffers", (json_int_t)n.buffers, "bytes", (json_int_t)n.bytes,
                                                  "region_a_buffer", side_json(n.regions, p->regions), "pool",
                                                  side_json(n.pool_regions, p->regions), "queue_pairs", side_json(n.qps, p->qps)));
        }
    return cli_json_print("plan", json_pack("{s:s, s:I, s:I, s:i, s:o}", "against", p->against, "regions", (json_int_t)p->regions,
                                            "queue_pairs", (json_int_t)p->qps, "sizes", (int)p->size_count, "plans", rows));
}

/* Parse a list such as "2,3,4" or "4K,64K". Returns its length; 0 after an error was printed. */
static unsigned read_list(const char *option, const char *text, bool sizes, uint64_t least, uint64_t most, uint64_t *out)
{
    unsigned n = 0;
    char item[32];
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        uint64_t value = 0;
        bool good = len > 0 && len < sizeof item && n < LIST;
        snprintf(item, sizeof item, "%.*s", (int)(len < sizeof item ? len : 0), at);
        if (good && !sizes)
            good = strspn(item, "0123456789") == len;
        if (good)
            good = base_parse_bytes(item, &value) == 0 && value >= least && value <= most;
        if (!good) {
            cli_usage("plan", "%s '%s': expected %s from %" PRIu64 " to %" PRIu64 ", separated by commas, at most %d", option, text,
                      sizes ? "sizes" : "numbers", least, most, LIST);
            return 0;
        }
        out[n++] = value;
        at += len;
        if (!*at)
            return n;
    }
}

static bool read_one(const char *option, const char *text, uint32_t most, uint64_t *out)
{
    int64_t value;
    if (base_parse_number(text, 1, most, &value)) {
        cli_usage("plan", "%s '%s': expected a number from 1 to %" PRIu32, option, text, most);
        return false;
    }
    *out = (uint64_t)value;
    return true;
}

/* Set the number of lanes to the number in WEFT_TB_LANES. Returns 0, or an exit status after an error was printed. */
static int default_lanes(uint64_t *lanes)
{
    struct cluster_setting_row rows[CLUSTER_SETTINGS_MAX];
    int count = cluster_settings_list(rows, CLUSTER_SETTINGS_MAX, NULL, false);
    if (count < 0)
        return cli_error("plan", "%s", base_error());
    for (int i = 0; i < count; i++) {
        if (strcmp(rows[i].name, "tb_lanes") != 0)
            continue;
        *lanes = 1; /* cluster_settings_list() has checked the value, so count the commas between lanes */
        for (const char *at = rows[i].value; *at; at++)
            *lanes += *at == ',';
    }
    return 0;
}

/* Take the limits from a device, except those that options have set. */
static int read_device(struct plan *p, const char *name, bool regions_said, bool qps_said)
{
    struct verbs_device *all;
    uint32_t count, i = 0;
    if (verbs_devices(&all, &count, -1))
        return cli_error("plan", "%s", base_error());
    while (i < count && strcmp(all[i].name, name) != 0)
        i++;
    int rc = i == count ? cli_error("plan", "no device %s on this host; `weft devices` lists them", name) : 0;
    if (rc == 0) { /* a device that is not usable now is allowed, too */
        const struct verbs_traits *t = &all[i].traits;
        snprintf(p->against, sizeof p->against, "%s", name);
        p->reliable = t->rc;
        p->segment = t->region_bytes ? t->region_bytes : VERBS_SEGMENT;
        p->regions = regions_said ? p->regions : t->regions;
        p->qps = qps_said ? p->qps : t->qps;
    }
    verbs_devices_close(all, count);
    return rc;
}

int cli_plan(int argc, char **argv)
{
    static const struct option longs[] = {{"peers", required_argument, NULL, 'p'},  {"sizes", required_argument, NULL, 's'},
                                          {"depth", required_argument, NULL, 'd'},  {"lanes", required_argument, NULL, 'l'},
                                          {"device", required_argument, NULL, 'D'}, {"regions", required_argument, NULL, 'r'},
                                          {"qps", required_argument, NULL, 'q'},    {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},         {0}};
    struct plan p = {.peers = {2},
                     .depths = {4},
                     .peer_count = 1,
                     .depth_count = 1,
                     .size_count = 8,
                     .segment = VERBS_SEGMENT,
                     .against = "Thunderbolt 5"};
    struct verbs_traits t;
    const struct ibv_device_attr nothing = {0};
    const struct ibv_port_attr no_port = {0};
    bool as_json = false, started = false, regions_said = false, qps_said = false;
    const char *device = NULL;
    unsigned n = 1;
    int c;
    verbs_traits_from(&t, 100, &nothing, &no_port, false); /* the known limits of Thunderbolt 5 */
    p.regions = t.regions;
    p.qps = t.qps;
    for (unsigned i = 0; i < 8; i++)
        p.sizes[i] = UINT64_C(4096) << i;
    while ((c = cli_option("plan", argc, argv, "h", longs, &started)) != -1) {
        switch (c) {
        case 'p': n = p.peer_count = read_list("--peers", optarg, false, 2, 65535, p.peers); break;
        case 's': n = p.size_count = read_list("--sizes", optarg, true, 1, VERBS_SEGMENT, p.sizes); break;
        case 'd': n = p.depth_count = read_list("--depth", optarg, false, 1, 65535, p.depths); break;
        case 'l': n = read_one("--lanes", optarg, FAB_LANES_MAX, &p.lanes); break;
        case 'r':
            n = read_one("--regions", optarg, UINT32_MAX, &p.regions);
            regions_said = true;
            break;
        case 'q':
            n = read_one("--qps", optarg, UINT32_MAX, &p.qps);
            qps_said = true;
            break;
        case 'D': device = optarg; break;
        case 'j': as_json = true; break;
        case 'h': fputs(help, stdout); return cli_flush("plan");
        default: return CLI_USAGE;
        }
        if (n == 0)
            return CLI_USAGE;
    }
    if (optind < argc)
        return cli_usage("plan", "unexpected argument '%s'", argv[optind]);
    if (p.lanes == 0) {
        int rc = default_lanes(&p.lanes);
        if (rc)
            return rc;
    }
    if (device) {
        int rc = read_device(&p, device, regions_said, qps_said);
        if (rc)
            return rc;
    }
    return as_json ? plan_print_json(&p) : plan_print_table(&p);
}
