/* SPDX-License-Identifier: MIT
 *
 * Nodes on other hosts, by ssh: see ssh.c.
 */
#ifndef WEFT_CLI_SSH_H
#define WEFT_CLI_SSH_H

#include <stddef.h>

#define SSH_FAILED    255         /* its exit status when it could not do what it should */
#define SSH_ORDER_MAX (60u << 10) /* what a pipe takes at once */

/* What a node is told: folder, program, environment. `*out` is to be freed. */
int ssh_order(char **out, size_t *len, const char *dir, char *const *argv, const char *const *env);

struct ssh_command {
    const char *argv[32]; /* strings of it and of `host` */
    char *words, *remote;
};
/* The command line that runs `weft run --as-node` on a host: ssh, or what WEFT_SSH says. */
int ssh_command(struct ssh_command *c, const char *host, const char *weft);
void ssh_command_free(struct ssh_command *c);

/* `weft run --as-node`: its exit status. */
int ssh_serve(void);

#endif
