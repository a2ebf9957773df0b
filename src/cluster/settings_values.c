/* SPDX-License-Identifier: MIT
 *
 * Parses the texts of settings, and makes errors for wrong ones.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cluster/settings.h"

const char *settings_speaker(enum id id, const struct found *f)
{
    if (f->source == CLUSTER_ENVIRONMENT)
        return f->from + strlen("environment ");
    if (f->source == CLUSTER_PMIX)
        return f->from;
    return settings_table[id].name;
}

int settings_bad(enum id id, const struct found *f, const char *expected)
{
    bool file = f->source == CLUSTER_HOSTFILE;
    return base_fail(-EINVAL, "%s%s%s='%s': expected %s", file ? f->from : "", file ? ": " : "", settings_speaker(id, f), f->text,
                     expected);
}

static const char *format_duration(int64_t ns, char *buf, size_t len)
{
    static const struct {
        int64_t ns;
        const char *unit;
    } units[] = {{3600 * WEFT_SECOND, "h"}, {WEFT_SECOND, "s"}, {WEFT_MS, "ms"}, {WEFT_US, "us"}, {1, "ns"}};
    size_t i = 0;
    while (i < 4 && (ns < units[i].ns || ns % units[i].ns))
        i++;
    snprintf(buf, len, "%lld%s", (long long)(ns / units[i].ns), ns ? units[i].unit : "");
    return buf;
}

int settings_read_number(enum id id, const struct found *f, int64_t *out)
{
    const struct setting *s = &settings_table[id];
    char what[96];
    snprintf(what, sizeof what, "a number from %lld to %lld", (long long)s->min, (long long)s->max);
    return base_parse_number(f->text, s->min, s->max, out) ? settings_bad(id, f, what) : 0;
}

static int read_bytes(enum id id, const struct found *f, uint64_t *out)
{
    char low[32], high[32], what[128];
    base_format_bytes((uint64_t)settings_table[id].min, low, sizeof low);
    base_format_bytes((uint64_t)settings_table[id].max, high, sizeof high);
    snprintf(what, sizeof what, "a size from %s to %s, as in 256M or 1.5G", low, high);
    if (base_parse_bytes(f->text, out) || *out < (uint64_t)settings_table[id].min || *out > (uint64_t)settings_table[id].max)
        return settings_bad(id, f, what);
    return 0;
}

int cluster_pool_check(const char *text)
{
    struct found f = {.text = text, .source = CLUSTER_OPTION};
    uint64_t bytes;
    return read_bytes(POOL, &f, &bytes);
}

static int read_duration(enum id id, const struct found *f, int64_t *out)
{
    char low[32], high[32], what[128];
    format_duration(settings_table[id].min, low, sizeof low);
    format_duration(settings_table[id].max, high, sizeof high);
    snprintf(what, sizeof what, "a duration from %s to %s, as in 500ms or 2s", low, high);
    if (base_parse_duration(f->text, out) || *out < settings_table[id].min || *out > settings_table[id].max)
        return settings_bad(id, f, what);
    return 0;
}

static int read_flag(enum id id, const struct found *f, bool *out)
{
    static const char *const yes[] = {"1", "yes", "true", "on"}, *const no[] = {"0", "no", "false", "off"};
    for (int i = 0; i < 4; i++) {
        *out = strcasecmp(f->text, yes[i]) == 0;
        if (*out || strcasecmp(f->text, no[i]) == 0)
            return 0;
    }
    return settings_bad(id, f, "0, 1, yes, no, true, false, on or off");
}

static int read_choice(enum id id, const struct found *f)
{
    char what[96];
    size_t len = strlen(f->text);
    const char *p = settings_table[id].choices;
    for (size_t n; (n = strcspn(p, "|")) > 0; p += n + (p[n] == '|'))
        if (n == len && memcmp(p, f->text, len) == 0)
            return 0;
    snprintf(what, sizeof what, "%s%s", strchr(settings_table[id].choices, '|') ? "one of " : "", settings_table[id].choices);
    return settings_bad(id, f, what);
}

/* WEFT_GROW is one address; WEFT_JOIN is a comma-separated list. */
static int settings_read_addresses(enum id id, const struct found *f)
{
    char one[128];
    for (const char *p = f->text; *p;) {
        size_t n = strcspn(p, ",");
        snprintf(one, sizeof one, "%.*s", (int)(n < sizeof one ? n : 0), p);
        const char *port = strrchr(one, ':');
        bool named = strncmp(one, "unix:", 5) == 0;
        if (cluster_address_check(one) || (!named && port && !port[1 + strspn(port + 1, "0")]) || (id == GROW && p[n]))
            return settings_bad(id, f,
                                id == GROW ? "HOST:PORT, [IPV6]:PORT, unix:PATH or unix:@NAME, with a port from 1 to 65535"
                                           : "addresses with commas between: HOST:PORT, [IPV6]:PORT, unix:PATH or unix:@NAME");
        p += n + (p[n] == ',');
    }
    return 0;
}

int settings_read(enum id id, const struct found *f, struct cluster_settings *out)
{
    const struct setting *s = &settings_table[id];
    void *into = s->into_bytes ? (char *)out + s->into : NULL;
    char what[64];
    union {
        int64_t number, ns;
        uint64_t bytes;
        bool flag;
    } v = {0};
    int rc = 0;
    switch (s->kind) {
    case NUMBER:
        rc = into ? settings_read_number(id, f, &v.number) : 0;
        int narrow = (int)v.number; /* the table allows only values that fit */
        if (into && !rc)
            memcpy(into, &narrow, sizeof narrow);
        break;
    case BYTES:
        rc = read_bytes(id, f, &v.bytes);
        if (!rc)
            memcpy(into, &v.bytes, sizeof v.bytes);
        break;
    case DURATION:
        rc = read_duration(id, f, &v.ns);
        if (!rc)
            memcpy(into, &v.ns, sizeof v.ns);
        break;
    case FLAG:
        rc = read_flag(id, f, &v.flag);
        if (!rc)
            memcpy(into, &v.flag, sizeof v.flag);
        break;
    case CHOICE:
        rc = f->text[0] ? read_choice(id, f) : 0; /* "" is the default of some settings, and not among the choices */
        if (!rc && into)
            snprintf(into, s->into_bytes, "%s", f->text);
        break;
    case PATH:
        snprintf(what, sizeof what, "at most %zu bytes", s->into_bytes - 1);
        if (into && strlen(f->text) >= s->into_bytes)
            rc = settings_bad(id, f, what);
        else if (into)
            snprintf(into, s->into_bytes, "%s", f->text);
        break;
    case ADDRESSES:
        rc = settings_read_addresses(id, f);
        if (!rc && into && strlen(f->text) >= s->into_bytes)
            rc = settings_bad(id, f, "a shorter text");
        else if (!rc && into)
            snprintf(into, s->into_bytes, "%s", f->text);
        break;
    default: break; /* settings.c reads settings of the other kinds, with special functions */
    }
    return rc;
}

#define FRAME       4096u
#define FRAMES_MOST 4095u /* maximum number of frames that a Thunderbolt port accepts in one message, and in one queue */

int settings_read_lanes(const struct found *f, struct fab_lane *lanes, uint32_t *count)
{
    char what[320], word[32], *end;
    const char *p = f->text;
    uint32_t n = 0;
    snprintf(what, sizeof what,
             "1 to %u lanes as SIZE:MESSAGES, as in 32K:32,128K:16: SIZE is a multiple of 4K, up to %uK; "
             "MESSAGES is from 1 to %u; SIZE times MESSAGES is at most %u times 4K",
             FAB_LANES_MAX, FRAMES_MOST * 4, FAB_LANE_DEPTH, FRAMES_MOST);
    for (bool more = true; more; n++) {
        size_t len = strcspn(p, ","), size = strcspn(p, ":,");
        uint64_t bytes;
        if (n == FAB_LANES_MAX || p[size] != ':' || size == 0 || size >= sizeof word)
            return settings_bad(TB_LANES, f, what);
        memcpy(word, p, size);
        word[size] = '\0';
        const char *digits = p + size + 1;
        unsigned long depth = strtoul(digits, &end, 10);
        if (base_parse_bytes(word, &bytes) || bytes == 0 || bytes % FRAME || bytes > (uint64_t)FRAMES_MOST * FRAME || digits[0] < '0' ||
            digits[0] > '9' || end != p + len || depth < 1 || depth > FAB_LANE_DEPTH || bytes / FRAME * depth > FRAMES_MOST)
            return settings_bad(TB_LANES, f, what);
        lanes[n] = (struct fab_lane){.message = (uint32_t)bytes, .depth = (uint32_t)depth};
        more = p[len] == ',';
        p += len + more;
    }
    *count = n;
    return 0;
}

/* The setting is a number of devices, or a list of their names. */
int settings_read_rails(const struct found *f, struct fab_options *out)
{
    char what[160];
    long n = strtol(f->text, NULL, 10);
    snprintf(what, sizeof what, "a number from 1 to %u, or as many different devices, separated by commas, as in mlx5_0,mlx5_1:2",
             FAB_RAILS_MAX);
    if (!f->text[0])
        return 0;
    if (!f->text[strspn(f->text, "0123456789")]) {
        out->rails = (uint32_t)n;
        return n >= 1 && n <= (long)FAB_RAILS_MAX ? 0 : settings_bad(RAILS, f, what);
    }
    const char *p = f->text;
    for (bool more = true; more; out->rails++) {
        size_t len = strcspn(p, ",");
        if (out->rails == FAB_RAILS_MAX || len == 0 || len >= sizeof out->rail_names[0])
            return settings_bad(RAILS, f, what);
        memcpy(out->rail_names[out->rails], p, len);
        for (uint32_t i = 0; i < out->rails; i++)
            if (strcmp(out->rail_names[i], out->rail_names[out->rails]) == 0)
                return settings_bad(RAILS, f, what);
        more = p[len] == ',';
        p += len + more;
    }
    return 0;
}

int settings_read_address(enum id id, const struct found *f, char *out, size_t len)
{
    if (strlen(f->text) >= len || cluster_address_check(f->text))
        return settings_bad(id, f, "HOST:PORT, [IPV6]:PORT, unix:PATH or unix:@NAME");
    const char *port = strrchr(f->text, ':') + 1;
    if (strncmp(f->text, "unix:", 5) != 0 && !port[strspn(port, "0")])
        return settings_bad(id, f, "a port from 1 to 65535, the same on all nodes");
    snprintf(out, len, "%s", f->text);
    return 0;
}
