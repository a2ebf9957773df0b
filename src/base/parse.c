/* SPDX-License-Identifier: MIT
 *
 * Parses and formats numbers, sizes and durations.
 */
#include "base/base.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Parse a non-negative decimal number; *rest points to the text after it. */
static int parse_number(const char *text, double *value, const char **rest)
{
    if (!text || !(isdigit((unsigned char)text[0]) || text[0] == '.'))
        return -EINVAL;
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    if (end == text || errno || !isfinite(*value))
        return -EINVAL;
    *rest = end;
    return 0;
}

int base_parse_number(const char *text, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    if (!text || !isdigit((unsigned char)text[text[0] == '-']))
        return -EINVAL;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || *end || n < least || n > most)
        return -EINVAL;
    *out = n;
    return 0;
}

int base_parse_bytes(const char *text, uint64_t *out)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"", 0},     {"b", 0},  {"k", 10},  {"kb", 10},  {"kib", 10}, {"m", 20},  {"mb", 20},
                 {"mib", 20}, {"g", 30}, {"gb", 30}, {"gib", 30}, {"t", 40},   {"tb", 40}, {"tib", 40}};
    double value;
    const char *unit;
    if (parse_number(text, &value, &unit) == 0) {
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            if (strcasecmp(unit, units[i].name))
                continue;
            double bytes = value * (double)(UINT64_C(1) << units[i].shift);
            if (bytes >= 9.0e18)
                return base_fail(-EINVAL, "'%s' is too large: the largest size is about 8 million T", text);
            *out = (uint64_t)bytes;
            return 0;
        }
    }
    return base_fail(-EINVAL, "'%s' is not a size: expected a number with an optional K, M, G or T (powers of 1024), as in 4M",
                     text ? text : "");
}

int base_parse_duration(const char *text, int64_t *out_ns)
{
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"", 1e9}, {"s", 1e9}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}};
    double value;
    const char *unit;
    if (parse_number(text, &value, &unit) == 0) {
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            if (strcmp(unit, units[i].name))
                continue;
            double ns = value * units[i].ns;
            if (ns >= 9.0e18)
                break;
            *out_ns = (int64_t)ns;
            return 0;
        }
    }
    return base_fail(-EINVAL, "'%s' is not a duration: expected a number with an optional us, ms, s, m or h, as in 500ms",
                     text ? text : "");
}

const char *base_format_bytes(uint64_t bytes, char *buf, size_t len)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    unsigned i = 0;
    while (value >= 1024 && i < 6) {
        value /= 1024;
        i++;
    }
    snprintf(buf, len, i == 0 || value == (double)(uint64_t)value ? "%.0f %s" : "%.1f %s", value, units[i]);
    return buf;
}
