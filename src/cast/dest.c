/* SPDX-License-Identifier: MIT
 *
 * The destination DEST on a target: finds its path, and opens the folder that everything is written below.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cast/cast.h"

/* Make a folder and its missing parents. Returns 1 if it was made, 0 if it existed, or a negative errno. */
static int make_path(char *path, mode_t mode)
{
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char was = *p;
        *p = '\0';
        int rc = mkdir(path, was ? 0777 : mode) == 0 ? 1 : errno != EEXIST ? -errno : 0;
        *p = was;
        if (!was)
            return rc;
    }
}

/* Print why DEST cannot be used on this host. */
static int refuse_dest(struct cast_disk *d, const char *why)
{
    d->failed = true;
    cast_say(d->c, true, "%s: %s; this host gets nothing", d->c->config.dest, why);
    return -EINVAL;
}

/* Fill in d->dest: replace {node} and {host} in DEST, and let a relative path begin in the user's home folder. */
static int fill_dest(struct cast_disk *d)
{
    const struct cast_config *o = &d->c->config;
    const char *home = getenv("HOME"), *number = o->numbers[d->c->rank];
    char host[256] = "";
    if (strstr(o->dest, "{host}") && (gethostname(host, sizeof host - 1) || !host[0] || strchr(host, '/')))
        return refuse_dest(d, "this host has no name for {host}: use {node}");
    if (o->dest[0] != '/' && (!home || home[0] != '/'))
        return refuse_dest(
            d, "a relative path starts in the home directory, but HOME is not set to an absolute path on this host: give an absolute path");
    size_t n = 0;
    if (o->dest[0] != '/')
        n = (size_t)snprintf(d->dest, sizeof d->dest, "%s/", home);
    for (const char *p = o->dest; *p && n < sizeof d->dest - 1;) {
        bool node = strncmp(p, "{node}", 6) == 0, named = strncmp(p, "{host}", 6) == 0;
        if (node || named) {
            int m = snprintf(d->dest + n, sizeof d->dest - n, "%s", node ? number : host);
            n += (size_t)m;
            p += 6;
        } else {
            d->dest[n++] = *p++;
            d->dest[n] = '\0';
        }
    }
    return n < sizeof d->dest - 1 ? 0 : -ENAMETOOLONG;
}

/* Whether the only source is a file. To count the files of the list is not enough: one file may be the whole content of SRC/, or the only
 * one that could be read. */
static bool only_a_file(const struct cast_disk *d)
{
    const struct cast_config *o = &d->c->config;
    const struct cast_list *l = &d->c->list;
    return o->head.sources == 1 && !cast_is_content(o->sources[0]) && l->count == 1 && l->entry[0].type == CAST_FILE;
}

int cast_dest_open(struct cast_disk *d)
{
    int filled = fill_dest(d);
    if (filled)
        return filled;
    bool dry = d->c->config.head.flags & CAST_DRY_RUN;
    size_t n = strlen(d->dest);
    struct stat st;
    bool folder = d->dest[n - 1] == '/' || (stat(d->dest, &st) == 0 && S_ISDIR(st.st_mode));
    while (n > 1 && d->dest[n - 1] == '/')
        d->dest[--n] = '\0';
    if (only_a_file(d) && !folder) {
        char *slash = strrchr(d->dest, '/');
        d->alone = slash + 1;
        if (cast_is_part(d->alone, strlen(d->alone)))
            return refuse_dest(d, "weft cast gives such names to unfinished files: choose another name");
        *slash = '\0'; /* for a file in /, the folder is "" here; open it as "/" below */
    }
    const char *root = d->dest[0] ? d->dest : "/";
    if (!dry) {
        mode_t before = umask(022);
        int rc = make_path(d->dest[0] ? d->dest : (char[]){"/"}, (mode_t)d->c->list.mode | 0700);
        umask(before);
        if (rc < 0)
            return rc;
        d->made = rc;
    }
    d->root = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return d->root < 0 && !(dry && errno == ENOENT) ? -errno : 0;
}
