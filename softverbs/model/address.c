/* SPDX-License-Identifier: MIT
 *
 * Addresses of a device: its MAC, its GUID, its table of GIDs.
 */
#include "address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

static int address_digit(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

bool sv_mac_parse(const char *text, uint8_t mac[6])
{
    uint8_t any = 0;
    for (int i = 0; i < 6; i++, text += 2) {
        if (i && *text++ != ':')
            return false;
        int high = address_digit(text[0]), low = high < 0 ? -1 : address_digit(text[1]);
        if (low < 0)
            return false;
        mac[i] = (uint8_t)(high << 4 | low);
        any |= mac[i];
    }
    return *text == 0 && any && !(mac[0] & 1); /* no interface has a multicast address */
}

bool sv_guid_parse(const char *text, uint64_t *guid)
{
    int digits = 0;
    *guid = 0;
    for (; *text; text++) {
        if (*text == ':' && digits > 0 && digits < 16 && text[-1] != ':')
            continue;
        int d = address_digit(*text);
        if (d < 0 || ++digits > 16)
            return false;
        *guid = *guid << 4 | (unsigned)d;
    }
    return digits == 16 && *guid;
}

void sv_mac_text(const uint8_t mac[6], char text[SV_ADDRESS_TEXT])
{
    snprintf(text, SV_ADDRESS_TEXT, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
}

void sv_guid_text(uint64_t guid, char text[SV_ADDRESS_TEXT])
{
    snprintf(text, SV_ADDRESS_TEXT, "%04x:%04x:%04x:%04x", (unsigned)(guid >> 48), (unsigned)(guid >> 32 & 0xffff),
             (unsigned)(guid >> 16 & 0xffff), (unsigned)(guid & 0xffff));
}

void sv_gid_text(const uint8_t raw[16], char text[SV_ADDRESS_TEXT])
{
    inet_ntop(AF_INET6, raw, text, SV_ADDRESS_TEXT);
}

uint64_t sv_eui64(const uint8_t mac[6])
{
    const uint8_t b[8] = {mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
    uint64_t id = 0;
    for (int i = 0; i < 8; i++)
        id = id << 8 | b[i];
    return id;
}

static void link_local(uint8_t raw[16], uint64_t id)
{
    memset(raw, 0, 16);
    raw[0] = 0xfe;
    raw[1] = 0x80;
    for (int i = 0; i < 8; i++)
        raw[8 + i] = (uint8_t)(id >> (56 - 8 * i));
}

/* The second link-local address of an interface: looks random, but depends only on the MAC. */
static uint64_t private_id(const uint8_t mac[6])
{
    uint64_t x = sv_eui64(mac) + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return x & ~(UINT64_C(3) << 56); /* clears the bits "group" and "universally administered" */
}

static uint8_t *address_add(struct sv_device_model *d)
{
    if (d->gid_count == SV_GIDS)
        return NULL;
    struct sv_gid_model *g = &d->gids[d->gid_count++];
    memset(g, 0, sizeof *g);
    return g->raw;
}

bool sv_gids_derive(struct sv_device_model *d, const struct sv_addresses *a, const struct sv_profile *p)
{
    uint8_t *raw;
    bool other = false; /* the interface was given another fe80:: address, which replaces private_id() */
    memset(d->gids, 0, sizeof d->gids);
    d->gid_count = 0;
    if (p->link_layer == SV_LINK_INFINIBAND) { /* on InfiniBand only the GID of the port's GUID, because IP addresses are no GIDs */
        link_local(address_add(d), d->guid);
        d->gids[0].unreachable = p->first_gid_unreachable;
        return true;
    }
    link_local(address_add(d), sv_eui64(d->mac));
    d->gids[0].unreachable = p->first_gid_unreachable;
    for (unsigned i = 0; i < a->v4_count; i++) {
        if (!(raw = address_add(d)))
            return false;
        raw[10] = raw[11] = 0xff;
        memcpy(raw + 12, a->v4[i], 4);
    }
    for (unsigned i = 0; i < a->v6_count; i++)
        other = other || (a->v6[i][0] == 0xfe && (a->v6[i][1] & 0xc0) == 0x80);
    if (p->private_gid && !other) {
        if (!(raw = address_add(d)))
            return false;
        link_local(raw, private_id(d->mac));
    }
    for (unsigned i = 0; i < a->v6_count; i++) {
        if (!(raw = address_add(d)))
            return false;
        memcpy(raw, a->v6[i], 16);
    }
    return true;
}

bool sv_device_name(const struct sv_profile *p, unsigned index, const char *interface, char name[SV_NAME])
{
    size_t n = 0;
    memset(name, 0, SV_NAME);
    for (const char *c = p->device_name; *c && n < SV_NAME; c++) {
        if (strncmp(c, "{index}", 7) == 0) {
            n += (size_t)snprintf(name + n, SV_NAME - n, "%u", index);
            c += 6;
        } else if (strncmp(c, "{interface}", 11) == 0) {
            n += (size_t)snprintf(name + n, SV_NAME - n, "%s", interface);
            c += 10;
        } else {
            name[n++] = *c;
        }
    }
    if (n < SV_NAME)
        return n > 0;
    name[SV_NAME - 1] = 0;
    return false;
}
