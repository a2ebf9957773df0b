/* SPDX-License-Identifier: MIT
 *
 * Starts nodes on other hosts over ssh: see ssh.c.
 */
#ifndef WEFT_CLI_SSH_H
#define WEFT_CLI_SSH_H

#include <stddef.h>

#define SSH_FAILED     255         /* exit status of ssh for its own failures */
#define SSH_LAUNCH_MAX (60u << 10) /* a launch message of this size fits into an empty pipe */

/* Serialize the launch message for a node: directory, program, environment. The caller frees `*out`. */
int ssh_launch_message(char **out, size_t *len, const char *dir, char *const *argv, const char *const *env);

struct ssh_command {
    const char *argv[32]; /* points to strings of this struct, to `host`, and to constants */
    char *words, *remote;
};
/* Make the command line that runs `weft run --as-node` on a host: with ssh, or the command in WEFT_SSH. */
int ssh_command(struct ssh_command *c, const char *host, const char *weft);
/* Like ssh_command(), but with `weft exec` on a standing cluster instead of ssh. `self`: path of this command on this host. */
int ssh_command_by_cluster(struct ssh_command *c, const char *cluster, const char *node, const char *self, const char *weft);
void ssh_command_free(struct ssh_command *c);

/* Run `weft run --as-node`. Returns the exit status. */
int ssh_serve(void);

#endif
