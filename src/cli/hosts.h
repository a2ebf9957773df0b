/* SPDX-License-Identifier: MIT
 *
 * The hosts of a cluster that is to be launched: see hosts.c.
 */
#ifndef WEFT_CLI_HOSTS_H
#define WEFT_CLI_HOSTS_H

#include "cli/launch.h"

#define HOSTS_TOLD_MAX 128

struct hosts {
    char **hosts; /* [nodes] */
    char *told[HOSTS_TOLD_MAX + 1];
    unsigned count;
    char coord[160];
    char self[4096];   /* this command */
    char hostfile[32]; /* where the nodes find it, when it was a pipe */
};
/* The hostfile that counts: the option's, else the environment's. NULL: none. */
const char *hosts_file(const char *option);
/* Fills in what the hostfile says of the launch, and what a launch needs that has none. 0, or the exit status, said. What
 * `l` points at afterwards is `h`'s. */
int hosts_apply(struct launch *l, struct hosts *h, const char *hostfile);
void hosts_free(struct hosts *h, uint32_t nodes);

#endif
