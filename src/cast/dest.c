/* SPDX-License-Identifier: MIT
 *
 * The destination DEST on a target: finds its path, and opens the folder for all files. If DEST names a file and is a symbolic link, the
 * bytes are written to the target of the link, and the link stays, as with cp and scp. Links below DEST are never followed (disk.c).
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cast/cast.h"

#define LINKS_MAX 40 /* Linux's limit for a path */

/* Make a folder and its missing parents. Returns 1 if the folder was made, 0 if it existed, or a negative errno. */
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

static int refuse_dest(struct cast_disk *d, const char *why)
{
    d->failed = true;
    cast_say(d->c, true, "%s: %s; nothing is written on this host", d->c->config.dest, why);
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

/* Whether the only source is a file. The number of files in the list does not tell: SRC/ may contain one file, or the other files could not
 * be read. */
static bool only_a_file(const struct cast_disk *d)
{
    const struct cast_config *o = &d->c->config;
    const struct cast_list *l = &d->c->list;
    return o->head.sources == 1 && !cast_is_content(o->sources[0]) && l->count == 1 && l->entry[0].type == CAST_FILE;
}

/* In a folder like /tmp, any user can make a link that leads to this user's file. So in such folders only links of this user and of the
 * folder's owner are followed, as with fs.protected_symlinks of Linux. */
static bool may_follow(const char *folder, const struct stat *link)
{
    struct stat st;
    return stat(folder, &st) == 0 &&
           ((st.st_mode & (S_ISVTX | S_IWOTH)) != (S_ISVTX | S_IWOTH) || link->st_uid == geteuid() || link->st_uid == st.st_uid);
}

/* Replace d->dest, which is a symbolic link, by the target of the link. */
static int follow_link(struct cast_disk *d, const struct stat *link)
{
    char target[sizeof d->dest], *name = strrchr(d->dest, '/') + 1;
    ssize_t n = readlink(d->dest, target, sizeof target - 1);
    if (n <= 0)
        return n < 0 ? -errno : -ENOENT;
    target[n] = '\0';
    *name = '\0';
    if (!may_follow(d->dest, link))
        return refuse_dest(d, "another user has made this symbolic link, so it is not followed; remove it, or choose another name");
    if (target[n - 1] == '/') /* an error, because an existing directory was handled before */
        return refuse_dest(d, "this symbolic link leads to a directory that does not exist; make the directory, or remove the link");
    size_t at = target[0] == '/' ? 0 : (size_t)(name - d->dest);
    if (at + (size_t)n >= sizeof d->dest)
        return -ENAMETOOLONG;
    memcpy(d->dest + at, target, (size_t)n + 1);
    return 0;
}

/* Follow d->dest while it is a symbolic link. Returns the number of links, or a negative errno. */
static int follow_links(struct cast_disk *d)
{
    struct stat st;
    for (int links = 0; links <= LINKS_MAX; links++) {
        if (lstat(d->dest, &st) || !S_ISLNK(st.st_mode))
            return links;
        int rc = follow_link(d, &st);
        if (rc)
            return rc;
    }
    return refuse_dest(d, "this symbolic link leads to too many others; remove it, or choose another name");
}

int cast_dest_open(struct cast_disk *d)
{
    int filled = fill_dest(d);
    if (filled)
        return filled;
    bool dry = d->c->config.head.flags & CAST_DRY_RUN;
    int links = 0;
    size_t n = strlen(d->dest);
    struct stat st;
    bool folder = d->dest[n - 1] == '/' || (stat(d->dest, &st) == 0 && S_ISDIR(st.st_mode));
    while (n > 1 && d->dest[n - 1] == '/')
        d->dest[--n] = '\0';
    if (only_a_file(d) && !folder) {
        if ((links = follow_links(d)) < 0)
            return links;
        char *slash = strrchr(d->dest, '/');
        d->alone = slash + 1;
        if (cast_is_part(d->alone, strlen(d->alone)))
            return refuse_dest(d, "weft cast gives such names to unfinished files: choose another name");
        *slash = '\0'; /* for a file in /, the folder is "" here; open it as "/" below */
    }
    const char *root = d->dest[0] ? d->dest : "/";
    if (!dry && !links) {
        mode_t before = umask(022);
        int rc = make_path(d->dest[0] ? d->dest : (char[]){"/"}, (mode_t)d->c->list.mode | 0700);
        umask(before);
        if (rc < 0)
            return rc;
        d->made = rc;
    }
    d->root = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* the folder is not created, because the link may lead into a file system that is not mounted now */
    if (d->root < 0 && errno == ENOENT && links)
        return refuse_dest(d, "this symbolic link leads into a directory that does not exist; make the directory, or remove the link");
    return d->root < 0 && !(dry && errno == ENOENT) ? -errno : 0;
}
