/* SPDX-License-Identifier: MIT
 *
 * Makes and checks topologies. Private to the model.
 */
#ifndef SOFTVERBS_MODEL_BUILD_H
#define SOFTVERBS_MODEL_BUILD_H

#include "address.h"

/* Makes switch N and the other built-in topologies. Returns -ENOENT, without a text in `why`, if word[0] is not the name of a built-in
 * topology. */
int sv_topology_builtin(int words, const char *const *word, const struct sv_profile *, struct sv_topology *, struct sv_why *);

/* Checks a whole topology: names, addresses and GUIDs are unique, and cables have two ends. Zeroes what is not used. */
int sv_topology_check(struct sv_topology *, const char *origin, struct sv_why *);

/* Whether all indices and names of a topology are valid. The topology may come from a file that other processes write. */
bool sv_topology_sane(const struct sv_topology *);

/* The size of "HOST/INTERFACE", the place of a device. */
enum { SV_PLACE = SV_NAME + 16 };
const char *sv_place(const struct sv_topology *, uint32_t device, char place[SV_PLACE]);

#endif
