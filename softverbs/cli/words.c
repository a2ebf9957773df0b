/* SPDX-License-Identifier: MIT
 *
 * Converts words of the command line to numbers, times, probabilities, errno values and verbs, and back.
 */
#include "subcommand.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int cli_parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)text[0]))
        return -EINVAL;
    unsigned long long n = strtoull(text, &end, 0);
    if (errno || *end || n < least || n > most)
        return -EINVAL;
    *out = n;
    return 0;
}

/* Reads the number at the beginning of `text`. Returns the rest, too. */
static int parse_real(const char *text, double *out, const char **rest)
{
    char *end;
    if (!isdigit((unsigned char)text[0]) && text[0] != '.')
        return -EINVAL;
    *out = strtod(text, &end);
    *rest = end;
    return end == text || !(*out >= 0 && *out < 1e15) ? -EINVAL : 0;
}

static const struct {
    const char *name;
    double ns;
} units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 6e10}, {"h", 3.6e12}};

int cli_parse_time(const char *text, uint64_t *nanoseconds)
{
    double n;
    const char *unit;
    if (parse_real(text, &n, &unit))
        return -EINVAL;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(unit, units[i].name) == 0 && n * units[i].ns < 9e18) {
            *nanoseconds = (uint64_t)(n * units[i].ns + 0.5);
            return 0;
        }
    return -EINVAL;
}

void cli_time_text(uint64_t ns, char *text, size_t bytes)
{
    size_t i = sizeof units / sizeof units[0] - 2; /* without hours, which are read but never printed */
    while (i > 0 && (double)ns < units[i].ns)
        i--;
    snprintf(text, bytes, "%.4g%s", (double)ns / units[i].ns, units[i].name);
}

int cli_parse_chance(const char *text, uint32_t *ppm)
{
    double n;
    const char *unit;
    if (parse_real(text, &n, &unit))
        return -EINVAL;
    double scale = strcmp(unit, "") == 0 ? 1e6 : strcmp(unit, "%") == 0 ? 1e4 : strcmp(unit, "ppm") == 0 ? 1 : 0;
    double scaled = n * scale + 0.5;
    if (scale == 0 || scaled < 1 || scaled >= 1e6 + 1) /* the smallest probability is one in a million */
        return -EINVAL;
    *ppm = (uint32_t)scaled;
    return 0;
}

int cli_parse_errno(const char *text, int32_t *out)
{
    uint64_t n;
    if (cli_parse_number(text, 1, 4095, &n) == 0) {
        *out = (int32_t)n;
        return 0;
    }
    for (int e = 1; e < 256; e++) {
        const char *name = strerrorname_np(e);
        if (name && strcasecmp(name, text) == 0) {
            *out = e;
            return 0;
        }
    }
    return -EINVAL;
}

const char *cli_errno_name(int32_t error, char buffer[16])
{
    const char *name = strerrorname_np(error);
    if (name)
        return name;
    snprintf(buffer, 16, "%d", error);
    return buffer;
}

static const char *const verbs[SF_VERBS] = {
    [SF_VERB_OPEN_DEVICE] = "open_device", [SF_VERB_QUERY_DEVICE] = "query_device",
    [SF_VERB_QUERY_PORT] = "query_port",   [SF_VERB_QUERY_GID] = "query_gid",
    [SF_VERB_ALLOC_PD] = "alloc_pd",       [SF_VERB_REG_MR] = "reg_mr",
    [SF_VERB_DEREG_MR] = "dereg_mr",       [SF_VERB_CREATE_CHANNEL] = "create_comp_channel",
    [SF_VERB_CREATE_CQ] = "create_cq",     [SF_VERB_CREATE_QP] = "create_qp",
    [SF_VERB_MODIFY_QP] = "modify_qp",     [SF_VERB_DESTROY_QP] = "destroy_qp",
    [SF_VERB_CREATE_SRQ] = "create_srq",   [SF_VERB_CREATE_AH] = "create_ah",
    [SF_VERB_POST_SEND] = "post_send",     [SF_VERB_POST_RECV] = "post_recv",
    [SF_VERB_POLL_CQ] = "poll_cq",         [SF_VERB_REQ_NOTIFY] = "req_notify_cq",
};

int cli_parse_verb(const char *text, uint32_t *out)
{
    if (strncmp(text, "ibv_", 4) == 0)
        text += 4;
    for (uint32_t i = 0; i < SF_VERBS; i++)
        if (verbs[i] && strcmp(verbs[i], text) == 0) {
            *out = i;
            return 0;
        }
    return -EINVAL;
}

const char *cli_verb_name(uint32_t verb)
{
    return verb < SF_VERBS && verbs[verb] ? verbs[verb] : "?";
}

const char *cli_verbs(void)
{
    static char text[512];
    size_t n = 0;
    for (uint32_t i = 0; i < SF_VERBS && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i ? ", " : "", cli_verb_name(i));
    return text;
}

const char *cli_clean(const char *name, size_t bytes, char *text, size_t room)
{
    size_t n = 0;
    for (; n < bytes && n + 1 < room && name[n]; n++)
        text[n] = name[n] >= ' ' && name[n] < 0x7f ? name[n] : '?';
    text[n] = 0;
    return text;
}
