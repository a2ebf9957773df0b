/* SPDX-License-Identifier: MIT
 *
 * Tests of profiles: the built-in profiles; profiles that are read from files; which profiles are refused, and in which words; and that
 * docs/profiles.md lists every key that a profile can have.
 *
 * `test_profile table` prints the list of keys; docs/profiles.md must contain exactly this list.
 */
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
#include <jansson.h>

#include "fabric/shared.h"
#include "model/keys.h"
#include "model/model.h"

static struct sv_profile loaded(const char *name)
{
    struct sv_profile p;
    struct sv_why why = {""};
    if (sv_profile_load(name, &p, &why))
        fail_msg("%s", why.text);
    return p;
}

static int parse(const char *json, struct sv_profile *p, struct sv_why *why)
{
    return sv_profile_parse(json, strlen(json), "test.json", p, why);
}

static void test_names(void **state)
{
    (void)state;
    const char *const *names = sv_profile_names();
    assert_string_equal(names[0], "generic");
    assert_string_equal(names[1], "tb5");
    assert_string_equal(names[2], "tb5-strict");
    assert_null(names[3]);
    for (int i = 0; names[i]; i++) {
        struct sv_profile p = loaded(names[i]);
        assert_string_equal(p.name, names[i]);
    }
}

/* The printed text can be read back, and prints to the same bytes. */
static void test_round_trip(void **state)
{
    (void)state;
    for (const char *const *name = sv_profile_names(); *name; name++) {
        struct sv_profile p = loaded(*name), again;
        struct sv_why why = {""};
        char *json = sv_profile_json(&p);
        assert_non_null(json);
        memset(&again, 0xff, sizeof again);
        assert_int_equal(parse(json, &again, &why), 0);
        assert_memory_equal(&p, &again, sizeof p);
        free(json);
    }
}

static void test_generic(void **state)
{
    (void)state;
    struct sv_profile p = loaded("generic");
    assert_int_equal(p.transports, SV_RC | SV_UC | SV_UD);
    assert_int_equal(p.operations, (SV_OP_FADD << 1) - 1);
    assert_int_equal(p.transport_type, 0);
    assert_int_equal(p.atomics, 1);
    assert_true(p.max_mr < SF_MRS && p.max_qp < SF_QPS && p.max_cq < SF_CQS && p.max_pd < SF_PDS && p.max_srq < SF_SRQS);
    assert_true(p.max_qp_wr >= 16384 && p.max_sge >= 30 && p.max_inline >= 512);
    assert_int_equal(p.frame_bytes, 0);
    assert_int_equal(p.depth_step_count, 0);
    assert_int_equal(p.loss_ppm, 0);
    assert_int_equal(p.memory.heap, 0);
}

/* Checks, line by line, everything in apple-tb5.md that a profile can express. */
static void test_tb5(void **state)
{
    (void)state;
    static const char *const names[] = {"tb5", "tb5-strict"};
    for (int i = 0; i < 2; i++) {
        struct sv_profile p = loaded(names[i]);
        assert_string_equal(p.device_name, "rdma_{interface}");
        assert_int_equal(p.transport_type, 100);
        assert_int_equal(p.transports, SV_UC);
        assert_int_equal(p.transport_errno, 102);
        assert_int_equal(p.operations, SV_OP_SEND);
        assert_int_equal(p.max_qp, 11);
        assert_int_equal(p.real_qp, 10);
        assert_int_equal(p.qp_errno, 16);
        assert_int_equal(p.real_pd, 11);
        assert_int_equal(p.real_mr, 100);
        assert_int_equal(p.max_mr_size, 16400000);
        assert_true(p.real_mr_size > UINT64_C(1) << 32);
        assert_int_equal(p.max_message, 4095 * 4096);
        assert_int_equal(p.max_sge, 1);
        assert_int_equal(p.max_inline + p.max_srq + p.max_rd_atomic + p.atomics, 0);
        assert_int_equal(p.frame_bytes, 4096);
        assert_int_equal(p.depth_step_count, 2);
        static const uint32_t steps[] = {1023, 4095};
        assert_memory_equal(p.depth_steps, steps, sizeof steps);
        assert_true(p.credits && p.equal_frames && p.receive_needs_rts && p.pd_leaks);
        assert_true(p.error_blocks_dereg && p.down_port_refuses_pd && p.private_gid);
        assert_int_equal(p.unplugged, SV_UNPLUGGED_CRASHES);
        assert_int_equal(p.bad_gid_errno, 22);
        assert_int_equal(p.unreachable_gid_errno, 60);
        assert_int_equal(p.memory.mapping, 0);
        assert_int_not_equal(p.memory.heap, 0);
    }
    struct sv_profile tb5 = loaded("tb5"), strict = loaded("tb5-strict");
    assert_int_equal(tb5.huge_region, SV_HUGE_WRAPS);
    assert_int_equal(strict.huge_region, SV_HUGE_REFUSE);
    assert_int_equal(tb5.overdepth, SV_OVERDEPTH_LOSE);
    assert_int_equal(strict.overdepth, SV_OVERDEPTH_REFUSE);
    assert_int_equal(strict.overdepth_errno, 12);
    assert_int_equal(tb5.memory.heap_aligned, 0);
    assert_int_not_equal(strict.memory.heap_aligned, 0);
    assert_true(!tb5.full_access && strict.full_access);
    assert_true(tb5.loss_ppm == 0 && strict.loss_ppm == 500);
    assert_true(!tb5.first_gid_unreachable && strict.first_gid_unreachable);
}

static void test_extends(void **state)
{
    (void)state;
    struct sv_profile p, base = loaded("tb5-strict");
    struct sv_why why = {""};
    const char *json = "{\"extends\": \"tb5-strict\", \"name\": \"mine\", \"limits\": {\"max_mr\": 7, \"real_mr\": 7},"
                       " \"depth\": {\"depth_steps\": [10]}}";
    assert_int_equal(parse(json, &p, &why), 0);
    assert_int_equal(p.real_mr, 7);
    assert_int_equal(p.depth_step_count, 1);
    assert_int_equal(p.depth_steps[1], 0);
    assert_int_equal(p.real_qp, base.real_qp);
    assert_string_equal(p.name, "mine");
}

static void test_files(void **state)
{
    (void)state;
    struct sv_profile p;
    struct sv_why why = {""};
    char path[] = "/tmp/test-profile-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char json[] = "{\"extends\": \"generic\", \"name\": \"fromfile\"}";
    assert_int_equal(write(fd, json, sizeof json - 1), sizeof json - 1);
    close(fd);
    assert_int_equal(sv_profile_load(path, &p, &why), 0);
    assert_string_equal(p.name, "fromfile");
    unlink(path);
    assert_int_equal(sv_profile_load(path, &p, &why), -ENOENT);
    assert_non_null(strstr(why.text, path));
    assert_int_equal(sv_profile_load("nothere.json", &p, &why), -ENOENT);
    assert_int_equal(sv_profile_load("/", &p, &why), -EISDIR);
    assert_int_equal(sv_profile_load("tb6", &p, &why), -ENOENT);
    assert_non_null(strstr(why.text, "generic, tb5, tb5-strict"));
    assert_int_equal(sv_profile_load("tb6", &p, NULL), -ENOENT);
}

/* Each case has the words that its error must contain: where, what was found, what is allowed. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json, *words[3];
    } cases[] = {
        {"", {"test.json", "not JSON"}},
        {"{\"extends\": \"tb5\",,}", {"test.json:1:", "not JSON"}},
        {"[]", {"array", "object"}},
        {"{\"name\": \"a\", \"name\": \"b\"}", {"duplicate"}},
        {"{}", {"name is missing", "extends"}},
        {"{\"name\": \"x\", \"summary\": \"\"}", {"device.device_name is missing"}},
        {"{\"extends\": \"tb5\"}", {"name is missing"}},
        {"{\"extends\": 5}", {"extends is 5", "built-in"}},
        {"{\"extends\": \"tb6\", \"name\": \"x\"}", {"extends", "tb6", "tb5-strict"}},
        {"{\"extends\": \"./tb5.json\", \"name\": \"x\"}", {"extends", "./tb5.json"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limit\": {}}", {"limit is no key", "extends, name", "limits"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"\": {}}", {"is no key"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limits\": 5}", {"limits is 5", "object"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limits\": {\"max_qps\": 1}}", {"limits.max_qps is no key", "max_qp,"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limits\": {\"name\": 1}}", {"limits.name is no key"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limits\": {\"max_qp\": \"many\"}}",
         {"limits.max_qp is \"many\"", "number from 0 to 65535"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limits\": {\"max_qp\": -1}}", {"limits.max_qp is -1", "from 0"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limits\": {\"max_qp\": 65536}}", {"limits.max_qp is 65536"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limits\": {\"max_qp\": 1.5}}", {"limits.max_qp is 1.5"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limits\": {\"max_qp\": 99999999999999999999}}", {"not JSON", "big"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limits\": {\"real_qp\": 12}}", {"limits.real_qp is 12", "limits.max_qp", "11"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"limits\": {\"qp_errno\": 0}}", {"limits.qp_errno is 0", "errno"}},
        {"{\"extends\": \"generic\", \"name\": \"x\", \"data\": {\"equal_frames\": true}}", {"equal_frames", "frame_bytes"}},
        {"{\"extends\": \"generic\", \"name\": \"x\", \"memory\": {\"full_access\": true}}", {"memory.access_errno"}},
        {"{\"extends\": \"generic\", \"name\": \"x\", \"device\": {\"link_layer\": \"infiniband\", \"gid_type\": \"ib\"}}",
         {"device.lid_base is 0", "infiniband"}},
        {"{\"extends\": \"generic\", \"name\": \"x\", \"device\": {\"lid_base\": 1}}", {"device.lid_base is 1", "ethernet"}},
        {"{\"extends\": \"generic\", \"name\": \"x\", \"device\": {\"link_layer\": \"infiniband\", \"lid_base\": 1}}",
         {"device.gid_type", "infiniband"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"data\": {\"credits\": 1}}", {"data.credits is 1", "true or false"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"depth\": {\"overdepth\": \"drop\"}}",
         {"depth.overdepth is \"drop\"", "\"refuse\", \"lose\""}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"depth\": {\"depth_steps\": [5, 5]}}", {"depth_steps", "ascending"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"depth\": {\"depth_steps\": [1,2,3,4,5,6,7,8,9]}}", {"depth_steps", "at most 8"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"depth\": {\"depth_steps\": [5000]}}", {"depth_steps", "max_qp_wr", "4095"}},
        {"{\"extends\": \"generic\", \"name\": \"x\", \"depth\": {\"depth_steps\": [5]}}", {"depth_steps", "frame_bytes is 0"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"depth\": {\"frame_bytes\": 4095}}", {"frame_bytes is 4095", "power of two"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"can\": {\"transports\": []}}", {"can.transports is empty"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"can\": {\"transports\": [\"uc\", \"uc\"]}}", {"can.transports is [\"uc\",\"uc\"]"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"can\": {\"transports\": [\"xrc\"]}}", {"can.transports", "\"rc\", \"uc\", \"ud\""}},
        {"{\"extends\": \"tb5\", \"name\": \"a b\"}", {"name is \"a b\"", "letters"}},
        {"{\"extends\": \"tb5\", \"name\": \"\"}", {"name is \"\""}},
        {"{\"extends\": \"tb5\", \"name\": \"12345678901234567890123456789012\"}", {"name is \"1234", "31 bytes"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"summary\": \"a\\nb\"}", {"summary is"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"device\": {\"device_name\": \"rdma\"}}", {"device_name", "{index}"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"device\": {\"device_name\": \"{index}/\"}}", {"device_name"}},
        {"{\"extends\": \"tb5\", \"name\": \"x\", \"device\": {\"device_name\": \"{number}\"}}", {"device_name"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_profile p;
        struct sv_why why = {""};
        static const struct sv_profile empty;
        if (parse(cases[i].json, &p, &why) >= 0)
            fail_msg("taken: %s", cases[i].json);
        assert_int_equal(strncmp(why.text, "test.json", 9), 0);
        for (int w = 0; w < 3 && cases[i].words[w]; w++)
            if (!strstr(why.text, cases[i].words[w]))
                fail_msg("%s: refused with \"%s\", which has not \"%s\"", cases[i].json, why.text, cases[i].words[w]);
        if (strstr(why.text, "not JSON") == NULL && strstr(why.text, "is a JSON array: write a JSON object") == NULL)
            assert_memory_equal(&p, &empty, sizeof p);
    }
}

/* For every key: the smallest and the largest value are accepted, one beyond is refused, and a missing key is an error. */
static void test_every_key(void **state)
{
    (void)state;
    struct sv_profile p = loaded("generic"), q;
    char *json = sv_profile_json(&p);
    for (size_t i = 0; i < sv_key_count; i++) {
        const struct sv_key *k = &sv_keys[i];
        json_t *root = json_loads(json, 0, NULL);
        json_t *group = k->group[0] ? json_object_get(root, k->group) : root;
        struct sv_why why = {""};
        char path[80];
        snprintf(path, sizeof path, "%s%s%s", k->group, k->group[0] ? "." : "", k->name);
        assert_non_null(json_object_get(group, k->name));
        if (k->type == SV_KEY_NUMBER) {
            json_object_set_new(group, k->name, json_integer((json_int_t)k->least - 1));
            char *low = json_dumps(root, 0);
            assert_int_equal(parse(low, &q, &why), -EINVAL);
            assert_non_null(strstr(why.text, path));
            free(low);
            if (k->most < INT64_MAX) {
                json_object_set_new(group, k->name, json_integer((json_int_t)k->most + 1));
                char *high = json_dumps(root, 0);
                assert_int_equal(parse(high, &q, &why), -EINVAL);
                assert_non_null(strstr(why.text, path));
                free(high);
            }
        }
        json_object_del(group, k->name);
        char *without = json_dumps(root, 0);
        assert_int_equal(parse(without, &q, &why), -EINVAL);
        assert_non_null(strstr(why.text, path));
        assert_non_null(strstr(why.text, "missing"));
        free(without);
        json_decref(root);
    }
    free(json);
}

/* Every byte of the structure that is not padding belongs to a key: nothing is forgotten when a field is
 * added. */
static void test_no_field_forgotten(void **state)
{
    (void)state;
    unsigned char covered[sizeof(struct sv_profile)] = {0};
    memset(covered + offsetof(struct sv_profile, depth_step_count), 1, sizeof(uint32_t));
    for (size_t i = 0; i < sv_key_count; i++)
        memset(covered + sv_keys[i].offset, 1, sv_keys[i].bytes);
    for (size_t i = 0, run = 0; i < sizeof covered; i++) {
        run = covered[i] ? 0 : run + 1;
        if (run > 7)
            fail_msg("bytes up to %zu of struct sv_profile belong to no key of keys.c", i);
    }
}

static void test_documented(void **state)
{
    (void)state;
    FILE *f = fopen(SV_DOCS "/profiles.md", "r");
    assert_non_null(f);
    char *text = calloc(1, 1 << 20);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    char *table = sv_profile_table();
    assert_non_null(table);
    if (!strstr(text, table))
        fail_msg("softverbs/docs/profiles.md has another list of keys than the code: put in what "
                 "`build/softverbs/tests/test_profile table` prints");
    free(table);
    free(text);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "table") == 0) {
        char *table = sv_profile_table();
        fputs(table ? table : "", stdout);
        free(table);
        return !table;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),      cmocka_unit_test(test_round_trip), cmocka_unit_test(test_generic),
        cmocka_unit_test(test_tb5),        cmocka_unit_test(test_extends),    cmocka_unit_test(test_files),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_every_key),  cmocka_unit_test(test_no_field_forgotten),
        cmocka_unit_test(test_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
