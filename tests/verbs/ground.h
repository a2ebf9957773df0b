/* SPDX-License-Identifier: MIT
 *
 * A softverbs fabric of a test's own, made with the command as people make theirs; weft finds it through its environment.
 */
#ifndef WEFT_TESTS_VERBS_GROUND_H
#define WEFT_TESTS_VERBS_GROUND_H

#include <stdbool.h>

/* argv of every test: PATH-OF-softverbs PATH-OF-libibverbs.so.1 PROFILE. Makes the fabric "test" in a directory of its own
 * and sets the environment for host 0; `topology` is "mesh 2" or the like. 0, or a negative errno after a message. */
int ground_make(char **argv, const char *topology);
/* Fails when somebody still holds something on the fabric, a leaked protection domain included. */
int ground_remove(void);
/* softverbs with these words. Its exit status. */
int ground_softverbs(const char *words);
const char *ground_profile(void);
bool ground_is_thunderbolt(void);

#endif
