/* SPDX-License-Identifier: MIT
 *
 * Applies a hostfile to a launch: see hosts.c.
 */
#ifndef WEFT_CLI_HOSTS_H
#define WEFT_CLI_HOSTS_H

#include <limits.h>

#include "cli/launch.h"
#include "cli/standing.h"

#define HOSTS_TOLD_MAX 128

struct hosts {
    /* [nodes], for hosts_apply_cluster(): which standing node starts each node. NULL: hosts_apply_cluster() chooses. */
    const uint32_t *pick;
    char **hosts;        /* [nodes] names of hosts, for struct launch.ssh */
    struct hosts_named { /* [nodes] the names of nodes in messages: host and number. If a standing node starts the node, the number is that
                            of the standing node */
        char *host;      /* NULL: the node has no name */
        uint32_t number;
    } * named;     /* NULL: nodes have only their own numbers */
    bool emulated; /* hosts_apply_cluster(): the cluster has emulated hosts */
    char cluster[STANDING_NAME_MAX + 1];
    char *told[HOSTS_TOLD_MAX + 1];
    unsigned count; /* entries of `told` */
    char coord[160];
    char self[4096];   /* path of this command */
    char hostfile[32]; /* path from which the nodes read the hostfile, if it was a pipe */
};
/* The path of the hostfile: the option's or, without the option, the environment's. Returns NULL if there is no hostfile. */
const char *hosts_file(const char *option);
/* Set the members of `l` that the hostfile determines. Without a hostfile, set them to their defaults. `l` then points into `h`. Returns 0,
 * or the exit status after an error was printed. */
int hosts_apply(struct launch *l, struct hosts *h, const char *hostfile);
/* Applies a standing cluster (weft-up(1)) instead of a hostfile: one node for each living node of that cluster, or l->nodes nodes. */
int hosts_apply_cluster(struct launch *l, struct hosts *h, const char *cluster);
/* Applies a list of hosts instead of a hostfile. Their nodes get the WEFT_ settings and the secret of this environment. */
int hosts_apply_list(struct launch *l, struct hosts *h, char *const *names, uint32_t count);
/* Put a standing cluster's settings into this environment. Variables that are set already keep their values. `file`: the cluster's
 * hostfile, or NULL. */
struct cluster_hostfile;
void hosts_set_settings(const json_t *settings, const struct cluster_hostfile *file);
/* Finds a node of a launch: the first `len` bytes of `text` are its number or its host. Returns its index, or a negative value if there is
 * no such node. */
int64_t hosts_find(const struct hosts *h, uint32_t nodes, const char *text, size_t len);
void hosts_free(struct hosts *h, uint32_t nodes);

#endif
