/* SPDX-License-Identifier: MIT
 *
 * weft devices: prints the RDMA devices of this host, and how weft would use each.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/device_words.h"
#include "cli/networks.h"

static const char help[] =
    "Usage: weft devices [-v] [--json] [--gid-index N] [DEVICE...]\n"
    "       weft devices --networks [--json]\n"
    "\n"
    "Shows the RDMA devices of this host, a line for each port:\n"
    "\n"
    "  link, speed     the kind of network, and its speed\n"
    "  gid [index]     the address that weft would use, and its position in the device's table of addresses\n"
    "  qps, regions    how many queue pairs and memory regions are in use, and how many the device has\n"
    "  use             rc: weft would use the device with reliable connections; tb: without, as for Thunderbolt ports; or why\n"
    "                  weft cannot use the device (`weft doctor` says what to do)\n"
    "\n"
    "  -v, --verbose    print all that weft knows of each device, its addresses, and why weft would use this one\n"
    "  --gid-index N    show how weft would use the devices with this entry of the table of addresses (default:\n"
    "                   WEFT_GID_INDEX, or weft chooses)\n"
    "  --networks       show the networks that weft can use without RDMA devices, such as TCP, by libfabric\n"
    "  --json           print JSON\n"
    "  -h, --help       print this text\n"
    "\n"
    "Exit status: 0; 1 if the library for RDMA devices is missing, or there is no DEVICE of that name; 2 if the command line is\n"
    "wrong.\n";

static const char *used_of(int64_t used, uint32_t total, char *out, size_t len)
{
    if (used < 0)
        snprintf(out, len, "-/%u", total);
    else
        snprintf(out, len, "%" PRId64 "/%u", used, total);
    return out;
}

static const char *speed_text(double gbits, char *out, size_t len)
{
    if (gbits > 0)
        snprintf(out, len, "%g Gb/s", gbits);
    else
        snprintf(out, len, "-");
    return out;
}

static int add_line(struct cli_table *t, const struct verbs_device *d)
{
    char gid[64] = "-", text[48], qps[48], regions[48], speed[32], use[1024];
    const char *transport = cli_transport_of(d);
    struct verbs_usage u;
    verbs_usage(d->name, &u);
    if (transport)
        snprintf(gid, sizeof gid, "%s [%u]", verbs_gid_text(&d->chosen.gid.raw, text, sizeof text), d->chosen.gid.index);
    snprintf(use, sizeof use, "%s%s", transport ? transport : "not used: ", transport ? "" : d->why_not);
    const char *cells[] = {d->name,
                           d->context ? cli_port_state_text(d->port_attr.state) : "-",
                           d->context ? cli_link_text(d->traits.link) : "-",
                           speed_text(d->gbits, speed, sizeof speed),
                           gid,
                           used_of(u.qps, d->traits.qps, qps, sizeof qps),
                           used_of(u.regions, d->traits.regions, regions, sizeof regions),
                           use};
    return cli_table_add(t, cells);
}

static int print_lines(const struct verbs_device *const *shown, uint32_t count)
{
    static const struct cli_column columns[] = {{"device", false},      {"port", false}, {"link", false},   {"speed", true},
                                                {"gid [index]", false}, {"qps", true},   {"regions", true}, {"use", false}};
    struct cli_table *t = cli_table_new(columns, 8);
    int rc = t ? 0 : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = add_line(t, shown[i]);
    return cli_table_end("devices", t, rc, "devices");
}

static const char *yes(bool value)
{
    return value ? "yes" : "no";
}

static void print_gids(const struct verbs_device *d)
{
    static const union ibv_gid none;
    uint32_t empty = 0;
    char text[48];
    for (uint32_t i = 0; i < d->gid_count; i++) {
        const struct verbs_gid *g = &d->gids[i];
        const char *kind = cli_gid_kind_text(g->kind);
        if (memcmp(&g->raw, &none, sizeof none) == 0) {
            empty++;
            continue;
        }
        bool is_it = d->usable == 0 && g->index == d->chosen.gid.index;
        printf("    gid %-4u         %s%s%s%s%s\n", g->index, verbs_gid_text(&g->raw, text, sizeof text), kind[0] ? ", " : "", kind,
               is_it ? "   <- used: " : "", is_it ? d->chosen.why : "");
    }
    if (empty)
        printf("    and %u empty\n", empty);
}

static void print_traits(const struct verbs_device *d)
{
    const struct verbs_traits *t = &d->traits;
    char access[96], otherwise[96], a[32], b[32], qps[48], pds[48], regions[48], cqs[48];
    struct verbs_usage u;
    verbs_usage(d->name, &u);
    printf("    queue pairs      %s, of kind%s%s%s\n", used_of(u.qps, t->qps, qps, sizeof qps), t->rc ? " RC" : "", t->uc ? " UC" : "",
           t->ud ? " UD" : "");
    printf("    domains          %s\n", used_of(u.pds, t->pds, pds, sizeof pds));
    printf("    regions          %s, of at most %s each\n", used_of(u.regions, t->regions, regions, sizeof regions),
           base_format_bytes(t->region_bytes, a, sizeof a));
    printf("    completion       %s queues, of at most %u entries\n", used_of(u.cqs, t->cqs, cqs, sizeof cqs), t->cqe);
    printf("    operations       send%s%s%s%s\n", t->write ? ", write" : "", t->read ? ", read" : "", t->atomics ? ", atomics" : "",
           t->atomics ? t->atomics_with_cpu ? " (with the processors', too)" : " (not with the processors')" : "");
    printf("    depth            %u %s%s; %u element%s a request; messages of at most %s\n", t->depth,
           t->depth_unit_bytes ? "frames of " : "requests", t->depth_unit_bytes ? base_format_bytes(t->depth_unit_bytes, b, sizeof b) : "",
           t->sge, t->sge == 1 ? "" : "s", base_format_bytes(t->message_bytes, a, sizeof a));
    printf("    shared receives  %s\n", yes(t->srq));
    printf("    flags            %s%s%s\n", cli_access_text(t->access, access, sizeof access), t->access_else ? "; if refused " : "",
           cli_access_text(t->access_else, otherwise, sizeof otherwise));
    printf("    memory           %s, %s\n", t->heap ? "any" : "of mmap, not of malloc",
           t->dmabuf ? "dmabuf if the driver has it" : "no dmabuf");
}

static int print_blocks(const struct verbs_device *const *shown, uint32_t count)
{
    char speed[32];
    for (uint32_t i = 0; i < count; i++) {
        const struct verbs_device *d = shown[i];
        const char *transport = cli_transport_of(d);
        printf("%s%s\n", i ? "\n" : "", d->name);
        printf("    use              %s%s\n", transport ? transport : "not used: ", transport ? "" : d->why_not);
        if (!d->context)
            continue;
        printf("    port             %u, %s, %s, %s, MTU %d\n", d->port, cli_port_state_text(d->port_attr.state),
               cli_link_text(d->traits.link), speed_text(d->gbits, speed, sizeof speed), 128 << d->traits.mtu);
        if (d->interface[0])
            printf("    interface        %s\n", d->interface);
        if (d->attr.fw_ver[0])
            printf("    firmware         %.*s\n", (int)sizeof d->attr.fw_ver, d->attr.fw_ver);
        print_gids(d);
        print_traits(d);
    }
    return cli_flush("devices");
}

/* Choose the named devices, in the order of their names. If no device was named, choose all. */
static int devices_choose(const struct verbs_device **shown, uint32_t *count, const struct verbs_device *all, uint32_t there, char **names)
{
    uint32_t n = 0;
    for (uint32_t i = 0; !names[0] && i < there; i++)
        shown[n++] = &all[i];
    for (; *names; names++) {
        uint32_t i = 0;
        while (i < there && strcmp(all[i].name, *names) != 0)
            i++;
        if (i == there)
            return cli_error("devices", "no device %s on this host; `weft devices` lists them", *names);
        if (n < VERBS_DEVICES_MAX)
            shown[n++] = &all[i];
    }
    *count = n;
    return 0;
}

static int print(const struct verbs_device *const *shown, uint32_t count, bool as_json, bool verbose)
{
    if (as_json) {
        json_t *list = json_array();
        for (uint32_t i = 0; i < count; i++)
            json_array_append_new(list, cli_device_json(shown[i]));
        return cli_json_print("devices", list);
    }
    if (count == 0) {
        fputs("This host has no RDMA device. Its nodes can still use shared memory, and TCP to other hosts\n"
              "(`weft devices --networks`).\n",
              stderr);
        return 0;
    }
    return verbose ? print_blocks(shown, count) : print_lines(shown, count);
}

int cli_devices(int argc, char **argv)
{
    static const struct option longs[] = {
        {"json", no_argument, NULL, 'j'},     {"verbose", no_argument, NULL, 'v'}, {"gid-index", required_argument, NULL, 'g'},
        {"networks", no_argument, NULL, 'n'}, {"help", no_argument, NULL, 'h'},    {0}};
    const struct verbs_device *shown[VERBS_DEVICES_MAX];
    struct verbs_device *all;
    uint32_t there, count = 0;
    bool as_json = false, verbose = false, networks = false, started = false;
    const char *index = NULL;
    int c, wanted = -1;
    while ((c = cli_option("devices", argc, argv, "vh", longs, &started)) != -1) {
        switch (c) {
        case 'j': as_json = true; break;
        case 'v': verbose = true; break;
        case 'g': index = optarg; break;
        case 'n': networks = true; break;
        case 'h': fputs(help, stdout); return cli_flush("devices");
        default: return CLI_USAGE;
        }
    }
    if (networks && (verbose || index || optind < argc))
        return cli_usage("devices", "--networks can only be combined with --json");
    if (networks)
        return cli_networks(as_json);
    if (index) {
        int64_t n;
        if (base_parse_number(index, -1, 255, &n))
            return cli_usage("devices", "--gid-index '%s': expected a number from 0 to 255, or -1", index);
        wanted = (int)n;
    } else if (cli_gid_index(&wanted)) {
        return cli_error("devices", "%s", base_error());
    }
    if (verbs_devices(&all, &there, wanted))
        return cli_error("devices", "%s", base_error());
    int rc = devices_choose(shown, &count, all, there, argv + optind);
    if (rc == 0)
        rc = print(shown, count, as_json, verbose);
    verbs_devices_close(all, there);
    return rc;
}
