/* SPDX-License-Identifier: MIT
 *
 * What the commands about devices share: what a device is, and its limits, as text and as JSON.
 */
#ifndef WEFT_CLI_DEVICE_WORDS_H
#define WEFT_CLI_DEVICE_WORDS_H

#include "cli/command.h"
#include "verbs/verbs.h"

const char *cli_link_text(enum verbs_link link);
const char *cli_port_state_text(enum ibv_port_state state);
const char *cli_gid_kind_text(enum verbs_gid_kind kind); /* "RoCE v2"; "" when unknown */
/* The transport that weft would use on it, "rc" or "tb"; NULL: none. */
const char *cli_transport_of(const struct verbs_device *d);
/* Why it is not used, in a word that does not depend on the system: "port-down", "no-gid", ...; NULL: it is. */
const char *cli_reason(const struct verbs_device *d);
/* WEFT_GID_INDEX, as the settings have it, into `out`. */
int cli_gid_index(int *out);
/* "LOCAL_WRITE REMOTE_READ" */
const char *cli_access_text(int access, char *out, size_t len);
json_t *cli_device_json(const struct verbs_device *d);

#endif
