/* SPDX-License-Identifier: MIT
 *
 * The choice of a GID, over every shape of table that has been reported.
 */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "verbs/verbs.h"

enum { MOST = 12, REFUSED = -1 };
#define MAC     "fe80::3474:d9ff:fe9d:cc84"
#define PRIVATE "fe80::1042:a3d5:410e:95e9"
#define IPV4    "::ffff:169.254.10.1"
#define V1      VERBS_GID_ROCE_V1
#define V2      VERBS_GID_ROCE_V2

static const struct {
    const char *what;
    const char *table[MOST]; /* NULL ends it; "" is a zero entry */
    int kinds[MOST];         /* 0: unknown */
    int wanted, chosen;
    bool infiniband;
    const char *why;
} cases[] = {
    {"a Mac whose interface has an IPv4 address", {MAC, IPV4, PRIVATE}, {0}, -1, 1, false, "IPv4-mapped, index 1"},
    {"a Mac without one", {MAC, PRIVATE}, {0}, -1, 1, false, "no IPv4-mapped entry; first that is set, index 1"},
    {"the same in a table of 16", {MAC, PRIVATE, "", "", "", ""}, {0}, -1, 1, false, NULL},
    {"only entry 0", {MAC, "", ""}, {0}, -1, 0, false, NULL},
    {"only entry 0, in a table of one", {MAC}, {0}, -1, 0, false, NULL},
    {"entry 1 is zero", {MAC, "", PRIVATE}, {0}, -1, 0, false, NULL},
    {"entries 0 and 1 are zero", {"", "", PRIVATE}, {0}, -1, 2, false, NULL},
    {"IPv4 first", {IPV4, MAC}, {0}, -1, 0, false, NULL},
    {"IPv4 late", {"", MAC, "", PRIVATE, "", IPV4}, {0}, -1, 5, false, NULL},
    {"two IPv4 addresses: the first", {MAC, IPV4, "::ffff:10.0.0.1"}, {0}, -1, 1, false, NULL},
    {"all zero", {"", "", "", ""}, {0}, -1, REFUSED, false, "4 entries, all zero"},
    {"no table", {NULL}, {0}, -1, REFUSED, false, "0 entries, all zero"},
    {"a prefix without an interface", {"fe80::", "", ""}, {0}, -1, REFUSED, false, "0: fe80::"},
    {"a prefix without an interface, and one with", {"fe80::", "", PRIVATE}, {0}, -1, 2, false, NULL},
    {"IPv4-mapped zero", {"::ffff:0.0.0.0", ""}, {0}, -1, REFUSED, false, "::ffff:0.0.0.0"},
    {"IPv4-mapped zero before a real one", {"::ffff:0.0.0.0", MAC}, {0}, -1, 1, false, NULL},
    {"nearly IPv4-mapped", {MAC, PRIVATE, "1::ffff:169.254.10.1", "::fffe:1.2.3.4"}, {0}, -1, 1, false, NULL},
    {"a global address at 1", {MAC, "2001:db8::1", PRIVATE}, {0}, -1, 1, false, NULL},
    {"Linux: v1 and v2 of everything",
     {MAC, MAC, "::ffff:10.0.0.1", "::ffff:10.0.0.1"},
     {V1, V2, V1, V2},
     -1,
     3,
     false,
     "IPv4-mapped, index 3, RoCE v2"},
    {"Linux: the other order", {MAC, MAC, "::ffff:10.0.0.1", "::ffff:10.0.0.1"}, {V2, V1, V2, V1}, -1, 2, false, NULL},
    {"Linux: IPv4 only as v1, before any fe80::", {MAC, MAC, "::ffff:10.0.0.1"}, {V1, V2, V1}, -1, 2, false, "RoCE v1"},
    {"Linux: no IPv4", {MAC, MAC}, {V1, V2}, -1, 1, false, NULL},
    {"Linux: no IPv4, v1 at 1", {MAC, MAC}, {V2, V1}, -1, 0, false, NULL},
    {"Linux: v1 alone", {MAC, MAC}, {V1, V1}, -1, 1, false, NULL},
    {"rdma_rxe", {MAC, "::ffff:10.0.2.15", "fec0::5054:ff:fe12:3456"}, {V2, V2, V2}, -1, 1, false, NULL},
    {"asked for 0", {MAC, IPV4}, {0}, 0, 0, false, "asked for, index 0"},
    {"asked for 2", {MAC, IPV4, PRIVATE}, {0}, 2, 2, false, NULL},
    {"asked for a zero entry", {MAC, IPV4, ""}, {0}, 2, REFUSED, false, "GID index 2, which was asked for, is not set"},
    {"asked for one beyond the table", {MAC, IPV4}, {0}, 9, REFUSED, false, "GID index 9"},
    {"InfiniBand", {"fe80::2:c903:33:5"}, {0}, -1, 0, true, "InfiniBand: addressed by LID, index 0"},
    {"InfiniBand, an IPv4-like alias", {"fe80::2:c903:33:5", IPV4}, {0}, -1, 0, true, NULL},
    {"InfiniBand, the table is zero", {"", ""}, {0}, -1, 0, true, NULL},
    {"InfiniBand, no table", {NULL}, {0}, -1, 0, true, NULL},
    {"InfiniBand, asked for 1", {"fe80::2:c903:33:5", "fec0::2:c903:33:5"}, {0}, 1, 1, true, NULL},
};

static void chooses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct verbs_gid table[MOST];
        struct verbs_choice c;
        uint32_t n = 0;
        memset(table, 0, sizeof table);
        for (; n < MOST && cases[i].table[n]; n++) {
            table[n].index = n;
            table[n].kind = cases[i].kinds[n] ? (enum verbs_gid_kind)cases[i].kinds[n] : VERBS_GID_UNKNOWN;
            if (cases[i].table[n][0])
                assert_int_equal(inet_pton(AF_INET6, cases[i].table[n], table[n].raw.raw), 1);
        }
        int rc = verbs_choose_gid(&c, table, n, cases[i].wanted, cases[i].infiniband, "rdma_en5", "en5");
        const char *said = rc ? base_error() : c.why;
        if (cases[i].chosen == REFUSED
                ? rc != -EADDRNOTAVAIL
                : rc || c.gid.index != (uint32_t)cases[i].chosen || (n && memcmp(&c.gid.raw, &table[cases[i].chosen].raw, 16) != 0))
            fail_msg("%s: returned %d, index %u (%s)", cases[i].what, rc, c.gid.index, said);
        if (cases[i].why && !strstr(said, cases[i].why))
            fail_msg("%s: '%s' is not in '%s'", cases[i].what, cases[i].why, said);
        /* The remedy: another entry, if an entry was asked for and others are set; otherwise an address. */
        bool helps = cases[i].wanted >= 0
                         ? strstr(said, "Choose an entry that is set (WEFT_GID_INDEX or --gid-index), or let weft choose") != NULL
                         : strstr(said, " en5") && strstr(said, "IPv4 address");
        if (rc && (!strstr(said, "rdma_en5: ") || !helps))
            fail_msg("%s: device or remedy is not in '%s'", cases[i].what, said);
    }
}

static void names_a_long_table_in_short(void **state)
{
    (void)state;
    struct verbs_gid table[64];
    struct verbs_choice c;
    memset(table, 0, sizeof table);
    for (uint32_t i = 0; i < 64; i++) {
        table[i].index = i;
        table[i].raw.raw[0] = 0xfe; /* no interface part: none of them is usable */
        table[i].raw.raw[1] = (uint8_t)i;
    }
    assert_int_equal(verbs_choose_gid(&c, table, 64, -1, false, "mlx5_0", ""), -EADDRNOTAVAIL);
    assert_non_null(strstr(base_error(), "0: fe00::; 1: fe01::"));
    assert_non_null(strstr(base_error(), "; and 56 more)"));
    assert_non_null(strstr(base_error(), "INTERFACE"));
}

static void writes_gids(void **state)
{
    (void)state;
    char text[48], small[4] = "xyz";
    union ibv_gid gid;
    assert_int_equal(inet_pton(AF_INET6, MAC, gid.raw), 1);
    assert_string_equal(verbs_gid_text(&gid, text, sizeof text), MAC);
    assert_string_equal(verbs_gid_text(&gid, small, sizeof small), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chooses),
        cmocka_unit_test(names_a_long_table_in_short),
        cmocka_unit_test(writes_gids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
