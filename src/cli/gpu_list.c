/* SPDX-License-Identifier: MIT
 *
 * weft gpus: the GPUs of this host, and what weft can do with each.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/command.h"
#include "cli/doctor.h"
#include "weft/gpu.h"

static const char help[] =
    "Usage: weft gpus [--json]\n"
    "\n"
    "Shows the GPUs of this host, a line for each:\n"
    "\n"
    "  gpu            the name of the GPU\n"
    "  PCIe, most     generation and lanes of the PCIe link, now and at most; the link of an idle GPU may be slow\n"
    "  NVLink         the other GPUs that NVLink connects with this GPU\n"
    "  nearest RDMA   the nearest RDMA device, and how near it is. staged: no RDMA device can access the GPU's memory, so data\n"
    "                 for other hosts is copied through the host's memory; a line below the table says why\n"
    "  use            whether weft can use the GPU; if not, why, and what to do\n"
    "\n"
    "The last line, host, is the processor, which can stand in for a GPU in tests.\n"
    "\n"
    "      --json   print JSON\n"
    "  -h, --help   print this text\n"
    "\n"
    "Exit status: 0; 2 if the command line is wrong.\n";

static const char *link_text(uint32_t generation, uint32_t lanes, char out[32])
{
    if (generation && lanes)
        snprintf(out, 32, "%u x%u", generation, lanes);
    else
        snprintf(out, 32, "-");
    return out;
}

static const char *distance_text(uint32_t distance)
{
    static const char *const texts[] = {"", "same switch", "same host bridge", "same NUMA node", "other NUMA node"};
    return distance < sizeof texts / sizeof *texts ? texts[distance] : "";
}

static const char *peers_text(uint64_t peers, char out[512])
{
    size_t n = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < 64; i++)
        if (peers >> i & 1)
            n += (size_t)snprintf(out + n, 512 - n, "%scuda:%u", n ? " " : "", i);
    return n ? out : "-";
}

static int gpus_add_line(struct cli_table *t, const weft_gpu_info *g)
{
    char memory[32], now[32], most[32], peers[512], near[128], use[400];
    snprintf(near, sizeof near, "%s%s%s%s%s", g->rdma[0] ? g->rdma : "-", g->rdma[0] ? " (" : "", distance_text(g->rdma_distance),
             g->rdma[0] ? ")" : "", g->rdma[0] && g->no_rdma[0] ? ", staged" : "");
    snprintf(use, sizeof use, "%s%s%s%s", g->usable ? "yes" : "no: ", g->usable ? "" : g->why, g->usable || !g->remedy[0] ? "" : "; ",
             g->usable ? "" : g->remedy);
    const char *cells[] = {g->name,
                           g->model,
                           g->memory_bytes ? base_format_bytes(g->memory_bytes, memory, sizeof memory) : "-",
                           link_text(g->pcie_generation, g->pcie_lanes, now),
                           link_text(g->pcie_generation_most, g->pcie_lanes_most, most),
                           peers_text(g->nvlink_peers, peers),
                           near,
                           use};
    return cli_table_add(t, cells);
}

static json_t *gpus_json_of(const weft_gpu_info *g)
{
    json_t *peers = json_array();
    for (unsigned i = 0; i < 64; i++)
        if (g->nvlink_peers >> i & 1) {
            char name[16];
            snprintf(name, sizeof name, "cuda:%u", i);
            json_array_append_new(peers, json_string(name));
        }
    return json_pack("{s:s, s:s, s:I, s:s, s:b, s:{s:i, s:i, s:i, s:i}, s:o, s:s, s:s, s:b, s:s, s:s, s:s, s:s}", "name", g->name, "model",
                     g->model, "memory_bytes", (json_int_t)g->memory_bytes, "pci", g->pci, "external", g->external, "pcie", "generation",
                     (int)g->pcie_generation, "lanes", (int)g->pcie_lanes, "generation_most", (int)g->pcie_generation_most, "lanes_most",
                     (int)g->pcie_lanes_most, "nvlink_peers", peers, "rdma", g->rdma, "rdma_distance", distance_text(g->rdma_distance),
                     "usable", g->usable, "why", g->why, "remedy", g->remedy, "no_rdma", g->no_rdma, "no_rdma_remedy", g->no_rdma_remedy);
}

json_t *cli_gpus_json(void)
{
    json_t *list = json_array();
    weft_gpu_info g;
    for (uint32_t i = 0; weft_gpu_look(i, &g, sizeof g) == 0; i++)
        json_array_append_new(list, gpus_json_of(&g));
    return list;
}

/* Print below the table why data between a GPU and other hosts goes through the host's memory. */
static void gpus_print_staged(const weft_gpu_info *g)
{
    if (g->usable && g->rdma[0] && g->no_rdma[0])
        printf("%s is staged: %s%s%s\n", g->name, g->no_rdma, g->no_rdma_remedy[0] ? "; " : "", g->no_rdma_remedy);
}

static int gpus_print(struct cli_table *t)
{
    weft_gpu_info g;
    int rc = t ? 0 : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && weft_gpu_look(i, &g, sizeof g) == 0; i++)
        rc = gpus_add_line(t, &g);
    if (rc)
        cli_error("gpus", "no memory for the table of GPUs" BASE_MEMORY_HINT);
    else
        cli_table_print(t, stdout);
    for (uint32_t i = 0; rc == 0 && weft_gpu_look(i, &g, sizeof g) == 0; i++)
        gpus_print_staged(&g);
    cli_table_free(t);
    return rc ? CLI_FAILED : cli_flush("gpus");
}

int cli_gpus(int argc, char **argv)
{
    static const struct cli_column columns[] = {{"gpu", false},  {"model", false},  {"memory", true},        {"PCIe", false},
                                                {"most", false}, {"NVLink", false}, {"nearest RDMA", false}, {"use", false}};
    static const struct option options[] = {{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    bool started = false, json = false;
    for (int c; (c = cli_option("gpus", argc, argv, "h", options, &started)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return cli_flush("gpus");
        }
        if (c != 'j')
            return CLI_USAGE;
        json = true;
    }
    if (optind < argc)
        return cli_usage("gpus", "'%s': no argument is expected", argv[optind]);
    if (!json)
        return gpus_print(cli_table_new(columns, 8));
    return cli_json_print("gpus", cli_gpus_json());
}
