/* SPDX-License-Identifier: MIT
 *
 * weft probe regions: registers regions until the device refuses one.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/probe.h"

#define SIZE (UINT64_C(512) << 10)

struct trial {
    struct verbs_device *d;
    uint64_t bytes; /* bytes of one region */
    uint32_t most, count;
    struct verbs_regions *regions;
    uint8_t **memory;
    uint64_t *keys;
    int code;       /* errno of the refusal; 0: no region was refused */
    int64_t ns;     /* total time spent in registering */
    bool again;     /* a region could be registered after one was freed */
    char harm[128]; /* the problem that ended the probe; "": there was no problem */
};

/* Whether the key is new, as it must be. Records it in a hash table. */
static bool key_is_new(struct trial *t, uint32_t lkey)
{
    uint64_t key = (uint64_t)lkey + 1, size = 2 * (uint64_t)t->most, i = key * UINT64_C(0x9e3779b97f4a7c15) % size;
    while (t->keys[i] && t->keys[i] != key)
        i = (i + 1) % size;
    bool is_new = t->keys[i] == 0;
    t->keys[i] = key;
    return is_new;
}

static void probe_regions_give_back(struct trial *t, uint32_t down_to)
{
    while (t->count > down_to) {
        verbs_unregister(&t->regions[--t->count]);
        munmap(t->memory[t->count], t->bytes);
    }
}

/* Register one more region. Returns 0 or a negative errno. `first`: no region has been freed yet, so the key must be new. */
static int more(struct trial *t, bool first)
{
    struct verbs_regions r;
    uint8_t *at = probe_map(t->bytes);
    if (!at) {
        snprintf(t->harm, sizeof t->harm, "the host is out of memory");
        return -ENOMEM;
    }
    errno = 0;
    int64_t start = base_now_ns();
    int rc = verbs_register(&r, t->d, at, t->bytes, UINT32_MAX);
    t->ns += base_now_ns() - start;
    if (rc) {
        t->code = rc;
        munmap(at, t->bytes);
        return rc;
    }
    if (first && !key_is_new(t, r.mr[0]->lkey)) {
        snprintf(t->harm, sizeof t->harm, "region %u got the key of another region", t->count + 1);
        verbs_unregister(&r);
        munmap(at, t->bytes);
        return -EIO;
    }
    t->regions[t->count] = r;
    t->memory[t->count++] = at;
    return 0;
}

static void try_all(struct trial *t)
{
    uint64_t available = base_memory_available() / 2;
    while (t->count < t->most && !cli_stopped()) {
        if ((t->count + 1) * t->bytes > available) {
            snprintf(t->harm, sizeof t->harm, "more regions would take over half of the free memory");
            return;
        }
        if (more(t, true))
            break;
    }
    if (!t->code || !t->count || cli_stopped())
        return;
    /* after a region was freed, another registration must succeed */
    int code = t->code;
    int64_t ns = t->ns;
    probe_regions_give_back(t, t->count - 1);
    t->again = more(t, false) == 0;
    t->code = code;
    t->ns = ns;
    if (!t->again && !t->harm[0])
        snprintf(t->harm, sizeof t->harm, "a region that was freed cannot be registered again");
}

static int probe_regions_report(const struct probe *p, const struct trial *t)
{
    static const struct cli_column columns[] = {{"device", false}, {"regions", true},   {"of", true},
                                                {"each", true},    {"time each", true}, {"then", false}};
    struct cli_table *table = cli_table_new(columns, 6);
    char count[32], said[32], each[32], time[48], then[320];
    snprintf(count, sizeof count, "%u", t->count);
    snprintf(said, sizeof said, "%d", t->d->attr.max_mr);
    snprintf(time, sizeof time, "%.1f us", t->count ? (double)t->ns / 1000 / t->count : 0.0);
    if (t->harm[0])
        snprintf(then, sizeof then, "stopped: %s", t->harm);
    else if (t->code)
        snprintf(then, sizeof then, "errno %d (%s); after one is freed, another can be registered", -t->code, base_strerror(t->code));
    else
        snprintf(then, sizeof then, "none of %u was refused (--count tries more)", t->most);
    const char *cells[] = {t->d->name, count, said, base_format_bytes(t->bytes, each, sizeof each), time, then};
    if (table && cli_table_add(table, cells)) {
        cli_table_free(table);
        table = NULL;
    }
    json_t *j = json_pack("{s:s, s:i, s:i, s:I, s:i, s:I, s:b, s:s}", "device", t->d->name, "regions", (int)t->count, "errno", -t->code,
                          "region_bytes", (json_int_t)t->bytes, "said", t->d->attr.max_mr, "register_ns",
                          (json_int_t)(t->count ? t->ns / t->count : 0), "again", t->again, "harm", t->harm);
    return probe_print(p, table, j);
}

int probe_regions(const struct probe *p)
{
    struct trial t = {.bytes = base_round_up(p->size ? p->size : SIZE, BASE_PAGE), .most = p->count};
    int rc = CLI_FAILED;
    t.d = probe_open(p);
    if (!t.d)
        return CLI_FAILED;
    if (t.most == 0) /* try not many more than the device claims, because drivers before macOS 26.3 crashed near 128 regions */
        t.most = t.d->traits.regions < 1014 ? t.d->traits.regions + 10 : 1024;
    t.regions = calloc(t.most, sizeof *t.regions);
    t.memory = calloc(t.most, sizeof(uint8_t *));
    t.keys = calloc(2 * (size_t)t.most, sizeof *t.keys);
    if (t.regions && t.memory && t.keys) {
        try_all(&t);
        if (t.count == 0 && t.code)
            rc = probe_error(p, "%s", base_error()); /* not even one region could be registered */
        else if (!cli_stopped())
            rc = probe_regions_report(p, &t);
    } else {
        probe_error(p, "no memory for %u regions" BASE_MEMORY_HINT, t.most);
    }
    probe_regions_give_back(&t, 0);
    free(t.regions);
    free(t.memory);
    free(t.keys);
    verbs_device_close(t.d);
    return rc == 0 && t.harm[0] ? CLI_FAILED : rc;
}
