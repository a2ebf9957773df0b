/* SPDX-License-Identifier: MIT
 *
 * weft probe: parses the options, and runs the probe.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/probe.h"

static const char help[] =
    "Usage: weft probe regions|pool|memory|queue|link [OPTIONS]\n"
    "\n"
    "Tests what an RDMA device really can do, because some devices report wrong limits or damage data. The command stops at the\n"
    "first sign of damage, and frees what it has used of the device, even when it is interrupted. The probes are:\n"
    "\n"
    "  regions   how many memory regions the device has: register memory until the device refuses\n"
    "  pool      whether data arrives undamaged: send, receive, write and read many buffers in one region, and check every byte\n"
    "  memory    which kinds of memory the device can register: malloc, mmap, a file, huge pages, a GPU's, ...\n"
    "  queue     how many queue pairs and protection domains the device has, which depths it grants, and what it does with more\n"
    "            requests than the depth\n"
    "  link      how fast a link is, and how many messages are lost; proposes a value for WEFT_TB_LANES\n"
    "\n"
    "Options:\n"
    "  --device NAME     test this device (default: the fastest that can be used)\n"
    "  --size SIZE       size of one region or buffer (default: 512K); link: send only messages of this size (default: 4K to 1M)\n"
    "  --count N         regions: the most regions (default: 10 more than the device reports, at most 1024)\n"
    "                    pool: the number of buffers (default: 256)\n"
    "                    queue: the most queue pairs and domains (default: 2 more than the device reports, at most 256)\n"
    "                    link: only this number of messages on their way (default: 1, 2, 4, ... to 64)\n"
    "  --to NAME         pool, link: the other end is this device of the same host (default: the same device)\n"
    "  --listen ADDRESS  pool, queue, link: be the other end for a probe on another host, and wait for it at HOST:PORT\n"
    "  --peer ADDRESS    pool, queue, link: connect to the other end, which was started with --listen\n"
    "  --gid-index N     use this entry of the table of addresses (default: WEFT_GID_INDEX, or weft chooses)\n"
    "  --markdown        print a table in Markdown, for a report\n"
    "  --json            print JSON\n"
    "  -h, --help        print this text\n"
    "\n"
    "  weft probe regions --device rdma_en3 --markdown\n"
    "  weft probe pool --listen 0.0.0.0:7700     # on one host\n"
    "  weft probe pool --peer mac2.local:7700    # on the host at the other end of the cable\n"
    "\n"
    "Exit status: 0; 1 if there is no such device, or the device did not work as it should; 2 if the command line is wrong;\n"
    "128 + N if signal N ended the command.\n";

static int probe_number(const char *option, const char *text, int low, int high, int64_t *out)
{
    return base_parse_number(text, low, high, out) ? cli_usage("probe", "%s '%s': expected a number from %d to %d", option, text, low, high)
                                                   : 0;
}

static const struct kind {
    const char *name;
    int (*run)(const struct probe *p);
} kinds[] = {{"regions", probe_regions}, {"pool", probe_pool}, {"memory", probe_memory}, {"queue", probe_queue}, {"link", probe_link}};

static const struct kind *probe_find(const char *word)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, word) == 0)
            return &kinds[i];
    return NULL;
}

/* Parse the options. Returns 0, an exit status after an error was printed, or -1 if --help was given. `*out`: the probe to run. */
static int read_options(struct probe *p, const struct kind **out, int argc, char **argv)
{
    static const struct option longs[] = {{"device", required_argument, NULL, 'd'},
                                          {"size", required_argument, NULL, 's'},
                                          {"count", required_argument, NULL, 'n'},
                                          {"to", required_argument, NULL, 't'},
                                          {"listen", required_argument, NULL, 'l'},
                                          {"peer", required_argument, NULL, 'p'},
                                          {"gid-index", required_argument, NULL, 'g'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"markdown", no_argument, NULL, 'm'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    bool started = false, gid_said = false;
    int64_t n = 0;
    int c;
    while ((c = cli_option("probe", argc, argv, "h", longs, &started)) != -1) {
        switch (c) {
        case 'd': p->name = optarg; break;
        case 't': p->to = optarg; break;
        case 'l': p->listen = optarg; break;
        case 'p': p->peer = optarg; break;
        case 'j': p->json = true; break;
        case 'm': p->markdown = true; break;
        case 'h': return -1;
        case 's':
            if (base_parse_bytes(optarg, &p->size) || p->size < 64 || p->size > VERBS_SEGMENT)
                return cli_usage("probe", "--size '%s': expected a size from 64 to 1G", optarg);
            break;
        case 'n':
            if (probe_number("--count", optarg, 1, 1 << 20, &n))
                return CLI_USAGE;
            p->count = (uint32_t)n;
            break;
        case 'g':
            if (probe_number("--gid-index", optarg, -1, 255, &n))
                return CLI_USAGE;
            p->gid_index = (int)n;
            gid_said = true;
            break;
        default: return CLI_USAGE;
        }
    }
    if (optind == argc)
        return cli_usage("probe", "the probe is missing: name regions, pool, memory, queue or link");
    const struct kind *k = probe_find(argv[optind]);
    if (!k)
        return cli_usage("probe", "'%s': expected regions, pool, memory, queue or link", argv[optind]);
    if (optind + 1 < argc)
        return cli_usage("probe", "unexpected argument '%s'", argv[optind + 1]);
    *out = k;
    p->kind = k->name;
    bool link = strcmp(p->kind, "link") == 0, pool = link || strcmp(p->kind, "pool") == 0;
    if ((p->to && !pool) || ((p->listen || p->peer) && !pool && strcmp(p->kind, "queue") != 0))
        return cli_usage("probe", "--to is only for the probes pool and link; --listen and --peer are only for pool, link and queue");
    if (link && p->size && (p->size < 4096 || p->size > 1 << 20 || (p->size & (p->size - 1))))
        return cli_usage("probe", "--size: with the probe `link`, expected 4K, 8K, 16K, ... or 1M");
    if (link && p->count && (p->count > 64 || (p->count & (p->count - 1))))
        return cli_usage("probe", "--count: with the probe `link`, expected 1, 2, 4, 8, 16, 32 or 64");
    if ((p->to != NULL) + (p->listen != NULL) + (p->peer != NULL) > 1)
        return cli_usage("probe", "--to, --listen and --peer exclude each other: give only one of them");
    if (p->json && p->markdown)
        return cli_usage("probe", "--json and --markdown exclude each other: give only one of them");
    if (!gid_said && cli_gid_index(&p->gid_index))
        return cli_error("probe", "%s", base_error());
    return 0;
}

int cli_probe(int argc, char **argv)
{
    struct probe p = {.gid_index = -1};
    const struct kind *k = NULL;
    int rc = read_options(&p, &k, argc, argv);
    if (rc == -1) {
        fputs(help, stdout);
        return cli_flush("probe");
    }
    if (rc)
        return rc;
    cli_catch_signals();
    rc = k->run(&p);
    if (!cli_stopped())
        return rc;
    probe_error(&p, "stopped by signal %d; everything was freed", cli_stopped());
    return 128 + cli_stopped();
}
