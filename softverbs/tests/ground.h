/* SPDX-License-Identifier: MIT
 *
 * A fabric of a test's own, in a directory of its own. It is made before the process touches the verbs;
 * its file is there until ground_remove.
 */
#ifndef SOFTVERBS_TESTS_GROUND_H
#define SOFTVERBS_TESTS_GROUND_H

#include "../model/model.h"

#include <infiniband/verbs.h>

struct ground {
    char directory[200];
    struct sv_model model; /* what the fabric is made of: may be changed between the two below */
};

/* words: as for sv_topology_load. Both print what is wrong, and return 0 or a negative errno. */
int ground_plan(struct ground *, const char *profile, int words, const char *const *word);
/* Makes the fabric and sets the environment of the library; this process and its children are on host
 * `host`, until ground_host says otherwise. */
int ground_make(struct ground *, unsigned host);
void ground_host(const struct ground *, unsigned host);
struct ibv_context *ground_open(void); /* the first device of this process's host; NULL: there is none, or it refuses */
/* Fails when a process is still on it, or something stays in the directory. */
int ground_remove(struct ground *);

#endif
