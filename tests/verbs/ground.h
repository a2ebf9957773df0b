/* SPDX-License-Identifier: MIT
 *
 * A softverbs fabric for one test, made with the command as users make theirs; weft finds it through the environment.
 */
#ifndef WEFT_TESTS_VERBS_GROUND_H
#define WEFT_TESTS_VERBS_GROUND_H

#include <stdbool.h>

/* argv of every test: PATH-OF-softverbs PATH-OF-libibverbs.so.1 PROFILE. Makes the fabric "test" in a directory of its own, and sets the
   environment for host 0; `topology` is "mesh 2" or similar. 0, or a negative errno after a message. */
int ground_make(char **argv, const char *topology);
/* Fails if a process still holds an object on the fabric, including a leaked protection domain. */
int ground_remove(void);
/* Runs softverbs with these words. Returns its exit status. */
int ground_softverbs(const char *words);
const char *ground_profile(void);
bool ground_is_thunderbolt(void);

#endif
