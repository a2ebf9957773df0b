/* SPDX-License-Identifier: MIT
 *
 * weft devices --networks.
 */
#ifndef WEFT_CLI_NETWORKS_H
#define WEFT_CLI_NETWORKS_H

#include <stdbool.h>
#include <stddef.h>

int cli_networks(bool as_json); /* prints the providers of libfabric; returns an exit status */
/* The best provider of this host if it is faster than TCP, whatever the settings are; "": there is none. */
void cli_networks_better(char *out, size_t len);

#endif
