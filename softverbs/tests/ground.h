/* SPDX-License-Identifier: MIT
 *
 * A fabric for one test, in a directory of its own. It must be made before the process uses the verbs. ground_remove() removes it.
 */
#ifndef SOFTVERBS_TESTS_GROUND_H
#define SOFTVERBS_TESTS_GROUND_H

#include "../model/model.h"

#include <infiniband/verbs.h>

struct ground {
    char directory[200];
    struct sv_model model; /* the model of the fabric; it may be changed between ground_plan() and ground_make() */
};

/* `word` is as for sv_topology_load(). Both functions print what is wrong, and return 0 or a negative errno. */
int ground_plan(struct ground *, const char *profile, int words, const char *const *word);
/* Makes the fabric and sets the environment of the library. This process and its children are on host `host`, until ground_host() changes
   it. */
int ground_make(struct ground *, unsigned host);
void ground_host(const struct ground *, unsigned host);
struct ibv_context *ground_open(void); /* opens the first device of this process's host; NULL: there is none, or it cannot be opened */
/* Fails if a process is still on the fabric, or a file is left in the directory. */
int ground_remove(struct ground *);

#endif
