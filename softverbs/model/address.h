/* SPDX-License-Identifier: MIT
 *
 * Addresses of a device: its MAC, its GUID, its table of GIDs. Private to the model.
 */
#ifndef SOFTVERBS_MODEL_ADDRESS_H
#define SOFTVERBS_MODEL_ADDRESS_H

#include "model.h"

#include <stdbool.h>

enum { SV_ADDRESS_TEXT = 48 };

/* An interface's addresses in a topology file. */
struct sv_addresses {
    unsigned v4_count, v6_count;
    uint8_t v4[SV_GIDS][4];
    uint8_t v6[SV_GIDS][16];
};

bool sv_mac_parse(const char *text, uint8_t mac[6]);  /* 36:73:76:00:00:01; a unicast address, not all zero */
bool sv_guid_parse(const char *text, uint64_t *guid); /* 3473:76ff:fe00:0001, with or without colons; not 0 */
void sv_mac_text(const uint8_t mac[6], char text[SV_ADDRESS_TEXT]);
void sv_guid_text(uint64_t guid, char text[SV_ADDRESS_TEXT]);
void sv_gid_text(const uint8_t raw[16], char text[SV_ADDRESS_TEXT]);

/* The EUI-64 of a MAC: the second half of the interface's fe80:: address, and the default GUID. */
uint64_t sv_eui64(const uint8_t mac[6]);

/* Fills the device's GID table by the profile's rules. `mac` and `guid` are set. On InfiniBand there is only the GID of the GUID. Otherwise
 * there may be the GID of the MAC, IPv4-mapped GIDs, a second fe80:: address, and other IPv6 addresses. Returns false if there are more
 * than SV_GIDS entries.
 */
bool sv_gids_derive(struct sv_device_model *, const struct sv_addresses *, const struct sv_profile *);

/* Makes a device's name by the profile's pattern. Returns false if the name is too long. */
bool sv_device_name(const struct sv_profile *, unsigned index, const char *interface, char name[SV_NAME]);

#endif
