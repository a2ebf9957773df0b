/* SPDX-License-Identifier: MIT
 *
 * Used by all commands about devices: describes a device and its limits as text and as JSON.
 */
#ifndef WEFT_CLI_DEVICE_WORDS_H
#define WEFT_CLI_DEVICE_WORDS_H

#include "cli/command.h"
#include "verbs/verbs.h"

const char *cli_link_text(enum verbs_link link);
const char *cli_port_state_text(enum ibv_port_state state);
const char *cli_gid_kind_text(enum verbs_gid_kind kind); /* "RoCE v2"; "" when unknown */
/* The transport that weft would use on the device: "rc" or "tb". Returns NULL if weft does not use the device. */
const char *cli_transport_of(const struct verbs_device *d);
/* Why weft does not use the device, as a word that is the same on all systems ("port-down", "no-gid", ...), or NULL if weft uses the
 * device. */
const char *cli_reason(const struct verbs_device *d);
/* Get the setting WEFT_GID_INDEX. */
int cli_gid_index(int *out);
/* "LOCAL_WRITE REMOTE_READ" */
const char *cli_access_text(int access, char *out, size_t len);
json_t *cli_device_json(const struct verbs_device *d);

#endif
