/* SPDX-License-Identifier: MIT
 *
 * Topologies: the built-in ones, files, GID tables, what is refused and in which words, printing.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/model.h"

static struct sv_profile generic, tb5, strict;
static struct sv_topology topology, again; /* static, because each takes half a megabyte */

static int setup(void **state)
{
    (void)state;
    struct sv_why why = {""};
    if (sv_profile_load("generic", &generic, &why) || sv_profile_load("tb5", &tb5, &why) || sv_profile_load("tb5-strict", &strict, &why)) {
        print_error("%s\n", why.text);
        return -1;
    }
    return 0;
}

static int load(const char *kind, const char *number, const struct sv_profile *p)
{
    const char *words[] = {kind, number};
    struct sv_why why = {""};
    int rc = sv_topology_load(2, words, p, &topology, &why);
    if (rc)
        assert_int_not_equal(why.text[0], 0);
    return rc;
}

static int parse(const char *json, const struct sv_profile *p, struct sv_why *why)
{
    return sv_topology_parse(json, strlen(json), "test.json", p, &topology, why);
}

static void taken(const char *json, const struct sv_profile *p)
{
    struct sv_why why = {""};
    if (parse(json, p, &why))
        fail_msg("%s", why.text);
}

static void is_gid(unsigned device, unsigned index, const char *text)
{
    uint8_t raw[16];
    char found[64];
    assert_int_equal(inet_pton(AF_INET6, text, raw), 1);
    assert_true(index < topology.devices[device].gid_count);
    inet_ntop(AF_INET6, topology.devices[device].gids[index].raw, found, sizeof found);
    if (memcmp(raw, topology.devices[device].gids[index].raw, 16) != 0)
        fail_msg("GID %u of device %u is %s, not %s", index, device, found, text);
}

static uint32_t device_of(const char *host, const char *interface)
{
    for (uint32_t i = 0; i < topology.device_count; i++)
        if (strcmp(topology.hosts[topology.devices[i].host].name, host) == 0 && strcmp(topology.devices[i].interface, interface) == 0)
            return i;
    fail_msg("no %s/%s", host, interface);
    return 0;
}

static void are_cabled(const char *host, const char *interface, const char *other, const char *far)
{
    uint32_t a = device_of(host, interface), b = device_of(other, far);
    assert_int_equal(topology.devices[a].cable, b);
    assert_int_equal(topology.devices[b].cable, a);
}

/* Checks what must hold for every topology. */
static void is_whole(void)
{
    uint32_t next = 0;
    for (uint32_t h = 0; h < topology.host_count; h++) {
        assert_int_equal(topology.hosts[h].first_device, next);
        next += topology.hosts[h].device_count;
        for (uint32_t i = topology.hosts[h].first_device; i < next; i++)
            assert_int_equal(topology.devices[i].host, h);
    }
    assert_int_equal(next, topology.device_count);
    for (uint32_t i = 0; i < topology.device_count; i++) {
        const struct sv_device_model *d = &topology.devices[i];
        if (d->cable >= 0) {
            assert_int_equal(topology.devices[d->cable].cable, i);
            assert_int_not_equal(topology.devices[d->cable].host, d->host);
        }
        assert_true(d->guid != 0 && d->gid_count > 0 && d->name[0]);
    }
}

static void test_switch(void **state)
{
    (void)state;
    assert_int_equal(load("switch", "8", &generic), 0);
    is_whole();
    assert_string_equal(topology.name, "switch 8");
    assert_int_equal(topology.host_count, 8);
    assert_int_equal(topology.device_count, 8);
    assert_string_equal(topology.hosts[7].name, "7");
    assert_string_equal(topology.devices[7].name, "sv0");
    assert_int_equal(topology.devices[7].cable, SV_SWITCH);
    assert_int_equal(topology.devices[7].port_up, 1);
    assert_int_equal(topology.devices[7].gid_count, 2);
    is_gid(7, 0, "fe80::3473:76ff:fe00:700");
    is_gid(7, 1, "::ffff:192.168.0.8");
    assert_int_equal(load("switch", "1", &generic), 0);
    is_whole();
    assert_int_equal(load("switch", "256", &tb5), 0);
    is_whole();
    assert_int_equal(topology.devices[255].gid_count, 3);
    is_gid(255, 1, "::ffff:192.168.1.2");
    assert_string_equal(topology.devices[255].name, "rdma_en2");
}

static void test_mesh(void **state)
{
    (void)state;
    for (unsigned n = 2; n <= 7; n++) {
        char number[8];
        snprintf(number, sizeof number, "%u", n);
        assert_int_equal(load("mesh", number, &tb5), 0);
        is_whole();
        assert_int_equal(topology.device_count, n * (n - 1));
        /* there is one cable between any two hosts */
        for (uint32_t h = 0; h < n; h++) {
            unsigned met = 0;
            for (uint32_t i = h * (n - 1); i < (h + 1) * (n - 1); i++) {
                const struct sv_device_model *d = &topology.devices[i];
                assert_true(d->cable >= 0);
                met |= 1u << topology.devices[d->cable].host;
                if (n % 2 == 0)
                    assert_string_equal(d->interface, topology.devices[d->cable].interface);
                /* both ends of a cable have addresses in the same network, which no other cable uses */
                assert_memory_equal(d->gids[1].raw, topology.devices[d->cable].gids[1].raw, 15);
                assert_int_equal(d->gids[1].raw[12], 169);
            }
            assert_int_equal(met, ((1u << n) - 1) & ~(1u << h));
        }
    }
    assert_int_equal(load("mesh", "4", &tb5), 0);
    are_cabled("0", "en2", "1", "en2");
    are_cabled("0", "en3", "2", "en3");
    are_cabled("0", "en4", "3", "en4");
    are_cabled("1", "en4", "2", "en4");
    are_cabled("1", "en3", "3", "en3");
    are_cabled("2", "en2", "3", "en2");
    assert_int_equal(load("mesh", "3", &tb5), 0);
    are_cabled("0", "en2", "1", "en3");
    are_cabled("1", "en2", "2", "en3");
    are_cabled("2", "en2", "0", "en3");
}

static void test_ring(void **state)
{
    (void)state;
    static const char *const sizes[] = {"3", "4", "5", "8", "256"};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(load("ring", sizes[i], &tb5), 0);
        is_whole();
        uint32_t n = topology.host_count;
        assert_int_equal(n, atoi(sizes[i]));
        assert_int_equal(topology.device_count, 2 * n);
        for (uint32_t h = 0; h < n; h++)
            assert_int_equal(topology.devices[2 * h].cable, 2 * ((h + 1) % n) + 1);
    }
    assert_int_equal(load("ring", "2", &tb5), 0);
    assert_int_equal(topology.device_count, 2);
    are_cabled("0", "en2", "1", "en2");
}

/* Each host is connected to the next: en2 to the host before it, and the port with the highest number to the host after it. */
static void test_chain(void **state)
{
    (void)state;
    static const char *const sizes[] = {"2", "3", "4", "9", "256"};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(load("chain", sizes[i], &tb5), 0);
        is_whole();
        uint32_t n = topology.host_count;
        assert_int_equal(n, atoi(sizes[i]));
        assert_int_equal(topology.device_count, 2 * n - 2);
        for (uint32_t k = 0; k < topology.device_count; k++) {
            const struct sv_device_model *d = &topology.devices[k], *other = &topology.devices[d->cable];
            assert_int_equal(other->cable, k);
            assert_int_equal(abs((int)other->host - (int)d->host), 1);
        }
    }
    assert_int_equal(load("chain", "2", &tb5), 0);
    are_cabled("0", "en2", "1", "en2");
    assert_int_equal(load("chain", "4", &tb5), 0);
    assert_string_equal(topology.name, "chain 4");
    are_cabled("0", "en2", "1", "en2");
    are_cabled("1", "en3", "2", "en2");
    are_cabled("2", "en3", "3", "en2");
}

static void test_builtin_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"switch", "0"}, {"switch", "257"}, {"switch", "-1"}, {"switch", "8x"}, {"switch", ""}, {"switch", "99999999999999"},
        {"mesh", "1"},   {"mesh", "8"},     {"ring", "1"},    {"ring", "257"},  {"star", "4"},  {"switch", " 8"},
        {"chain", "1"},  {"chain", "257"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(load(cases[i][0], cases[i][1], &generic), -EINVAL);
    struct sv_why why = {""};
    assert_int_equal(sv_topology_load(0, NULL, &generic, &topology, &why), -EINVAL);
    const char *one[] = {"switch"}, *three[] = {"ring", "4", "5"}, *file[] = {"/nowhere/x.json"};
    assert_int_equal(sv_topology_load(1, one, &generic, &topology, &why), -EINVAL);
    assert_non_null(strstr(why.text, "1 to 256"));
    assert_int_equal(sv_topology_load(3, three, &generic, &topology, &why), -EINVAL);
    assert_int_equal(sv_topology_load(1, file, &generic, &topology, &why), -ENOENT);
    assert_non_null(strstr(why.text, "switch N, mesh N, ring N, chain N"));
}

/* The rules of "Addresses" in apple-tb5.md, and those of the generic profile. */
static void test_gids(void **state)
{
    (void)state;
    static const char with[] = "{\"hosts\": [{\"name\": \"a\", \"devices\": [{\"interface\": \"en3\", \"mac\": "
                               "\"36:74:d9:9d:cc:84\", \"ipv4\": \"169.254.7.9\"}]}], \"switch\": true}";
    static const char without[] = "{\"hosts\": [{\"name\": \"a\", \"devices\": [{\"interface\": \"en3\", \"mac\": "
                                  "\"36:74:d9:9d:cc:84\"}]}], \"switch\": true}";
    taken(with, &tb5);
    assert_string_equal(topology.devices[0].name, "rdma_en3");
    assert_true(topology.devices[0].guid == UINT64_C(0x3474d9fffe9dcc84));
    assert_int_equal(topology.devices[0].gid_count, 3);
    is_gid(0, 0, "fe80::3474:d9ff:fe9d:cc84");
    is_gid(0, 1, "::ffff:169.254.7.9");
    assert_int_equal(topology.devices[0].gids[2].raw[0], 0xfe);
    assert_int_equal(topology.devices[0].gids[2].raw[1], 0x80);
    assert_memory_not_equal(topology.devices[0].gids[2].raw, topology.devices[0].gids[0].raw, 16);
    assert_int_equal(topology.devices[0].gids[0].unreachable, 0);

    taken(without, &tb5); /* without an IPv4 address there is only fe80:: */
    assert_int_equal(topology.devices[0].gid_count, 2);
    assert_int_equal(topology.devices[0].gids[1].raw[0], 0xfe);

    taken(with, &strict);
    assert_int_equal(topology.devices[0].gids[0].unreachable, 1);
    assert_int_equal(topology.devices[0].gids[1].unreachable, 0);

    taken(with, &generic);
    assert_int_equal(topology.devices[0].gid_count, 2);
    is_gid(0, 1, "::ffff:169.254.7.9");
    taken(without, &generic);
    assert_int_equal(topology.devices[0].gid_count, 1);

    /* A second fe80:: address may be given, and further addresses. */
    taken("{\"hosts\": [{\"name\": \"a\", \"devices\": [{\"interface\": \"en3\", \"ipv4\": [\"10.0.0.1\", "
          "\"10.0.0.2\"], "
          "\"ipv6\": [\"fe80::1042:a3d5:410e:95e9\", \"fd00::1\"]}]}]}",
          &tb5);
    assert_int_equal(topology.devices[0].gid_count, 5);
    is_gid(0, 2, "::ffff:10.0.0.2");
    is_gid(0, 3, "fe80::1042:a3d5:410e:95e9");
    is_gid(0, 4, "fd00::1");

    /* Or the whole table may be given, with empty entries. */
    taken("{\"hosts\": [{\"name\": \"a\", \"devices\": [{\"interface\": \"en3\", \"gids\": [\"::\", "
          "{\"gid\": \"fe80::1\", "
          "\"unreachable\": true}, \"::\"]}]}]}",
          &tb5);
    assert_int_equal(topology.devices[0].gid_count, 3);
    is_gid(0, 0, "::");
    assert_int_equal(topology.devices[0].gids[1].unreachable, 1);
}

static void test_file(void **state)
{
    (void)state;
    taken("{\"name\": \"lab\", \"hosts\": [\"x\", {\"name\": \"y\", \"devices\": [\"en2\", {\"interface\": "
          "\"eth1\", \"name\": "
          "\"mlx5_0\", \"guid\": \"0011:2233:4455:6677\"}, \"en9\"]}, {\"name\": \"z\", \"devices\": []}], "
          "\"cables\": [{\"from\": \"x/en2\", \"to\": \"y/mlx5_0\"}], \"switch\": [\"y/en2\"]}",
          &generic);
    is_whole();
    assert_string_equal(topology.name, "lab");
    assert_int_equal(topology.host_count, 3);
    assert_int_equal(topology.device_count, 4);
    are_cabled("x", "en2", "y", "eth1");
    assert_string_equal(topology.devices[1].name, "sv0");
    assert_string_equal(topology.devices[3].name, "sv2");
    assert_true(topology.devices[2].guid == UINT64_C(0x0011223344556677));
    assert_int_equal(topology.devices[1].cable, SV_SWITCH);
    assert_int_equal(topology.devices[3].cable, SV_NO_CABLE);
    assert_true(topology.devices[0].port_up && topology.devices[1].port_up && !topology.devices[3].port_up);

    /* if one end is down, the link is down */
    taken("{\"hosts\": [{\"name\": \"x\", \"devices\": [{\"interface\": \"en2\", \"port\": \"down\"}]}, "
          "\"y\"], "
          "\"cables\": [{\"from\": \"x/en2\", \"to\": \"y/en2\"}]}",
          &tb5);
    assert_string_equal(topology.name, "test");
    assert_true(!topology.devices[0].port_up && !topology.devices[1].port_up);
}

static void test_file_refused(void **state)
{
    (void)state;
#define DEVICE(d) "{\"hosts\": [{\"name\": \"a\", \"devices\": [" d "]}]}"
#define TWO(rest) "{\"hosts\": [\"a\", \"b\"], " rest "}"
    static const struct {
        const char *json, *words[3];
    } cases[] = {
        {"{", {"test.json:1:", "not JSON"}},
        {"{}", {"hosts is missing", "at least one"}},
        {"{\"hosts\": []}", {"hosts is an empty array"}},
        {"{\"hosts\": 5}", {"hosts is 5"}},
        {"{\"hosts\": [5]}", {"hosts[0] is 5"}},
        {"{\"hosts\": [\"a b\"]}", {"hosts[0] is \"a b\"", "letters"}},
        {"{\"hosts\": [\"../a\"]}", {"hosts[0] is \"../a\""}},
        {"{\"hosts\": [\"a\", \"a\"]}", {"both named \"a\"", "0 and 1"}},
        {"{\"host\": [\"a\"]}", {"key \"host\"", "name, hosts, cables, switch"}},
        {"{\"name\": \"\\\"\", \"hosts\": [\"a\"]}", {"name is"}},
        {"{\"name\": \" a\", \"hosts\": [\"a\"]}", {"name is"}},
        {"{\"name\": 7, \"hosts\": [\"a\"]}", {"name is 7"}},
        {"{\"hosts\": [{\"name\": \"a\"}]}", {"hosts[0].devices is missing"}},
        {"{\"hosts\": [{\"devices\": []}]}", {"hosts[0].name is missing"}},
        {"{\"hosts\": [{\"name\": \"a\", \"device\": []}]}", {"hosts[0] has a key \"device\"", "name, devices"}},
        {DEVICE("5"), {"host a: devices[0] is 5"}},
        {DEVICE("{}"), {"host a: devices[0].interface is missing"}},
        {DEVICE("\"0123456789abcdef\""), {"interface is \"0123456789abcdef\"", "15"}},
        {DEVICE("{\"interface\": \"en2\", \"ip\": 1}"), {"key \"ip\"", "ipv4, ipv6, gids"}},
        {DEVICE("\"en2\", \"en2\""), {"interface \"en2\" twice"}},
        {DEVICE("{\"interface\": \"a\", \"name\": \"n\"}, {\"interface\": \"b\", \"name\": \"n\"}"), {"two devices named \"n\""}},
        {DEVICE("{\"interface\": \"a\", \"name\": \"a/b\"}"), {"devices[0].name is \"a/b\""}},
        {DEVICE("{\"interface\": \"a\", \"mac\": \"1:2:3\"}"), {"devices[0].mac is \"1:2:3\""}},
        {DEVICE("{\"interface\": \"a\", \"mac\": \"01:00:00:00:00:00\"}"), {"mac is", "unicast"}},
        {DEVICE("{\"interface\": \"a\", \"mac\": \"36:00:00:00:00:0g\"}"), {"mac is"}},
        {DEVICE("{\"interface\": \"a\", \"mac\": \"36:00:00:00:00:00:00\"}"), {"mac is"}},
        {DEVICE("{\"interface\": \"a\", \"guid\": \"0000:0000:0000:0000\"}"), {"guid is"}},
        {DEVICE("{\"interface\": \"a\", \"guid\": \"123\"}"), {"guid is"}},
        {DEVICE("{\"interface\": \"a\", \"ipv4\": \"1.2.3\"}"), {"ipv4 is \"1.2.3\"", "169.254.1.1"}},
        {DEVICE("{\"interface\": \"a\", \"ipv4\": \"0.0.0.0\"}"), {"ipv4 is \"0.0.0.0\""}},
        {DEVICE("{\"interface\": \"a\", \"ipv4\": \"224.0.0.1\"}"), {"ipv4 is \"224.0.0.1\""}},
        {DEVICE("{\"interface\": \"a\", \"ipv6\": \"ff02::1\"}"), {"ipv6 is \"ff02::1\""}},
        {DEVICE("{\"interface\": \"a\", \"ipv6\": \"10.0.0.1\"}"), {"ipv6 is \"10.0.0.1\""}},
        {DEVICE("{\"interface\": \"a\", \"ipv4\": \"10.0.0.1\", \"gids\": []}"), {"gids", "ipv4 too"}},
        {DEVICE("{\"interface\": \"a\", \"gids\": [\"x\"]}"), {"gids[] is \"x\""}},
        {DEVICE("{\"interface\": \"a\", \"gids\": [{\"gid\": \"fe80::1\", \"unreachable\": 1}]}"), {"gids[] is an object"}},
        {DEVICE("{\"interface\": \"a\", \"gids\": [{\"git\": \"fe80::1\"}]}"), {"key \"git\""}},
        {DEVICE("{\"interface\": \"a\", \"gids\": [\"fe80::1\", \"fe80::1\"]}"), {"GID fe80::1", "a/a"}},
        {DEVICE("{\"interface\": \"a\", \"port\": \"left\"}"), {"port is \"left\"", "\"up\""}},
        {DEVICE("{\"interface\": \"a\", \"port\": \"up\"}"), {"the port of a/a cannot be \"up\"", "no cable"}},
        {DEVICE("{\"interface\": \"a\", \"ipv4\": \"10.0.0.1\"}, {\"interface\": \"b\", \"ipv4\": "
                "\"10.0.0.1\"}"),
         {"::ffff:10.0.0.1", "a/a and to a/b"}},
        {DEVICE("{\"interface\": \"a\", \"mac\": \"36:00:00:00:00:01\", \"gids\": []}, "
                "{\"interface\": \"b\", \"mac\": \"36:00:00:00:00:01\", \"gids\": []}"),
         {"mac 36:00:00:00:00:01", "a/a and to a/b"}},
        {DEVICE("{\"interface\": \"a\", \"guid\": \"0011223344556677\"}, {\"interface\": \"b\", \"guid\": "
                "\"0011223344556677\"}"),
         {"guid 0011:2233:4455:6677"}},
        {TWO("\"cables\": 5"), {"cables is 5"}},
        {TWO("\"cables\": [5]"), {"cables[0] is 5"}},
        {TWO("\"cables\": [{\"from\": \"a/en2\"}]"), {"cables[0].to is missing"}},
        {TWO("\"cables\": [{\"from\": \"a/en2\", \"too\": \"b/en2\"}]"), {"cables[0] has a key \"too\""}},
        {TWO("\"cables\": [{\"from\": \"a\", \"to\": \"b/en2\"}]"), {"cables[0].from is \"a\"", "HOST/INTERFACE"}},
        {TWO("\"cables\": [{\"from\": \"c/en2\", \"to\": \"b/en2\"}]"), {"cables[0].from", "no host \"c\""}},
        {TWO("\"cables\": [{\"from\": \"a/en2\", \"to\": \"b/en3\"}]"), {"cables[0].to", "host b has no interface or device \"en3\""}},
        {TWO("\"cables\": [{\"from\": \"a/en2\", \"to\": \"a/en2\"}]"), {"from a/en2 to itself"}},
        {TWO("\"cables\": [{\"from\": \"a/en2\", \"to\": \"b/en2\"}, {\"from\": \"b/en2\", \"to\": "
             "\"a/en2\"}]"),
         {"cables[1]", "b/en2 already goes to a/en2", "one cable"}},
        {TWO("\"cables\": [{\"from\": \"a/en2\", \"to\": \"b/en2\"}], \"switch\": [\"a/en2\"]"), {"switch", "already goes to b/en2"}},
        {TWO("\"switch\": [\"a/en2\", \"a/en2\"]"), {"already goes to the switch"}},
        {TWO("\"switch\": \"a/en2\""), {"switch is \"a/en2\"", "true"}},
        {"{\"hosts\": [{\"name\": \"a\", \"devices\": [{\"interface\": \"e\", \"port\": \"down\"}]}, "
         "{\"name\": \"b\", \"devices\": "
         "[{\"interface\": \"e\", \"port\": \"up\"}]}], \"cables\": [{\"from\": \"a/e\", \"to\": \"b/e\"}]}",
         {"the port of b/e cannot be \"up\"", "a/e", "down"}},
    };
    static const struct sv_topology empty;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_why why = {""};
        if (parse(cases[i].json, &generic, &why) >= 0)
            fail_msg("taken: %s", cases[i].json);
        assert_int_equal(strncmp(why.text, "test.json", 9), 0);
        for (int w = 0; w < 3 && cases[i].words[w]; w++)
            if (!strstr(why.text, cases[i].words[w]))
                fail_msg("%s: refused with \"%s\", which has not \"%s\"", cases[i].json, why.text, cases[i].words[w]);
        assert_int_equal(memcmp(&topology, &empty, sizeof empty), 0);
    }
}

/* Topologies with one object more than the limit, for every kind of object. */
static void test_too_many(void **state)
{
    (void)state;
    static char json[1 << 20];
    struct sv_why why = {""};
    size_t n = (size_t)sprintf(json, "{\"hosts\": [");
    for (int i = 0; i < 257; i++)
        n += (size_t)sprintf(json + n, "%s\"h%d\"", i ? "," : "", i);
    sprintf(json + n, "]}");
    assert_int_equal(parse(json, &generic, &why), -E2BIG);
    assert_non_null(strstr(why.text, "256 hosts"));

    for (int devices = 256; devices <= 257; devices++) {
        n = (size_t)sprintf(json, "{\"hosts\": [");
        for (int h = 0; h < 4; h++) {
            n += (size_t)sprintf(json + n, "%s{\"name\": \"h%d\", \"devices\": [", h ? "," : "", h);
            for (int i = 0; i < (h == 3 ? devices : 256); i++)
                n += (size_t)sprintf(json + n, "%s\"en%d\"", i ? "," : "", i);
            n += (size_t)sprintf(json + n, "]}");
        }
        sprintf(json + n, "], \"switch\": true}");
        assert_int_equal(parse(json, &generic, &why), devices == 256 ? 0 : -E2BIG);
    }
    assert_non_null(strstr(why.text, "1024"));

    n = (size_t)sprintf(json, "{\"hosts\": [{\"name\": \"a\", \"devices\": [{\"interface\": \"en2\", \"ipv4\": [");
    for (int i = 0; i < 15; i++)
        n += (size_t)sprintf(json + n, "%s\"10.0.0.%d\"", i ? "," : "", i + 1);
    sprintf(json + n, "]}]}]}");
    assert_int_equal(parse(json, &generic, &why), 0);
    assert_int_equal(topology.devices[0].gid_count, 16);
    assert_int_equal(parse(json, &tb5, &why), -E2BIG);
    assert_non_null(strstr(why.text, "16 entries"));
}

/* The printed text can be read back, and prints to the same bytes, whatever the profile is then. */
static void test_round_trip(void **state)
{
    (void)state;
    static const char *const kinds[][2] = {{"switch", "3"}, {"switch", "256"}, {"mesh", "5"},
                                           {"ring", "2"},   {"ring", "256"},   {"chain", "256"}};
    const struct sv_profile *const profiles[] = {&generic, &tb5, &strict};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int p = 0; p < 3; p++) {
            assert_int_equal(load(kinds[k][0], kinds[k][1], profiles[p]), 0);
            char *json = sv_topology_json(&topology);
            struct sv_why why = {""};
            assert_non_null(json);
            if (sv_topology_parse(json, strlen(json), "printed", &generic, &again, &why))
                fail_msg("%s", why.text);
            assert_int_equal(memcmp(&topology, &again, sizeof again), 0);
            free(json);
        }
    taken("{\"name\": \"lab\", \"hosts\": [\"x\", {\"name\": \"y\", \"devices\": [\"en2\", {\"interface\": "
          "\"eth1\", \"port\": "
          "\"down\", \"gids\": [\"::\", {\"gid\": \"fe80::9\", \"unreachable\": true}]}, \"en9\"]}, "
          "{\"name\": \"z\", "
          "\"devices\": []}], \"cables\": [{\"from\": \"x/en2\", \"to\": \"y/eth1\"}], \"switch\": "
          "[\"y/en2\"]}",
          &tb5);
    char *json = sv_topology_json(&topology);
    assert_non_null(json);
    assert_int_equal(sv_topology_parse(json, strlen(json), "printed", &generic, &again, NULL), 0);
    assert_int_equal(memcmp(&topology, &again, sizeof again), 0);
    free(json);
}

/* Data in a shared file may be damaged: it is refused, and no invalid index is used. */
static void test_print_broken(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(load("mesh", "3", &tb5), 0);
        switch (i) {
        case 0: topology.host_count = SV_HOSTS + 1; break;
        case 1: topology.device_count = UINT32_MAX; break;
        case 2: topology.hosts[1].device_count = 7; break;
        case 3: topology.devices[0].cable = 4000; break;
        case 4: topology.devices[0].host = 9; break;
        case 5: topology.devices[0].gid_count = SV_GIDS + 1; break;
        case 6: memset(topology.devices[0].name, 'x', SV_NAME); break;
        default: memset(topology.name, 'x', SV_NAME); break;
        }
        assert_null(sv_topology_json(&topology));
        assert_null(sv_topology_dot(&topology));
    }
}

static void is_matrix(const char *expected, uint32_t pairs)
{
    struct sv_several several;
    char *text = sv_topology_matrix(&topology, &several);
    assert_non_null(text);
    assert_string_equal(text, expected);
    assert_int_equal(several.pairs, pairs);
    free(text);
}

static void test_matrix(void **state)
{
    (void)state;
    struct sv_several several;
    assert_int_equal(load("chain", "3", &tb5), 0);
    is_matrix("[\n"
              "  {\"ssh\": \"0\", \"ips\": [\"127.0.0.1\"], \"rdma\": [null, \"rdma_en2\", null]},\n"
              "  {\"ssh\": \"1\", \"ips\": [\"127.0.0.1\"], \"rdma\": [\"rdma_en2\", null, \"rdma_en3\"]},\n"
              "  {\"ssh\": \"2\", \"ips\": [\"127.0.0.1\"], \"rdma\": [null, \"rdma_en2\", null]}\n"
              "]\n",
              0);
    assert_int_equal(load("switch", "1", &generic), 0);
    is_matrix("[\n  {\"ssh\": \"0\", \"ips\": [\"127.0.0.1\"], \"rdma\": [null]}\n]\n", 0);
    /* Three cables join a and b. The one at a/en2 is down, so both hosts name that from a/en3 to b/en4, although another begins at b/en3. A
       device on the switch is named only if no cable leads to the other host. Host z reaches no other. */
    taken("{\"hosts\": [{\"name\": \"a\", \"devices\": [{\"interface\": \"en2\", \"port\": \"down\"}, \"en3\", \"en4\", \"en5\"]},"
          "{\"name\": \"b\", \"devices\": [\"en2\", \"en3\", \"en4\", \"en5\"]}, \"c\", {\"name\": \"z\", \"devices\": []}],"
          "\"cables\": [{\"from\": \"a/en2\", \"to\": \"b/en2\"}, {\"from\": \"a/en3\", \"to\": \"b/en4\"},"
          "{\"from\": \"a/en4\", \"to\": \"b/en3\"}], \"switch\": true}",
          &tb5);
    is_matrix("[\n"
              "  {\"ssh\": \"a\", \"ips\": [\"127.0.0.1\"], \"rdma\": [null, \"rdma_en3\", \"rdma_en5\", null]},\n"
              "  {\"ssh\": \"b\", \"ips\": [\"127.0.0.1\"], \"rdma\": [\"rdma_en4\", null, \"rdma_en5\", null]},\n"
              "  {\"ssh\": \"c\", \"ips\": [\"127.0.0.1\"], \"rdma\": [\"rdma_en2\", \"rdma_en2\", null, null]},\n"
              "  {\"ssh\": \"z\", \"ips\": [\"127.0.0.1\"], \"rdma\": [null, null, null, null]}\n"
              "]\n",
              1);
    taken("{\"hosts\": [\"a\", \"b\"]}", &tb5);
    assert_null(sv_topology_matrix(&topology, &several));
    assert_int_equal(errno, ENXIO);
    topology.devices[0].cable = 4000;
    assert_null(sv_topology_matrix(&topology, &several));
    assert_int_equal(errno, EINVAL);
}

static void test_dot(void **state)
{
    (void)state;
    assert_int_equal(load("ring", "3", &strict), 0);
    topology.devices[2].port_up = 0;
    char *dot = sv_topology_dot(&topology);
    assert_non_null(dot);
    assert_non_null(strstr(dot, "label=\"ring 3\""));
    assert_non_null(strstr(dot, "label=\"host 2\""));
    assert_non_null(strstr(dot, "rdma_en3"));
    assert_non_null(strstr(dot, "1 ::ffff:169.254.1.1"));
    assert_non_null(strstr(dot, "(unreachable)"));
    assert_non_null(strstr(dot, "rdma_en2 (down)"));
    assert_non_null(strstr(dot, "d0 -- d3;"));
    const int there = system("command -v dot >/dev/null") == 0;
    if (there) {
        FILE *graphviz = popen("dot -Tsvg >/dev/null", "w");
        assert_non_null(graphviz);
        fputs(dot, graphviz);
        assert_int_equal(pclose(graphviz), 0);
    }
    free(dot);
    if (!there)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_switch),
        cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_builtin_refused),
        cmocka_unit_test(test_gids),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_file_refused),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_print_broken),
        cmocka_unit_test(test_dot),
        cmocka_unit_test(test_matrix),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
