/* SPDX-License-Identifier: MIT
 *
 * Settings: precedence, the source of each value, MLX's names, and errors that name a wrong setting.
 */
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

static char dir[] = "/tmp/settings-test-XXXXXX";
static char hosts[64], secret[64];

static const char *const variables[] = {"WEFT_RANK",         "WEFT_SIZE",          "WEFT_COORD",
                                        "WEFT_HOSTFILE",     "WEFT_SECRET",        "WEFT_SECRET_FILE",
                                        "WEFT_TRANSPORT",    "WEFT_POOL",          "WEFT_POOL_HUGE",
                                        "WEFT_POOL_LOCK",    "WEFT_POOL_PREFAULT", "WEFT_DEADLINE",
                                        "WEFT_SAY_AFTER",    "WEFT_JOIN_TIMEOUT",  "WEFT_LIVENESS",
                                        "WEFT_SSH",          "WEFT_CLUSTER",       "WEFT_SPIN",
                                        "WEFT_LOG",          "WEFT_GID_INDEX",     "WEFT_RAILS",
                                        "WEFT_STRIPE",       "WEFT_COPY_THREADS",  "WEFT_GUARD",
                                        "WEFT_TB_LANES",     "WEFT_TB_CHECK",      "WEFT_VERBS_LIBRARY",
                                        "MLX_RANK",          "JACCL_RANK",         "MLX_HOSTFILE",
                                        "MLX_IBV_DEVICES",   "JACCL_IBV_DEVICES",  "MLX_JACCL_COORDINATOR",
                                        "JACCL_COORDINATOR", "PMIX_RANK",          "PMIX_NAMESPACE",
                                        "WEFT_PMIX_LIBRARY", "WEFT_GPU_RDMA"};

static int setup(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    return 0;
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static struct cluster_settings good(const weft_config *config)
{
    struct cluster_settings s;
    if (cluster_settings_resolve(&s, config))
        fail_msg("%s", base_error());
    return s;
}

static void bad(const char *sentence)
{
    struct cluster_settings s;
    int rc = cluster_settings_resolve(&s, NULL);
    if (rc == 0)
        fail_msg("expected: %s", sentence);
    assert_string_equal(base_error(), sentence);
    assert_null(s.secret);
    assert_null(s.hosts);
}

static void alone_by_default(void **state)
{
    (void)state;
    struct cluster_settings s = good(NULL);
    assert_int_equal(s.rank, 0);
    assert_int_equal(s.size, 1);
    assert_string_equal(s.coord, "");
    assert_string_equal(s.fabric.transport, "");
    assert_null(s.secret);
    assert_int_equal(s.pool.bytes, 256u << 20);
    assert_false(s.pool.huge || s.pool.lock || s.pool.prefault);
    assert_int_equal(s.fabric.deadline_ns, 30 * WEFT_SECOND);
    assert_false(s.fabric.bounded); /* the deadline was not set */
    assert_int_equal(s.fabric.say_after_ns, 30 * WEFT_SECOND);
    assert_int_equal(s.join_timeout_ns, 30 * WEFT_SECOND);
    assert_int_equal(s.fabric.spin_ns, 20 * WEFT_US);
    cluster_settings_clear(&s);
    setenv("WEFT_POOL", "", 1); /* an empty value counts as not set */
    s = good(NULL);
    cluster_settings_clear(&s);
}

static void option_environment_hostfile_default(void **state)
{
    (void)state;
    write_file(hosts,
               "{\"weft\": 1, \"hosts\": [{\"ips\": [\"10.0.0.1\"]}, {\"ips\": []}],"
               " \"settings\": {\"pool\": \"2M\", \"deadline\": \"3s\", \"spin\": 0, \"pool_lock\": true}}",
               0600);
    setenv("WEFT_HOSTFILE", hosts, 1);
    setenv("WEFT_RANK", "1", 1);
    setenv("WEFT_DEADLINE", "4s", 1);
    setenv("WEFT_POOL_LOCK", "no", 1);
    struct cluster_settings s = good(NULL);
    assert_int_equal(s.rank, 1);
    assert_int_equal(s.size, 2);
    assert_string_equal(s.coord, "10.0.0.1:7654");
    assert_int_equal(s.pool.bytes, 2 << 20);
    assert_int_equal(s.fabric.deadline_ns, 4 * WEFT_SECOND);
    assert_true(s.fabric.bounded);
    assert_int_equal(s.fabric.spin_ns, 0);
    assert_false(s.pool.huge || s.pool.lock || s.pool.prefault);
    assert_non_null(s.hosts);
    cluster_settings_clear(&s);

    weft_config config = {.bytes = sizeof config,
                          .deadline_ns = 5 * WEFT_SECOND,
                          .pool_bytes = 3 << 20,
                          .pool_flags = WEFT_POOL_PREFAULT,
                          .size = 2,
                          .rank = 0,
                          .coord = "localhost:99"};
    s = good(&config);
    assert_int_equal(s.rank, 0);
    assert_int_equal(s.fabric.deadline_ns, 5 * WEFT_SECOND);
    assert_true(s.fabric.bounded);
    assert_int_equal(s.pool.bytes, 3 << 20);
    assert_true(s.pool.prefault && !s.pool.huge && !s.pool.lock);
    assert_string_equal(s.coord, "localhost:99");
    cluster_settings_clear(&s);

    struct cluster_setting_row rows[CLUSTER_SETTINGS_MAX];
    int n = cluster_settings_list(rows, CLUSTER_SETTINGS_MAX, &config, false);
    assert_int_equal(n, 43);
    char file[96];
    snprintf(file, sizeof file, "hostfile %s", hosts);
    for (int i = 0; i < n; i++) {
        if (strcmp(rows[i].name, "deadline") == 0)
            assert_string_equal(rows[i].from, "option");
        else if (strcmp(rows[i].name, "pool_lock") == 0 || strcmp(rows[i].name, "coord") == 0)
            assert_string_equal(rows[i].from, "option");
        else if (strcmp(rows[i].name, "hostfile") == 0)
            assert_string_equal(rows[i].from, "environment WEFT_HOSTFILE");
        else if (strcmp(rows[i].name, "spin") == 0)
            assert_string_equal(rows[i].from, file);
        else if (strcmp(rows[i].name, "join_timeout") == 0)
            assert_string_equal(rows[i].from, "default");
    }
}

static void place_in_the_cluster(void **state)
{
    (void)state;
    setenv("WEFT_SIZE", "3", 1);
    bad("the cluster has 3 nodes, but the number of this one is not set: set WEFT_RANK to a number from 0 to 2, or "
        "start the program with `weft run`");
    setenv("WEFT_RANK", "3", 1);
    bad("WEFT_RANK='3': expected a number below the number of nodes (WEFT_SIZE)");
    setenv("WEFT_RANK", "2", 1);
    bad("the cluster has 3 nodes, but the address of node 0 is not set: set WEFT_COORD to HOST:PORT or unix:PATH, or "
        "start the program with `weft run`");
    setenv("WEFT_COORD", "unix:/tmp/x", 1);
    struct cluster_settings s = good(NULL);
    assert_int_equal(s.rank, 2);
    assert_int_equal(s.size, 3);
    assert_string_equal(s.coord, "unix:/tmp/x");
    assert_int_equal(s.join_timeout_ns, 30 * WEFT_SECOND);
    cluster_settings_clear(&s);
    setenv("WEFT_SIZE", "1024", 1); /* with many nodes the default is longer */
    s = good(NULL);
    assert_int_equal(s.join_timeout_ns, 187 * WEFT_SECOND);
    cluster_settings_clear(&s);
    setenv("WEFT_JOIN_TIMEOUT", "5s", 1);
    s = good(NULL);
    assert_int_equal(s.join_timeout_ns, 5 * WEFT_SECOND);
    cluster_settings_clear(&s);
    unsetenv("WEFT_JOIN_TIMEOUT");
    unsetenv("WEFT_SIZE");
    bad("WEFT_RANK is set, but the number of nodes is not: set WEFT_SIZE or WEFT_HOSTFILE, or start the program "
        "with `weft run`");
    setenv("WEFT_RANK", "0", 1);
    bad("WEFT_COORD is set, but the number of nodes is not: set WEFT_SIZE or WEFT_HOSTFILE, or start the program "
        "with `weft run`");
    write_file(hosts, "{\"weft\": 1, \"coord\": \"unix:/tmp/y\", \"hosts\": [{\"ips\": [], \"slots\": 2}]}", 0600);
    setenv("WEFT_HOSTFILE", hosts, 1);
    unsetenv("WEFT_COORD");
    s = good(NULL);
    assert_int_equal(s.size, 2);
    assert_string_equal(s.coord, "unix:/tmp/y");
    cluster_settings_clear(&s);
    setenv("WEFT_SIZE", "3", 1);
    char sentence[256];
    snprintf(sentence, sizeof sentence, "WEFT_SIZE='3': expected 2, the number of nodes in hostfile %s", hosts);
    bad(sentence);
    unsetenv("WEFT_SIZE");
    write_file(hosts, "{\"weft\": 1, \"hosts\": [{\"ips\": [], \"slots\": 2}]}", 0600);
    snprintf(sentence, sizeof sentence,
             "hostfile %s: host 0 has neither \"ips\" nor \"ssh\", so node 0 has no address: add one of them, or "
             "set WEFT_COORD to HOST:PORT",
             hosts);
    bad(sentence);
    write_file(hosts, "[[\"::1:5000\"], [\"::1:5001\"]]", 0600);
    s = good(NULL);
    assert_string_equal(s.coord, "[::1]:7654");
    cluster_settings_clear(&s);
}

static void understands_mlx(void **state)
{
    (void)state;
    write_file(hosts, "[[null, \"rdma_en5\"], [\"rdma_en5\", null]]", 0600);
    setenv("MLX_RANK", "0", 1);
    setenv("MLX_IBV_DEVICES", hosts, 1);
    setenv("MLX_JACCL_COORDINATOR", "10.0.0.7:1234", 1);
    struct cluster_settings s = good(NULL);
    assert_int_equal(s.rank, 0);
    assert_int_equal(s.size, 2);
    assert_string_equal(s.coord, "10.0.0.7:1234");
    assert_string_equal(s.hosts->hosts[0].rdma[1], "rdma_en5");
    cluster_settings_clear(&s);
    setenv("JACCL_RANK", "1", 1); /* comes before MLX_RANK */
    setenv("JACCL_COORDINATOR", "10.0.0.8:1234", 1);
    s = good(NULL);
    assert_int_equal(s.rank, 1);
    assert_string_equal(s.coord, "10.0.0.8:1234");
    cluster_settings_clear(&s);
    setenv("WEFT_RANK", "0", 1); /* comes before both */
    s = good(NULL);
    assert_int_equal(s.rank, 0);
    cluster_settings_clear(&s);
    setenv("WEFT_SIZE", "5", 1); /* if weft's own variables are set, MLX's files are ignored */
    s = good(NULL);
    assert_int_equal(s.size, 5);
    assert_null(s.hosts);
    cluster_settings_clear(&s);
    unsetenv("WEFT_SIZE");
    write_file(hosts, "[[null, 7]]", 0600);
    char sentence[256];
    snprintf(sentence, sizeof sentence, "MLX_IBV_DEVICES: %s:1: [0]: expected one entry for each of the 1 hosts, found a list of 2", hosts);
    bad(sentence);
}

#define RAILS_EXPECTED "a number from 1 to 4, or as many different devices, separated by commas, as in mlx5_0,mlx5_1:2"

static void names_the_wrong_one(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *value, *sentence;
    } rows[] = {
        {"WEFT_POOL", "12Q", "WEFT_POOL='12Q': expected a size from 1 MiB to 16 TiB, as in 256M or 1.5G"},
        {"WEFT_POOL", "1K", "WEFT_POOL='1K': expected a size from 1 MiB to 16 TiB, as in 256M or 1.5G"},
        {"WEFT_RANK", "x", "WEFT_RANK='x': expected a number from 0 to 1023"},
        {"WEFT_RANK", "-1", "WEFT_RANK='-1': expected a number from 0 to 1023"},
        {"JACCL_RANK", "x", "JACCL_RANK='x': expected a number from 0 to 1023"},
        {"WEFT_SIZE", "0", "WEFT_SIZE='0': expected a number from 1 to 1024"},
        {"WEFT_SIZE", "99999999999999999999", "WEFT_SIZE='99999999999999999999': expected a number from 1 to 1024"},
        {"WEFT_DEADLINE", "0", "WEFT_DEADLINE='0': expected a duration from 1ms to 1000h, as in 500ms or 2s"},
        {"WEFT_SPIN", "2s", "WEFT_SPIN='2s': expected a duration from 0 to 1s, as in 500ms or 2s"},
        {"WEFT_POOL_LOCK", "maybe", "WEFT_POOL_LOCK='maybe': expected 0, 1, yes, no, true, false, on or off"},
        {"WEFT_TRANSPORT", "smoke", "WEFT_TRANSPORT='smoke': expected one of shm|rc|tb|ofi|rdma"},
        {"WEFT_RAILS", "0", "WEFT_RAILS='0': expected " RAILS_EXPECTED},
        {"WEFT_RAILS", "5", "WEFT_RAILS='5': expected " RAILS_EXPECTED},
        {"WEFT_RAILS", "a,,b", "WEFT_RAILS='a,,b': expected " RAILS_EXPECTED},
        {"WEFT_RAILS", "a,b,a", "WEFT_RAILS='a,b,a': expected " RAILS_EXPECTED},
        {"WEFT_RAILS", "a,b,c,d,e", "WEFT_RAILS='a,b,c,d,e': expected " RAILS_EXPECTED},
        {"WEFT_STRIPE", "4K", "WEFT_STRIPE='4K': expected a size from 32 KiB to 1 TiB, as in 256M or 1.5G"},
        {"WEFT_COPY_THREADS", "17", "WEFT_COPY_THREADS='17': expected a number from 0 to 16"},
        {"WEFT_GID_INDEX", "-2", "WEFT_GID_INDEX='-2': expected a number from -1 to 255"},
        {"WEFT_TB_CHECK", "some", "WEFT_TB_CHECK='some': expected one of full|frames"},
        {"WEFT_LOG", "loud", "WEFT_LOG='loud': expected one of error|warn|info|debug"},
        {"WEFT_COORD", "127.0.0.1:0", "WEFT_COORD='127.0.0.1:0': expected a port from 1 to 65535, the same on all nodes"},
        {"WEFT_COORD", "[::1]:000", "WEFT_COORD='[::1]:000': expected a port from 1 to 65535, the same on all nodes"},
        {"WEFT_COORD", "here", "WEFT_COORD='here': expected HOST:PORT, [IPV6]:PORT, unix:PATH or unix:@NAME"},
        {"WEFT_HOSTFILE", "/nonexistent", "WEFT_HOSTFILE: hostfile /nonexistent: No such file or directory"},
        {"WEFT_SECRET", "", "WEFT_SECRET is set but empty: set it to a secret of 1 to 1024 bytes, or unset it"},
        {"WEFT_SECRET_FILE", "/nonexistent", "WEFT_SECRET_FILE='/nonexistent': No such file or directory"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        setenv(rows[i].variable, rows[i].value, 1);
        bad(rows[i].sentence);
        unsetenv(rows[i].variable);
    }
    write_file(hosts, "{\"weft\": 1, \"hosts\": [{\"ips\": []}], \"settings\": {\"pool\": \"much\"}}", 0600);
    setenv("WEFT_HOSTFILE", hosts, 1);
    char sentence[256];
    snprintf(sentence, sizeof sentence, "hostfile %s: pool='much': expected a size from 1 MiB to 16 TiB, as in 256M or 1.5G", hosts);
    bad(sentence);
    unsetenv("WEFT_HOSTFILE");
    weft_config config = {.bytes = sizeof config, .deadline_ns = -5};
    struct cluster_settings s;
    assert_int_equal(cluster_settings_resolve(&s, &config), -EINVAL);
    assert_string_equal(base_error(), "deadline='-5ns': expected a duration from 1ms to 1000h, as in 500ms or 2s");
}

static void secrets(void **state)
{
    (void)state;
    write_file(secret, "word\n", 0600);
    setenv("WEFT_SECRET_FILE", secret, 1);
    struct cluster_settings s = good(NULL);
    assert_int_equal(s.secret_len, 4);
    assert_memory_equal(s.secret, "word", 4);
    cluster_settings_clear(&s);
    assert_null(s.secret);
    write_file(secret, "two\n\n", 0600); /* the last newline was added by the editor; another one belongs to the secret */
    s = good(NULL);
    assert_int_equal(s.secret_len, 4);
    cluster_settings_clear(&s);

    setenv("WEFT_SECRET", "text", 1);
    bad("WEFT_SECRET and WEFT_SECRET_FILE are both set: unset one");
    weft_config config = {.bytes = sizeof config, .secret = "option"};
    s = good(&config);
    assert_int_equal(s.secret_len, 6);
    cluster_settings_clear(&s);
    unsetenv("WEFT_SECRET");

    char sentence[256];
    write_file(secret, "word", 0640);
    snprintf(sentence, sizeof sentence, "WEFT_SECRET_FILE='%s': other users may access the file (mode 0640): use chmod 600", secret);
    bad(sentence);
    write_file(secret, "word", 0604);
    snprintf(sentence, sizeof sentence, "WEFT_SECRET_FILE='%s': other users may access the file (mode 0604): use chmod 600", secret);
    bad(sentence);
    snprintf(sentence, sizeof sentence, "WEFT_SECRET_FILE='%s': expected a secret of 1 to 1024 bytes", secret);
    write_file(secret, "\n", 0600);
    bad(sentence);
    char longest[1030];
    memset(longest, 'x', sizeof longest);
    longest[1024] = '\n';
    longest[1025] = '\0';
    write_file(secret, longest, 0600);
    s = good(NULL);
    assert_int_equal(s.secret_len, 1024);
    cluster_settings_clear(&s);
    longest[1024] = 'x';
    write_file(secret, longest, 0600);
    bad(sentence);
    unsetenv("WEFT_SECRET_FILE");

    setenv("WEFT_SECRET", longest, 1);
    bad("WEFT_SECRET: expected 1 to 1024 bytes, found 1025");
    setenv("WEFT_SECRET", "hidden", 1);
    struct cluster_setting_row rows[CLUSTER_SETTINGS_MAX];
    int n = cluster_settings_list(rows, CLUSTER_SETTINGS_MAX, NULL, false);
    for (int i = 0; i < n; i++) {
        assert_null(strstr(rows[i].value, "hidden"));
        if (strcmp(rows[i].name, "secret") == 0)
            assert_string_equal(rows[i].value, "(set)");
    }
}

static void rails_of_rc(void **state)
{
    (void)state;
    struct cluster_settings s = good(NULL);
    assert_int_equal(s.fabric.rails, 0);
    assert_int_equal(s.fabric.stripe_bytes, 256 << 10);
    cluster_settings_clear(&s);
    setenv("WEFT_RAILS", "3", 1);
    setenv("WEFT_STRIPE", "1M", 1);
    s = good(NULL);
    assert_int_equal(s.fabric.rails, 3);
    assert_string_equal(s.fabric.rail_names[0], "");
    assert_int_equal(s.fabric.stripe_bytes, 1 << 20);
    cluster_settings_clear(&s);
    setenv("WEFT_RAILS", "mlx5_1:2,mlx5_0", 1);
    s = good(NULL);
    assert_int_equal(s.fabric.rails, 2);
    assert_string_equal(s.fabric.rail_names[0], "mlx5_1:2");
    assert_string_equal(s.fabric.rail_names[1], "mlx5_0");
    cluster_settings_clear(&s);
}

static void threads_that_copy(void **state)
{
    (void)state;
    struct cluster_settings s = good(NULL);
    assert_int_equal(s.fabric.copy_threads, 0); /* chosen by the number of processors */
    cluster_settings_clear(&s);
    setenv("WEFT_COPY_THREADS", "4", 1);
    s = good(NULL);
    assert_int_equal(s.fabric.copy_threads, 4);
    cluster_settings_clear(&s);
}

static void lanes_of_tb(void **state)
{
    (void)state;
    struct cluster_settings s = good(NULL);
    assert_int_equal(s.fabric.lane_count, 3);
    assert_int_equal(s.fabric.lanes[0].message, 32 << 10);
    assert_int_equal(s.fabric.lanes[0].depth, 32);
    assert_int_equal(s.fabric.lanes[2].message, 128 << 10);
    assert_int_equal(s.fabric.lanes[2].depth, 16);
    assert_false(s.fabric.check_frames);
    cluster_settings_clear(&s);
    setenv("WEFT_TB_LANES", "4096:64,1M:15,16773120:1,4K:1,4K:1,4K:1,4K:1,8K:2", 1);
    setenv("WEFT_TB_CHECK", "frames", 1);
    s = good(NULL);
    assert_int_equal(s.fabric.lane_count, 8);
    assert_int_equal(s.fabric.lanes[0].message, 4096);
    assert_int_equal(s.fabric.lanes[1].depth, 15);
    assert_int_equal(s.fabric.lanes[2].message, 16773120);
    assert_true(s.fabric.check_frames);
    cluster_settings_clear(&s);
    static const char *const wrong[] = {"32K",
                                        ":",
                                        "32K:",
                                        ":4",
                                        "32K:0",
                                        "32K:65",
                                        "32K:-1",
                                        "32K:+1",
                                        "32K: 4",
                                        "32K:4x",
                                        "32K:4,",
                                        ",32K:4",
                                        "32K:4,,32K:4",
                                        "0:4",
                                        "6000:4",
                                        "16777216:1",
                                        "1M:16",
                                        "x:4",
                                        "32K:4 ",
                                        "99999999999999999999:1",
                                        "4K:99999999999999999999",
                                        "4K:1,4K:1,4K:1,4K:1,4K:1,4K:1,4K:1,4K:1,4K:1",
                                        "00000000000000000000000000000004K:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char sentence[400];
        setenv("WEFT_TB_LANES", wrong[i], 1);
        snprintf(sentence, sizeof sentence,
                 "WEFT_TB_LANES='%s': expected 1 to 8 lanes as SIZE:MESSAGES, as in 32K:32,128K:16: SIZE is "
                 "a multiple of 4K, up to 16380K; MESSAGES is from 1 to 64; SIZE times MESSAGES is at most 4095 times 4K",
                 wrong[i]);
        bad(sentence);
    }
    unsetenv("WEFT_TB_LANES");
    write_file(hosts, "{\"weft\": 1, \"hosts\": [{\"ips\": []}], \"settings\": {\"tb_lanes\": \"64K:8\", \"tb_check\": \"frames\"}}", 0600);
    setenv("WEFT_HOSTFILE", hosts, 1);
    s = good(NULL);
    assert_int_equal(s.fabric.lane_count, 1);
    assert_int_equal(s.fabric.lanes[0].message, 64 << 10);
    assert_true(s.fabric.check_frames);
    cluster_settings_clear(&s);
}

static void log_level_is_set(void **state)
{
    (void)state;
    setenv("WEFT_LOG", "debug", 1);
    struct cluster_settings s = good(NULL);
    assert_int_equal(base_log_threshold, BASE_LOG_DEBUG);
    cluster_settings_clear(&s);
    unsetenv("WEFT_LOG");
    s = good(NULL);
    assert_int_equal(base_log_threshold, BASE_LOG_WARN);
    cluster_settings_clear(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(alone_by_default, setup),     cmocka_unit_test_setup(option_environment_hostfile_default, setup),
        cmocka_unit_test_setup(place_in_the_cluster, setup), cmocka_unit_test_setup(understands_mlx, setup),
        cmocka_unit_test_setup(names_the_wrong_one, setup),  cmocka_unit_test_setup(secrets, setup),
        cmocka_unit_test_setup(rails_of_rc, setup),          cmocka_unit_test_setup(threads_that_copy, setup),
        cmocka_unit_test_setup(lanes_of_tb, setup),          cmocka_unit_test_setup(log_level_is_set, setup),
    };
    if (!mkdtemp(dir))
        return 1;
    snprintf(hosts, sizeof hosts, "%s/hosts.json", dir);
    snprintf(secret, sizeof secret, "%s/secret", dir);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(hosts);
    unlink(secret);
    rmdir(dir);
    return failed;
}
