/* SPDX-License-Identifier: MIT
 *
 * weft doctor: derives findings from facts about a host. The facts are outputs of the host's commands. They can also come from a directory,
 * so that findings can be tested without a host that has the problem.
 */
#ifndef WEFT_CLI_DOCTOR_H
#define WEFT_CLI_DOCTOR_H

#include "cli/device_words.h"

enum doctor_fact {
    DOCTOR_SYSTEM,      /* system.txt       macOS: sw_vers; else uname -sr */
    DOCTOR_LIBRARY,     /* library.txt      "found PATH", or "missing: REASON" */
    DOCTOR_DEVICES,     /* devices.json     weft devices --json; an object with "error" if the devices cannot be listed */
    DOCTOR_ALLOCATION,  /* allocation.txt   "DEVICE domain|queue_pair ERRNO"; ERRNO 0: the object could be allocated */
    DOCTOR_LIMITS,      /* limits.txt       "memlock: BYTES|unlimited", "pool: BYTES", "transport: NAME", "provider: NAME,...", "interface:
                           NAME", "device: NAME", "gpu_rdma: no", "privileged: yes|no" */
    DOCTOR_UVERBS,      /* uverbs.txt       "PATH yes|no" for each device file: whether the file can be opened */
    DOCTOR_RDMA_CTL,    /* rdma_ctl.txt     rdma_ctl status */
    DOCTOR_THUNDERBOLT, /* thunderbolt.txt  system_profiler SPThunderboltDataType */
    DOCTOR_INTERFACES,  /* interfaces.txt   ifconfig -a */
    DOCTOR_PCI,         /* pci.txt          macOS: system_profiler SPPCIDataType; else one line for each GPU and network adapter in /sys */
    DOCTOR_GPUS,        /* gpus.json        weft gpus --json */
    DOCTOR_NETWORKS,    /* networks.json    weft devices --networks --json; an object with "error" if the networks cannot be listed */
    DOCTOR_FACTS
};

struct doctor_facts {
    char *text[DOCTOR_FACTS]; /* NULL: not known */
};

/* doctor_facts.c. Each returns 0, or a negative errno with base_error(). */
int doctor_collect(struct doctor_facts *f);
int doctor_load(struct doctor_facts *f, const char *directory);
int doctor_save(const struct doctor_facts *f, const char *directory);
void doctor_forget(struct doctor_facts *f);

/* doctor_find.c */
const char *doctor_file(enum doctor_fact which); /* the name of the fact's file */
struct doctor_finding {
    const char *id; /* "port-down" */
    bool stops;     /* the finding prevents RDMA; false: it is a warning */
    int rank;       /* the lower the rank, the more likely this is the cause */
    char what[160], seen[800], remedy[800];
};
#define DOCTOR_FINDINGS 48u
/* Fill in the findings, the most likely cause first, and return their number. `usable`: number of devices that weft can use. A fact that
 * cannot be parsed is a finding, too. */
unsigned doctor_find(const struct doctor_facts *f, struct doctor_finding out[DOCTOR_FINDINGS], unsigned *usable);

/* doctor_gpus.c: how data moves between the memory of a GPU (arenas) and other hosts. */
struct doctor_gpu {
    char name[16], model[96];
    bool direct;      /* an RDMA device accesses the memory; false: staged, through the host's memory */
    bool warn;        /* data is staged, although it could be direct */
    char device[64];  /* the RDMA device with which nodes register the memory; "": there is none */
    char nearest[64]; /* another RDMA device that weft could use, and which is at least as near to the GPU; "": none is known */
    char why[300], remedy[300];
};
#define DOCTOR_GPUS_MOST 64u
/* Describes the usable GPUs, except the GPU `host`. Returns their number. */
unsigned doctor_gpus(const struct doctor_facts *f, struct doctor_gpu out[DOCTOR_GPUS_MOST]);
json_t *cli_networks_json(void); /* networks.c: collects the fact DOCTOR_NETWORKS from this host */
json_t *cli_gpus_json(void);     /* gpu_list.c: collects the fact DOCTOR_GPUS from this host */

#endif
