/* SPDX-License-Identifier: MIT
 *
 * Finds the text of facts, and the lines and values in it; adds findings to the list.
 */
#include "cli/doctor_find.h"

static const char *const files[DOCTOR_FACTS] = {
    [DOCTOR_SYSTEM] = "system.txt",
    [DOCTOR_LIBRARY] = "library.txt",
    [DOCTOR_DEVICES] = "devices.json",
    [DOCTOR_ALLOCATION] = "allocation.txt",
    [DOCTOR_LIMITS] = "limits.txt",
    [DOCTOR_UVERBS] = "uverbs.txt",
    [DOCTOR_RDMA_CTL] = "rdma_ctl.txt",
    [DOCTOR_THUNDERBOLT] = "thunderbolt.txt",
    [DOCTOR_INTERFACES] = "interfaces.txt",
    [DOCTOR_PCI] = "pci.txt",
    [DOCTOR_GPUS] = "gpus.json",
    [DOCTOR_NETWORKS] = "networks.json",
};

const char *doctor_file(enum doctor_fact which)
{
    return files[which];
}

struct doctor_finding *doctor_add(struct doctor *d, const char *id, enum rank rank, bool stops)
{
    struct doctor_finding *f = &d->out[d->count < DOCTOR_FINDINGS ? d->count++ : DOCTOR_FINDINGS - 1];
    memset(f, 0, sizeof *f);
    f->id = id;
    f->rank = (int)rank;
    f->stops = stops;
    return f;
}

void doctor_unreadable(struct doctor *d, enum doctor_fact which, const char *why, const char *remedy)
{
    struct doctor_finding *f = doctor_add(d, "unreadable-fact", UNREADABLE, true);
    SAY(f->what, "%s cannot be parsed, so what it contains is not known", doctor_file(which));
    SAY(f->seen, "%s: %s", doctor_file(which), why);
    SAY(f->remedy, "%s", remedy);
}

/* Replace unprintable bytes. Facts may contain any bytes, and a terminal may take some bytes as commands. */
void doctor_plain(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

const char *doctor_fact(const struct doctor *d, enum doctor_fact which)
{
    return d->facts->text[which];
}

bool doctor_next_line(const char **at, char *line, size_t len)
{
    if (!**at)
        return false;
    size_t n = strcspn(*at, "\n"), skip = strspn(*at, " \t");
    const char *from = *at + (skip < n ? skip : n);
    size_t m = n - (size_t)(from - *at);
    while (m && (from[m - 1] == ' ' || from[m - 1] == '\t' || from[m - 1] == '\r'))
        m--;
    snprintf(line, len, "%.*s", (int)(m < len ? m : len - 1), from);
    *at += n + ((*at)[n] == '\n');
    return true;
}

bool doctor_value_of(const char *text, const char *key, char *out, size_t len)
{
    char line[512];
    size_t n = strlen(key);
    while (text && doctor_next_line(&text, line, sizeof line))
        if (strncmp(line, key, n) == 0 && line[n] == ':') {
            const char *v = line + n + 1;
            snprintf(out, len, "%s", v + strspn(v, " \t"));
            return true;
        }
    return false;
}

const char *doctor_word_of(const char *line, const char *key, char out[64])
{
    char sought[32];
    snprintf(sought, sizeof sought, " %s=", key);
    const char *at = strstr(line, sought);
    at = at ? at + strlen(sought) : "?";
    snprintf(out, 64, "%.*s", (int)(strcspn(at, " ") < 63 ? strcspn(at, " ") : 63), at);
    return out;
}

bool doctor_is_number(const char *text)
{
    return *text && strspn(text, "0123456789") == strlen(text);
}

/* --- devices --- */
const char *doctor_text_of(const json_t *device, const char *key)
{
    const char *s = json_string_value(json_object_get(device, key));
    return s ? s : "";
}
