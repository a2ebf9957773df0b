/* SPDX-License-Identifier: MIT
 *
 * weft doctor: reports what prevents RDMA on this host, and how to repair it.
 */
#include <string.h>

#include "cli/doctor.h"

static const char help[] =
    "Usage: weft doctor [--json] [--facts DIR] [--save DIR]\n"
    "\n"
    "Finds out why RDMA does not work on this host, or why it is slow, and says what to do. Prints the most likely cause first.\n"
    "Then prints for each GPU whether an RDMA device accesses its memory directly.\n"
    "\n"
    "  --facts DIR   examine what --save has written to DIR, instead of this host\n"
    "  --save DIR    also write what the command has seen to DIR, so that others can examine it\n"
    "  --json        print JSON\n"
    "  -h, --help    print this text\n"
    "\n"
    "The command changes nothing on the host. To test a device, it uses one protection domain and one queue pair of the device\n"
    "for a moment.\n"
    "Exit status: 0 if nothing prevents RDMA; 1 if something does; 2 if the command line is wrong.\n";

/* The memory of each GPU; a list for JSON. */
static json_t *gpus_list(const struct doctor_gpu *gpus, unsigned n)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:s, s:b, s:s, s:s, s:s, s:s}", "gpu", gpus[i].name, "direct", gpus[i].direct, "device",
                                              gpus[i].device, "nearest", gpus[i].nearest, "why", gpus[i].why, "remedy", gpus[i].remedy));
    return list;
}

static void gpus_print(const struct doctor_gpu *gpus, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (gpus[i].direct && gpus[i].nearest[0])
            printf(
                "GPU %s (%s): %s accesses its memory directly (dmabuf). %s may be nearer to it (`weft gpus`): to use %s, name it first in "
                "WEFT_RAILS.\n",
                gpus[i].name, gpus[i].model, gpus[i].device, gpus[i].nearest, gpus[i].nearest);
        else if (gpus[i].direct)
            printf("GPU %s (%s): %s accesses its memory directly (dmabuf); `weft probe memory` tries it.\n", gpus[i].name, gpus[i].model,
                   gpus[i].device);
        else
            printf("GPU %s (%s): data between its memory and other hosts is copied through the host's memory: %s.\n", gpus[i].name,
                   gpus[i].model, gpus[i].why);
}

static int doctor_print_json(const struct doctor_finding *all, unsigned count, unsigned usable, bool good, json_t *gpus)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:s, s:b, s:s, s:s, s:s}", "id", all[i].id, "stops", all[i].stops, "what", all[i].what,
                                              "seen", all[i].seen, "remedy", all[i].remedy));
    return cli_json_print("doctor",
                          json_pack("{s:b, s:i, s:o, s:o}", "ok", good, "usable_devices", (int)usable, "findings", list, "gpus", gpus));
}

static int print_people(const struct doctor_finding *all, unsigned count, unsigned usable, bool known, const struct doctor_gpu *gpus,
                        unsigned n)
{
    for (unsigned i = 0; i < count; i++)
        printf("%s%u. %s%s\n   seen: %s\n   do:   %s\n", i ? "\n" : "", i + 1, all[i].what, all[i].stops ? "" : " (a warning)", all[i].seen,
               all[i].remedy);
    if (count == 0)
        printf("Nothing found that prevents RDMA here.\n");
    if (!known) {
        printf("\nWhich RDMA devices can be used is not known.\n");
        return cli_flush("doctor");
    }
    bool networks = true;
    for (unsigned i = 0; i < count; i++)
        networks = networks && strcmp(all[i].id, "no-network") != 0;
    printf("%s%u RDMA device%s can be used.%s%s\n", count ? "\n" : "", usable, usable == 1 ? "" : "s",
           usable ? "" : " Nodes on this host can still use shared memory",
           usable     ? ""
           : networks ? " and, to other hosts, the networks that `weft devices --networks` lists."
                      : ", but cannot reach other hosts.");
    gpus_print(gpus, n);
    return cli_flush("doctor");
}

int cli_doctor(int argc, char **argv)
{
    static const struct option longs[] = {{"json", no_argument, NULL, 'j'},
                                          {"facts", required_argument, NULL, 'f'},
                                          {"save", required_argument, NULL, 's'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    static struct doctor_finding found[DOCTOR_FINDINGS];
    static struct doctor_gpu gpus[DOCTOR_GPUS_MOST];
    const char *facts_dir = NULL, *save_dir = NULL;
    bool as_json = false, started = false;
    struct doctor_facts facts;
    unsigned usable;
    int c;
    while ((c = cli_option("doctor", argc, argv, "h", longs, &started)) != -1) {
        switch (c) {
        case 'j': as_json = true; break;
        case 'f': facts_dir = optarg; break;
        case 's': save_dir = optarg; break;
        case 'h': fputs(help, stdout); return cli_flush("doctor");
        default: return CLI_USAGE;
        }
    }
    if (optind < argc)
        return cli_usage("doctor", "unexpected argument '%s'", argv[optind]);
    int rc = facts_dir ? doctor_load(&facts, facts_dir) : doctor_collect(&facts);
    if (rc == 0 && save_dir)
        rc = doctor_save(&facts, save_dir);
    if (rc) {
        rc = cli_error("doctor", "%s", base_error());
    } else {
        unsigned count = doctor_find(&facts, found, &usable);
        bool good = count == 0 || !found[0].stops;
        bool known = count == 0 || strcmp(found[0].id, "unreadable-fact") != 0;
        unsigned n = doctor_gpus(&facts, gpus);
        rc = as_json ? doctor_print_json(found, count, usable, good, gpus_list(gpus, n))
                     : print_people(found, count, usable, known, gpus, n);
        if (rc == 0 && !good)
            rc = CLI_FAILED;
    }
    doctor_forget(&facts);
    return rc;
}
