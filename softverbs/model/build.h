/* SPDX-License-Identifier: MIT
 *
 * What the makers of a topology share. Inside the model only.
 */
#ifndef SOFTVERBS_MODEL_BUILD_H
#define SOFTVERBS_MODEL_BUILD_H

#include "address.h"

/* switch N and its kin; -ENOENT without a word when word[0] is none of them. */
int sv_topology_builtin(int words, const char *const *word, const struct sv_profile *, struct sv_topology *, struct sv_why *);

/* What must be true of the whole: names, addresses and GUIDs are not given twice, cables have two ends.
 * Clears what is not. */
int sv_topology_check(struct sv_topology *, const char *origin, struct sv_why *);

/* Whether all indices and names are such as can be used: a topology from a file that other processes write. */
bool sv_topology_sane(const struct sv_topology *);

/* "HOST/INTERFACE" of a device. */
enum { SV_PLACE = SV_NAME + 16 };
const char *sv_place(const struct sv_topology *, uint32_t device, char place[SV_PLACE]);

#endif
