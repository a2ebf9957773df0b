/* SPDX-License-Identifier: MIT
 *
 * Finds the fabric, host and device named on a command line.
 */
#include "subcommand.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int cli_fabric_name(const char *sub, const char *option, const struct sv_profile *profile, const char **name)
{
    const char *from = "--fabric", *word = option;
    if (!word) {
        from = "SOFTVERBS_FABRIC";
        word = getenv(from);
        if (word && !*word)
            word = NULL;
    }
    if (!word) {
        from = "the profile's name";
        word = profile ? profile->name : "default";
    }
    if (!sf_name_valid(word))
        return cli_error(sub,
                         "%s: '%s' cannot name a fabric: at most %d letters, digits, '-', '_' and '.', and no '.' at the "
                         "start",
                         from, word, SV_NAME - 1);
    *name = word;
    return 0;
}

int cli_attach(const char *sub, struct sf_view *view, const char *name, bool join)
{
    struct sv_why why = {""};
    int error = sf_attach(view, name, join, join ? SF_NO_HOST : 0, &why);
    if (error == 0)
        return 0;
    if (error == -ENOENT)
        return cli_error(sub,
                         "there is no fabric '%s'. `softverbs ls` lists the fabrics; `softverbs up --fabric %s "
                         "switch 8` makes this one, and so does `softverbs run --fabric %s -- PROGRAM`",
                         name, name, name);
    if (error == -EPROTO)
        return cli_error(sub, "fabric '%s': %s. `softverbs down --force --fabric %s` removes it", name,
                         why.text[0] ? why.text : "it was made by another version of softverbs", name);
    return cli_error(sub, "fabric '%s': %s", name, why.text[0] ? why.text : strerror(-error));
}

int cli_find_host(const char *sub, const struct sf_view *view, const char *word, uint32_t *host)
{
    const struct sv_topology *t = &view->fabric->model.topology;
    const char *names[SV_HOSTS] = {NULL};
    uint32_t count = t->host_count <= SV_HOSTS ? t->host_count : SV_HOSTS;
    for (uint32_t i = 0; i < count; i++) {
        names[i] = t->hosts[i].name;
        if (strncmp(word, names[i], SV_NAME) == 0) {
            *host = i;
            return 0;
        }
    }
    const char *near = cli_nearest(word, names, count, sizeof names[0]);
    if (count == 0)
        return cli_error(sub, "fabric '%s' has no hosts", view->fabric->name);
    return cli_error(sub,
                     "fabric '%s' (%s) has no host '%s'; %s'%s'%s It has %u: '%s' to '%s'; `softverbs topo --fabric %s` "
                     "lists them",
                     view->fabric->name, t->name, word, near ? "did you mean " : "its first is ", near ? near : names[0], near ? "?" : ".",
                     count, names[0], names[count - 1], view->fabric->name);
}

void cli_device_text(const struct sv_topology *t, uint32_t device, char text[2 * SV_NAME])
{
    if (device >= SV_DEVICES || t->devices[device].host >= SV_HOSTS)
        snprintf(text, 2 * SV_NAME, "?");
    else
        snprintf(text, 2 * SV_NAME, "%.*s:%.*s", SV_NAME - 1, t->hosts[t->devices[device].host].name, SV_NAME - 1, t->devices[device].name);
}

int cli_find_device(const char *sub, const struct sf_view *view, const char *word, uint32_t *device)
{
    const struct sv_topology *t = &view->fabric->model.topology;
    uint32_t found = 0, count = t->device_count <= SV_DEVICES ? t->device_count : SV_DEVICES;
    char last[2 * SV_NAME] = "";
    for (uint32_t i = 0; i < count; i++) {
        const struct sv_device_model *d = &t->devices[i];
        const char *host = d->host < SV_HOSTS ? t->hosts[d->host].name : "";
        size_t h = strnlen(host, SV_NAME);
        bool here = strncmp(word, host, h) == 0 && word[h] == ':';
        const char *rest = here ? word + h + 1 : word;
        if (strncmp(rest, d->name, sizeof d->name) != 0 && (!here || strncmp(rest, d->interface, sizeof d->interface) != 0))
            continue;
        *device = i;
        found++;
        cli_device_text(t, i, last);
    }
    if (found == 1)
        return 0;
    if (found > 1)
        return cli_error(sub, "'%s' names %u devices of fabric '%s', '%s' among them: write HOST:DEVICE", word, found, view->fabric->name,
                         last);
    if (count)
        cli_device_text(t, 0, last);
    return cli_error(sub,
                     "fabric '%s' (%s) has no device '%s'. A device is HOST:DEVICE or HOST:INTERFACE, as in '%s'; "
                     "`softverbs ls` lists them",
                     view->fabric->name, t->name, word, last);
}

int cli_profile_load(const char *sub, const char *word, struct sv_profile *profile)
{
    struct sv_why why = {""};
    int error = sv_profile_load(word, profile, &why);
    if (!error)
        return 0;
    const char *const *names = sv_profile_names();
    size_t count = 0;
    while (names[count])
        count++;
    const char *near = strpbrk(word, "./") ? NULL : cli_nearest(word, names, count, sizeof names[0]);
    return cli_error(sub, "profile '%s': %s%s%s%s", word, why.text[0] ? why.text : strerror(-error), near ? "; did you mean '" : "",
                     near ? near : "", near ? "'?" : "");
}

int cli_model(const char *sub, const char *profile, int words, char *const *word, struct sv_model **out)
{
    struct sv_why why = {""};
    struct sv_model *m = calloc(1, sizeof *m);
    if (!m)
        return cli_error(sub, "out of memory; end other programs");
    int status = cli_profile_load(sub, profile, &m->profile);
    int error = status ? 0 : sv_topology_load(words, (const char *const *)word, &m->profile, &m->topology, &why);
    if (error)
        status = cli_error(sub, "topology '%s%s%s': %s", word[0], words > 1 ? " " : "", words > 1 ? word[1] : "",
                           why.text[0] ? why.text : strerror(-error));
    if (status)
        free(m);
    else
        *out = m;
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int cli_fabrics(const char *sub, char ***names, size_t *count)
{
    char path[256];
    struct sv_why why = {""};
    *names = NULL;
    *count = 0;
    int error = sf_directory(path, sizeof path, false, &why);
    if (error == -ENOENT)
        return 0;
    if (error)
        return cli_error(sub, "%s", why.text[0] ? why.text : strerror(-error));
    DIR *d = opendir(path);
    if (!d)
        return cli_error(sub, "cannot read the directory of fabrics %s: %s", path, strerror(errno));
    const struct dirent *e;
    bool broken = false;
    while (!broken && (e = readdir(d))) {
        if (!sf_is_fabric(e->d_name)) /* SOFTVERBS_DIR may have other files */
            continue;
        char **more = realloc(*names, (*count + 1) * sizeof *more);
        broken = !more;
        if (more) {
            *names = more;
            broken = !(more[*count] = strdup(e->d_name));
            *count += !broken;
        }
    }
    closedir(d);
    if (*count)
        qsort(*names, *count, sizeof **names, by_name);
    if (!broken)
        return 0;
    cli_fabrics_free(*names, *count);
    return cli_error(sub, "out of memory; end other programs");
}

void cli_fabrics_free(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}
