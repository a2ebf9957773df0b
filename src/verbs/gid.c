/* SPDX-License-Identifier: MIT
 *
 * Chooses an entry of a port's GID table. The entry's GID is sent to the peer as this node's address, and the entry's index is the
 * sgid_index of every queue pair. A wrong GID is not noticed before a queue pair is connected.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "verbs/verbs.h"

const char *verbs_gid_text(const union ibv_gid *gid, char *out, size_t len)
{
    if (!inet_ntop(AF_INET6, gid->raw, out, (socklen_t)len) && len)
        out[0] = '\0';
    return out;
}

static bool all_zero(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (bytes[i])
            return false;
    return true;
}

/* Whether a GID is an IPv4-mapped address, ::ffff:a.b.c.d. */
static bool ipv4_mapped(const union ibv_gid *gid)
{
    return all_zero(gid->raw, 10) && gid->raw[10] == 0xff && gid->raw[11] == 0xff && !all_zero(gid->raw + 12, 4);
}

/* Whether a GID is a usable address. An IPv6 prefix without an interface part (fe80::) is not usable, nor is the IPv4 address 0.0.0.0. */
static bool gid_is_set(const union ibv_gid *gid)
{
    bool mapped_nothing = all_zero(gid->raw, 10) && all_zero(gid->raw + 12, 4);
    return !all_zero(gid->raw + 8, 8) && !mapped_nothing;
}

static const char *kind_text(enum verbs_gid_kind kind)
{
    switch (kind) {
    case VERBS_GID_ROCE_V1: return ", RoCE v1";
    case VERBS_GID_ROCE_V2: return ", RoCE v2";
    default: return "";
    }
}

/* The sort key of a GID entry; lower is better. RoCE v2 is preferred to v1, because v1 cannot be routed and some peers refuse it. */
static unsigned rank(const struct verbs_gid *g)
{
    unsigned r = ipv4_mapped(&g->raw) ? 0 : 8;
    if (g->kind == VERBS_GID_ROCE_V1)
        r += 4;
    if (r >= 8 && g->index != 1)
        r += 2;
    return r;
}

static void gid_print_table(char *out, size_t len, const struct verbs_gid *table, uint32_t count)
{
    size_t n = 0;
    uint32_t shown = 0, set = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        char text[48];
        if (all_zero(table[i].raw.raw, 16))
            continue;
        set++;
        if (shown == 8 || n + 64 > len)
            continue;
        n += (size_t)snprintf(out + n, len - n, "%s%u: %s%s", shown ? "; " : "", table[i].index,
                              verbs_gid_text(&table[i].raw, text, sizeof text), kind_text(table[i].kind));
        shown++;
    }
    if (set == 0)
        snprintf(out, len, "%u entries, all zero", count);
    else if (set > shown)
        snprintf(out + n, len - n, "; and %u more", set - shown);
}

/* Fails with an error text about the GID table. `wanted`: the index that the user asked for. If another entry is set, the interface has an
 * address, so the text does not advise to configure an address. */
static int gid_refuse(const struct verbs_gid *table, uint32_t count, const char *what, const char *device, const char *interface,
                      int wanted)
{
    char seen[600];
    const char *i = interface && *interface ? interface : "INTERFACE";
    bool others = false;
    gid_print_table(seen, sizeof seen, table, count);
    for (uint32_t k = 0; k < count && wanted >= 0; k++)
        others = others || gid_is_set(&table[k].raw);
    if (others)
        return base_fail(-EADDRNOTAVAIL,
                         "%s: %s (its GID table: %s). Choose an entry that is set (WEFT_GID_INDEX or --gid-index), or let weft choose",
                         device, what, seen);
#if defined(__APPLE__)
    return base_fail(-EADDRNOTAVAIL,
                     "%s: %s (its GID table: %s). Give its network interface an IPv4 address: "
                     "sudo ifconfig %s inet 169.254.10.1/16 alias (another last number on the other machine)",
                     device, what, seen, i);
#else
    return base_fail(-EADDRNOTAVAIL,
                     "%s: %s (its GID table: %s). Give its network interface an IPv4 address: "
                     "sudo ip address add 169.254.10.1/16 dev %s && sudo ip link set %s up (another last number on the "
                     "other machine)",
                     device, what, seen, i, i);
#endif
}

static void gid_take(struct verbs_choice *out, const struct verbs_gid *g, const char *why)
{
    out->gid = *g;
    snprintf(out->why, sizeof out->why, "%s, index %u%s", why, g->index, kind_text(g->kind));
}

int verbs_choose_gid(struct verbs_choice *out, const struct verbs_gid *table, uint32_t count, int wanted, bool infiniband,
                     const char *device, const char *interface)
{
    const struct verbs_gid *best = NULL;
    char what[96];
    memset(out, 0, sizeof *out);
    if (infiniband && wanted < 0) {
        if (count)
            out->gid = table[0];
        out->gid.kind = VERBS_GID_IB;
        snprintf(out->why, sizeof out->why, "InfiniBand: addressed by LID, index %u", out->gid.index);
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (wanted >= 0 && table[i].index != (uint32_t)wanted)
            continue;
        if (gid_is_set(&table[i].raw) && (!best || rank(&table[i]) < rank(best)))
            best = &table[i];
    }
    if (!best && wanted >= 0) {
        snprintf(what, sizeof what, "GID index %d, which was asked for, is not set", wanted);
        return gid_refuse(table, count, what, device, interface, wanted);
    }
    if (!best)
        return gid_refuse(table, count, "no usable GID", device, interface, wanted);
    gid_take(out, best, wanted >= 0 ? "asked for" : ipv4_mapped(&best->raw) ? "IPv4-mapped" : "no IPv4-mapped entry; first that is set");
    return 0;
}
