/* SPDX-License-Identifier: MIT
 *
 * weft devices --networks.
 */
#ifndef WEFT_CLI_NETWORKS_H
#define WEFT_CLI_NETWORKS_H

#include <stdbool.h>

int cli_networks(bool as_json); /* prints the providers of libfabric; returns an exit status */

#endif
