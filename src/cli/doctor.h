/* SPDX-License-Identifier: MIT
 *
 * weft doctor: facts about a host, which are outputs of its own commands, and the findings that follow from them. Facts come from this host
 * or from a directory of captured outputs, so each finding can be tested without such a host.
 */
#ifndef WEFT_CLI_DOCTOR_H
#define WEFT_CLI_DOCTOR_H

#include "cli/device_words.h"

enum doctor_fact {
    DOCTOR_SYSTEM,      /* system.txt       macOS: sw_vers; else uname -sr */
    DOCTOR_LIBRARY,     /* library.txt      "found PATH", or "missing: " and why */
    DOCTOR_DEVICES,     /* devices.json     weft devices --json; an object with "error" when they cannot be listed */
    DOCTOR_ALLOCATION,  /* allocation.txt   "DEVICE domain|queue_pair 0", or an errno */
    DOCTOR_LIMITS,      /* limits.txt       "memlock: BYTES|unlimited", "pool: BYTES", "privileged: yes|no" */
    DOCTOR_UVERBS,      /* uverbs.txt       "PATH yes|no" for each device file: whether it opens */
    DOCTOR_RDMA_CTL,    /* rdma_ctl.txt     rdma_ctl status */
    DOCTOR_THUNDERBOLT, /* thunderbolt.txt  system_profiler SPThunderboltDataType */
    DOCTOR_INTERFACES,  /* interfaces.txt   ifconfig -a */
    DOCTOR_PCI,         /* pci.txt          macOS: system_profiler SPPCIDataType; else a line a GPU from /sys */
    DOCTOR_FACTS
};

struct doctor_facts {
    char *text[DOCTOR_FACTS]; /* NULL: not known */
};

/* doctor_facts.c. Each returns 0 or a negative errno with a sentence. */
int doctor_collect(struct doctor_facts *f);
int doctor_load(struct doctor_facts *f, const char *directory);
int doctor_save(const struct doctor_facts *f, const char *directory);
void doctor_forget(struct doctor_facts *f);

/* doctor_find.c */
const char *doctor_file(enum doctor_fact which); /* its name in a directory */
struct doctor_finding {
    const char *id; /* "port-down" */
    bool stops;     /* RDMA cannot work with it; else it is a warning */
    int rank;       /* lower: more likely the cause */
    char what[160], seen[800], remedy[800];
};
#define DOCTOR_FINDINGS 48u
/* The findings, the most likely cause first; how many. `usable`: how many devices weft would use. A fact that cannot be
 * understood is a finding, too. */
unsigned doctor_find(const struct doctor_facts *f, struct doctor_finding out[DOCTOR_FINDINGS], unsigned *usable);

#endif
