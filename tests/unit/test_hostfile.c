/* SPDX-License-Identifier: MIT
 *
 * Hostfiles: each form is read, and each kind of mistake is named with its line and field.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cluster/cluster.h"

static struct cluster_hostfile *good(const char *text)
{
    struct cluster_hostfile *h = NULL;
    int rc = cluster_hostfile_parse(&h, text, strlen(text), "F");
    if (rc)
        fail_msg("%s", base_error());
    return h;
}

static void bad(const char *text, const char *sentence)
{
    struct cluster_hostfile *h = NULL;
    assert_int_equal(cluster_hostfile_parse(&h, text, strlen(text), "F"), -EINVAL);
    assert_null(h);
    assert_string_equal(base_error(), sentence);
}

static void reads_own_form(void **state)
{
    (void)state;
    struct cluster_hostfile *h = good("{\"weft\": 1, \"coord\": \"10.0.0.9:99\",\n"
                                      " \"settings\": {\"pool\": \"1G\", \"spin\": 0, \"pool_lock\": true},\n"
                                      " \"hosts\": [{\"ssh\": \"a.local\", \"ips\": [\"10.0.0.1\", \"fe80::1%en1\"],"
                                      " \"rdma\": [null, \"rdma_en5\"]},\n"
                                      "  {\"ssh\": null, \"ips\": [], \"rdma\": [\"rdma_en3\", null]}]}");
    assert_int_equal(h->count, 2);
    assert_string_equal(h->coord, "10.0.0.9:99");
    assert_string_equal(h->hosts[0].ssh, "a.local");
    assert_int_equal(h->hosts[0].ip_count, 2);
    assert_string_equal(h->hosts[0].ips[1], "fe80::1%en1");
    assert_int_equal(h->hosts[0].rdma_count, 2);
    assert_null(h->hosts[0].rdma[0]);
    assert_string_equal(h->hosts[0].rdma[1], "rdma_en5");
    assert_null(h->hosts[1].ssh);
    assert_string_equal(h->hosts[1].rdma[0], "rdma_en3");
    assert_int_equal(h->setting_count, 3);
    assert_string_equal(h->settings[0].name, "pool");
    assert_string_equal(h->settings[0].value, "1G");
    assert_string_equal(h->settings[1].value, "0");
    assert_string_equal(h->settings[2].value, "1");
    cluster_hostfile_free(h);
}

static void slots_become_nodes(void **state)
{
    (void)state;
    struct cluster_hostfile *h = good("{\"weft\": 1, \"hosts\": [{\"ips\": [\"10.0.0.1\"], \"rdma\": [null, \"d1\"], "
                                      "\"slots\": 2}, {\"rdma\": [\"d0\", null], \"slots\": 3}]}");
    assert_int_equal(h->count, 5);
    assert_int_equal(h->machines, 2);
    static const uint32_t machine[] = {0, 0, 1, 1, 1};
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(h->hosts[i].machine, machine[i]);
        assert_int_equal(h->hosts[i].rdma_count, 5);
        for (uint32_t j = 0; j < 5; j++) {
            if (machine[i] == machine[j])
                assert_null(h->hosts[i].rdma[j]);
            else
                assert_string_equal(h->hosts[i].rdma[j], machine[i] ? "d0" : "d1");
        }
    }
    assert_string_equal(h->hosts[1].ips[0], "10.0.0.1");
    cluster_hostfile_free(h);
}

static void reads_mlx_forms(void **state)
{
    (void)state;
    struct cluster_hostfile *h = good("[{\"ssh\": \"a\", \"ips\": [\"10.0.0.1\"], \"rdma\": [null, [\"en5\", \"en4\"]],"
                                      " \"other\": {}},\n {\"ssh\": \"b\"}]");
    assert_int_equal(h->count, 2);
    assert_string_equal(h->hosts[0].rdma[1], "en5");
    assert_int_equal(h->hosts[1].rdma_count, 0);
    cluster_hostfile_free(h);

    h = good("{\"backend\": \"jaccl\", \"envs\": [\"A=B\"], \"hosts\": [{\"ssh\": \"a\", \"slots\": \"x\"}]}");
    assert_int_equal(h->count, 1);
    cluster_hostfile_free(h);

    h = good("[[\"10.0.0.1:5000\", \"10.0.1.1:5001\"], [\"10.0.0.2:5000\"], [\"::1:5000\"]]");
    assert_int_equal(h->count, 3);
    assert_string_equal(h->hosts[0].ips[1], "10.0.1.1");
    assert_string_equal(h->hosts[2].ips[0], "::1");
    cluster_hostfile_free(h);

    h = good("[[null, \"rdma_en5\", [\"a\", \"b\"]], [\"rdma_en5\", null, []], [\"x\", null, null]]");
    assert_int_equal(h->count, 3);
    assert_string_equal(h->hosts[0].rdma[2], "a");
    assert_null(h->hosts[1].rdma[2]);
    assert_int_equal(h->hosts[2].machine, 2);
    cluster_hostfile_free(h);
}

static void names_line_and_field(void **state)
{
    (void)state;
    bad("{\"hosts\": [\n {\"ssh\": \"a\"},\n {\"ssh\": \"b\"},\n {\"ssh\": \"c\",\n  \"rdma\": [\"x\",\n  7, null]}]}",
        "F:6: hosts[2].rdma[1]: expected a device's name or null, found 7");
    bad("[[null, \"a\"],\n [\"b\", \"c\"]]", "F:2: [1][1]: expected null (a host has no cable to itself), found \"c\"");
    bad("[[null, \"a\"],\n [\"b\"]]", "F:2: [1]: expected one entry for each of the 2 hosts, found a list of 1");
    bad("[[null, \"a\"],\n 7]", "F:2: [1]: expected a list of devices, found 7");
    bad("[[\"a:1\"],\n[\"b:0\"]]", "F:2: [1][0]: expected \"HOST:PORT\", found \"b:0\"");
    bad("[[\"a:1\"],\n[\"b:99999\"]]", "F:2: [1][0]: expected \"HOST:PORT\", found \"b:99999\"");
    bad("{\"weft\": 2, \"hosts\": []}", "F:1: weft: expected 1 (the version of the format), found 2");
    bad("{\"weft\": 1}", "F:1: hosts: expected a list of 1 to 1024 hosts, found nothing");
    bad("{\"weft\": 1,\n\"hosts\": []}", "F:2: hosts: expected a list of 1 to 1024 hosts, found a list of 0");
    bad("{\"weft\": 1,\n\"host\": []}", "F:2: host: expected one of the keys weft, coord, hosts, settings, found a list of 0");
    bad("{\"weft\": 1,\n\"hosts\": [{\n\"ip\": \"a\"}]}", "F:3: hosts[0].ip: expected one of the keys ssh, ips, rdma, slots, found \"a\"");
    bad("{\"weft\": 1,\n\"hosts\": [{\"ssh\": \"a\",\n\"slots\": 0}]}",
        "F:3: hosts[0].slots: expected a number of nodes from 1 to 1024, found 0");
    bad("{\"weft\": 1, \"hosts\": [{\"ips\": [], \"slots\": 1000}, {\"ips\": [], \"slots\": 1000}]}",
        "F: hosts: expected at most 1024 nodes in all, found 2000");
    bad("{\"weft\": 1, \"hosts\": [{\"ssh\": \"-oProxyCommand=x\"}]}",
        "F:1: hosts[0].ssh: expected a host's name, as in \"a.local\", found \"-oProxyCommand=x\"");
    bad("{\"hosts\": [{\"ssh\": \"a\"},\n{\"host\": \"b\"}]}", "F:2: hosts[1]: expected \"ssh\", \"ips\" or \"rdma\", found none of them");
    bad("[{\"ssh\": null}]", "F:1: [0]: expected \"ssh\", \"ips\" or \"rdma\", found none of them");
    bad("{\"weft\": 1, \"hosts\": [{\"slots\": 2}]}", "F:1: hosts[0]: expected \"ssh\", \"ips\" or \"rdma\", found none of them");
    bad("{\"weft\": 1, \"hosts\": [{\"ips\": \"a\"}]}", "F:1: hosts[0].ips: expected a list of addresses, found \"a\"");
    bad("{\"weft\": 1, \"hosts\": [{\"ips\": []}],\n\"settings\": {\"pol\": 1}}",
        "F:2: settings.pol: expected a setting that is allowed in a hostfile (`weft config` lists all), found 1");
    bad("{\"weft\": 1, \"hosts\": [{\"ips\": []}],\n\"settings\": {\"rank\": 1}}",
        "F:2: settings.rank: expected a setting that is allowed in a hostfile (`weft config` lists all), found 1");
    bad("{\"weft\": 1, \"hosts\": [{\"ips\": []}],\n\"settings\": {\"pool\": [1]}}",
        "F:2: settings.pool: expected a text, a number, true or false, found a list of 1");
    bad("{\"weft\": 1, \"hosts\": [{\"ips\": []}],\n\"coord\": \"nowhere\"}",
        "F:2: coord: address 'nowhere': expected HOST:PORT, [IPV6]:PORT or unix:PATH");
    bad("{}", "F:1: the file: expected an object with \"weft\": 1 and \"hosts\", MLX's list of hosts, or a matrix "
              "of devices, found an object");
    bad("[1]", "F:1: the file: expected an object with \"weft\": 1 and \"hosts\", MLX's list of hosts, or a matrix "
               "of devices, found a list of 1");
}

/* Brackets and quotes inside strings must not confuse the search for a position. */
static void finds_lines_behind_strings(void **state)
{
    (void)state;
    bad("[{\"note\": \"]}\\\"[{\", \"ssh\": \"a\",\n\"x\": [[{}], \"}\"]},\n{\"ssh\": 7}]",
        "F:3: [1].ssh: expected a host's name, as in \"a.local\", found 7");
}

static void refuses_what_is_not_json(void **state)
{
    (void)state;
    struct cluster_hostfile *h;
    static const char *const texts[] = {"", "{", "[[null]", "{\"weft\": 1, \"weft\": 1}", "[[null]] x", "\xff\xfe"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_int_equal(cluster_hostfile_parse(&h, texts[i], strlen(texts[i]), "F"), -EINVAL);
        assert_int_equal(strncmp(base_error(), "F:1: expected JSON, found an error", 34), 0);
    }
    assert_int_equal(cluster_hostfile_parse(&h, "[[null\0]]", 9, "F"), -EINVAL);
    assert_non_null(strstr(base_error(), "zero byte"));
    static const char escaped[] = "[{\"ssh\": \"a\\u0000b\"}]";
    assert_int_equal(cluster_hostfile_parse(&h, escaped, sizeof escaped - 1, "F"), -EINVAL);
}

static void refuses_too_many_hosts(void **state)
{
    (void)state;
    static char text[16 * 1025 + 16];
    char *p = text;
    *p++ = '[';
    for (int i = 0; i < 1025; i++)
        p += sprintf(p, "%s{}", i ? "," : "");
    *p = ']';
    bad(text, "F:1: the file: expected a list of 1 to 1024 hosts, found a list of 1025");
}

static void reads_files(void **state)
{
    (void)state;
    struct cluster_hostfile *h;
    char dir[] = "/tmp/hostfile-test-XXXXXX", path[64], pipe_path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/hosts.json", dir);
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", dir);
    assert_int_equal(cluster_hostfile_read(&h, path), -ENOENT);
    FILE *f = fopen(path, "w");
    fputs("[[null]]\n", f);
    fclose(f);
    assert_int_equal(cluster_hostfile_read(&h, path), 0);
    assert_int_equal(h->count, 1);
    cluster_hostfile_free(h);
    assert_int_equal(cluster_hostfile_read(&h, dir), -EINVAL);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_int_equal(cluster_hostfile_read(&h, pipe_path), -EINVAL); /* the read fails and does not wait for a writer */
    assert_int_equal(truncate(path, 5 << 20), 0);
    assert_int_equal(cluster_hostfile_read(&h, path), -EINVAL);
    assert_non_null(strstr(base_error(), "at most 4 MiB"));
    unlink(path);
    unlink(pipe_path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_own_form),
        cmocka_unit_test(slots_become_nodes),
        cmocka_unit_test(reads_mlx_forms),
        cmocka_unit_test(names_line_and_field),
        cmocka_unit_test(finds_lines_behind_strings),
        cmocka_unit_test(refuses_what_is_not_json),
        cmocka_unit_test(refuses_too_many_hosts),
        cmocka_unit_test(reads_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
