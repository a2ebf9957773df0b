/* SPDX-License-Identifier: MIT
 *
 * The last step of a target: make links, remove files for --delete, and set the modes and times of folders. Folders come last, because each
 * new name in a folder changes its time.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cast/cast.h"

static void set_times_of(const struct cast_entry *e, struct timespec t[2])
{
    t[0] = (struct timespec){.tv_nsec = UTIME_OMIT};
    t[1] = (struct timespec){.tv_sec = e->seconds, .tv_nsec = (long)e->nanoseconds};
}

static int make_symlink(struct cast_disk *d, uint32_t index)
{
    const struct cast_entry *e = &d->c->list.entry[index];
    char part[CAST_PART_NAME], now[CAST_LINK_MAX + 2];
    struct timespec t[2];
    struct stat st;
    int at = cast_disk_folder(d, index);
    if (at < 0)
        return at;
    if (fstatat(at, e->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && cast_disk_refuses(d, index, &st))
        return 0;
    ssize_t n = readlinkat(at, e->name, now, sizeof now);
    set_times_of(e, t);
    if (n == (ssize_t)strlen(e->link) && memcmp(now, e->link, (size_t)n) == 0)
        return utimensat(at, e->name, t, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
    cast_disk_part(e->name, part);
    unlinkat(at, part, 0);
    if (symlinkat(e->link, at, part) || utimensat(at, part, t, AT_SYMLINK_NOFOLLOW) || renameat(at, part, at, e->name)) {
        int rc = -errno;
        unlinkat(at, part, 0);
        return rc;
    }
    return 0;
}

static int make_hardlink(struct cast_disk *d, uint32_t index)
{
    const struct cast_entry *e = &d->c->list.entry[index], *target = &d->c->list.entry[e->target];
    char part[CAST_PART_NAME];
    struct stat a, b;
    int at = cast_disk_folder(d, e->target), from = at < 0 ? at : fcntl(at, F_DUPFD_CLOEXEC, 0);
    if (from < 0)
        return at < 0 ? at : -errno;
    at = cast_disk_folder(d, index);
    int rc = at < 0 ? at : d->file[e->target].state != CAST_RIGHT || fstatat(from, target->name, &a, AT_SYMLINK_NOFOLLOW) ? -ENOENT : 0;
    bool there = !rc && fstatat(at, e->name, &b, AT_SYMLINK_NOFOLLOW) == 0;
    bool linked = there && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    bool refused = there && cast_disk_refuses(d, index, &b);
    if (!rc && !linked && !refused) {
        cast_disk_part(e->name, part);
        unlinkat(at, part, 0);
        rc = linkat(from, target->name, at, part, 0) ? -errno : renameat(at, part, at, e->name) ? -errno : 0;
        unlinkat(at, part, 0);
    }
    close(from);
    return rc;
}

/* Sync the names in an open folder to the disk, before the cast reports success. On Linux, sync_names() syncs all folders of DEST's file
 * system at once; this function is for folders of other file systems. */
static int sync_folder(struct cast_disk *d, int fd)
{
#if defined(__linux__)
    struct stat root, st;
    if (!d->renamed || (fstat(d->root, &root) == 0 && fstat(fd, &st) == 0 && root.st_dev == st.st_dev))
        return 0;
#endif
    /* EINVAL, ENOTSUP: some file systems cannot sync a folder */
    return d->renamed && fsync(fd) && errno != EINVAL && errno != ENOTSUP ? -1 : 0;
}

static void sync_names(struct cast_disk *d)
{
    bool alone = d->c->list.count == 1;
    if (!d->renamed || d->root < 0)
        return;
#if defined(__linux__)
    int rc = alone ? fsync(d->root) : syncfs(d->root);
#else
    int rc = fsync(d->root);
    (void)alone;
#endif
    if (rc && errno != EINVAL && errno != ENOTSUP) {
        d->c->state.failed++;
        cast_say(d->c, true, "%s: cannot make sure that the names of the files are on the disk (fsync): %s", d->dest[0] ? d->dest : "/",
                 base_strerror(errno));
    }
    d->renamed = false;
}

static void set_folder(struct cast_disk *d, uint32_t index)
{
    const struct cast_entry *e = &d->c->list.entry[index];
    struct timespec t[2];
    int at = cast_disk_folder(d, index);
    int fd = at < 0 ? -1 : openat(at, e->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    set_times_of(e, t);
    if (fd < 0 || fchmod(fd, (mode_t)e->mode) || futimens(fd, t) || sync_folder(d, fd))
        cast_disk_give_up(d, index, at < 0 ? -at : errno, "set its mode and time");
    if (fd >= 0)
        close(fd);
}

/* --- --delete --- */

struct child {
    uint32_t parent;
    const char *name;
};
struct deletion {
    struct cast_disk *d;
    struct child *child;
    bool dry;
    char below[8192]; /* the path of the current entry, relative to DEST */
};

static int by_parent_and_name(const void *a, const void *b)
{
    const struct child *x = a, *y = b;
    return x->parent != y->parent ? (x->parent < y->parent ? -1 : 1) : strcasecmp(x->name, y->name);
}

/* Whether a name found in a folder is in the list. A file system that ignores case may have returned the name with other capitals. */
static bool is_listed(const struct deletion *x, int at, uint32_t folder, const char *name)
{
    const struct child key = {folder, name}, *end = x->child + x->d->c->list.count;
    const struct child *one = bsearch(&key, x->child, x->d->c->list.count, sizeof key, by_parent_and_name);
    struct stat a, b;
    while (one && one > x->child && by_parent_and_name(one - 1, &key) == 0)
        one--;
    for (; one && one < end && by_parent_and_name(one, &key) == 0; one++)
        if (strcmp(one->name, name) == 0 ||
            (fstatat(at, one->name, &a, AT_SYMLINK_NOFOLLOW) == 0 && fstatat(at, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
             a.st_dev == b.st_dev && a.st_ino == b.st_ino))
            return true;
    return false;
}

/* Append a name to the path in x->below. Returns the length that the path had before, or SIZE_MAX if the new path is too long. */
static size_t enter(struct deletion *x, const char *name)
{
    size_t at = strlen(x->below), n = strlen(name) + (at > 0);
    if (n >= sizeof x->below - at)
        return SIZE_MAX;
    snprintf(x->below + at, sizeof x->below - at, "%s%s", at ? "/" : "", name);
    return at;
}

static bool is_name(const char *name)
{
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* Open a folder. *other: another file system is mounted at the folder. Returns NULL if opening has failed, with errno set. */
static DIR *open_names(int at, const char *name, bool *other)
{
    struct stat above, st;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    if (!names) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        errno = error;
        return NULL;
    }
    *other = fstat(at, &above) || fstat(fd, &st) || above.st_dev != st.st_dev;
    return names;
}

/* Whether x->below must stay, because --exclude matches or another cast is writing this file. */
static bool is_kept(const struct deletion *x, int at, const char *name, bool folder)
{
    return cast_excluded(&x->d->c->config, x->below, name, folder) || (cast_is_part(name, strlen(name)) && cast_part_is_live(at, name));
}

/* Whether an entry inside the folder x->below must stay, or another file system is mounted there. */
static bool keeps_something(struct deletion *x, int at, const char *name)
{
    bool keeps = false;
    DIR *names = open_names(at, name, &keeps);
    for (struct dirent *e; names && !keeps && (e = readdir(names));) {
        struct stat st;
        if (!is_name(e->d_name) || fstatat(dirfd(names), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        size_t cut = enter(x, e->d_name);
        keeps = cut == SIZE_MAX || is_kept(x, dirfd(names), e->d_name, S_ISDIR(st.st_mode)) ||
                (S_ISDIR(st.st_mode) && keeps_something(x, dirfd(names), e->d_name));
        if (cut != SIZE_MAX)
            x->below[cut] = '\0';
    }
    if (names)
        closedir(names);
    return keeps;
}

static int remove_tree(int at, const char *name)
{
    if (unlinkat(at, name, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -errno;
    bool other = false;
    DIR *names = open_names(at, name, &other);
    int rc = !names ? -errno : other ? -EXDEV : 0;
    for (struct dirent *e; names && !rc && (e = readdir(names));)
        if (is_name(e->d_name))
            rc = remove_tree(dirfd(names), e->d_name);
    if (names)
        closedir(names);
    return rc ? rc : unlinkat(at, name, AT_REMOVEDIR) ? -errno : 0;
}

/* Delete x->below. Files that must stay, and the folders that contain them, are not deleted. */
static void delete_tree(struct deletion *x, int at, const char *name)
{
    struct cast *c = x->d->c;
    struct stat st;
    bool other = false;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) || is_kept(x, at, name, S_ISDIR(st.st_mode)))
        return;
    if (!S_ISDIR(st.st_mode) || !keeps_something(x, at, name)) {
        int rc = x->dry ? 0 : remove_tree(at, name);
        c->state.failed += rc != 0;
        if (rc)
            cast_say(c, true, "%s: cannot delete: %s", x->below, base_strerror(rc));
        else
            cast_say(c, false, "%s %s", x->dry ? "would delete" : "deleted", x->below);
        return;
    }
    DIR *names = open_names(at, name, &other);
    if (other)
        cast_say(c, false, "%s: not deleted, because another file system is mounted there", x->below);
    for (struct dirent *e; names && !other && (e = readdir(names));) {
        size_t cut = is_name(e->d_name) ? enter(x, e->d_name) : SIZE_MAX;
        if (cut == SIZE_MAX)
            continue;
        delete_tree(x, dirfd(names), e->d_name);
        x->below[cut] = '\0';
    }
    if (names)
        closedir(names);
}

static void delete_one(struct deletion *x, int at, uint32_t folder, const char *name)
{
    struct cast_disk *d = x->d;
    if (is_listed(x, at, folder, name))
        return;
    x->below[0] = '\0';
    if (folder != CAST_ROOT)
        cast_list_path(&d->c->list, folder, x->below, sizeof x->below);
    if (enter(x, name) != SIZE_MAX)
        delete_tree(x, at, name);
}

static void delete_in(struct deletion *x, uint32_t folder)
{
    struct cast_disk *d = x->d;
    int at = folder == CAST_ROOT ? d->root : cast_disk_folder(d, folder);
    int fd = at < 0
                 ? -1
                 : openat(at, folder == CAST_ROOT ? "." : d->c->list.entry[folder].name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    if (!names) {
        if (fd >= 0)
            close(fd);
        return; /* in a dry run the folder may not exist; otherwise the reason was printed before */
    }
    for (struct dirent *e; (e = readdir(names));)
        if (is_name(e->d_name))
            delete_one(x, fd, folder, e->d_name);
    closedir(names);
}

static void delete_others(struct cast_disk *d)
{
    const struct cast_list *l = &d->c->list;
    struct deletion x = {d, calloc(l->count + 1, sizeof *x.child), d->c->config.head.flags & CAST_DRY_RUN, ""};
    bool root = false;
    if (!x.child) {
        d->c->state.failed++;
        cast_say(d->c, true, "no memory to find what --delete must delete, so nothing is deleted" BASE_MEMORY_HINT);
        return;
    }
    for (uint32_t i = 0; i < l->count; i++)
        x.child[i] = (struct child){l->entry[i].parent, l->entry[i].name};
    if (l->count)
        qsort(x.child, l->count, sizeof *x.child, by_parent_and_name);
    for (uint32_t i = 0; i < d->c->config.head.sources; i++)
        root = root || cast_is_content(d->c->config.sources[i]);
    if (root && !d->alone) /* with `alone`, the root is DEST's parent folder, and only DEST in it belongs to the cast */
        delete_in(&x, CAST_ROOT);
    for (uint32_t i = 0; i < l->count; i++)
        if (l->entry[i].type == CAST_FOLDER && d->file[i].state != CAST_GIVEN_UP)
            delete_in(&x, i);
    free(x.child);
}

void cast_finish(struct cast_disk *d, bool sources_failed)
{
    const struct cast_list *l = &d->c->list;
    bool dry = d->c->config.head.flags & CAST_DRY_RUN;
    for (uint32_t i = 0; i < l->count && !dry && !d->failed; i++) {
        bool symbolic = l->entry[i].type == CAST_SYMLINK;
        if ((!symbolic && l->entry[i].type != CAST_HARDLINK) || d->file[i].state == CAST_GIVEN_UP)
            continue;
        int rc = symbolic ? make_symlink(d, i) : make_hardlink(d, i);
        if (rc)
            cast_disk_give_up(d, i, -rc, symbolic ? "make this symbolic link" : "make this hard link");
    }
    if (d->c->config.head.flags & CAST_DELETE && !d->failed) {
        if (sources_failed)
            cast_say(d->c, false, "--delete deletes nothing, because some of the sources could not be read: see the messages above");
        else
            delete_others(d);
    }
    for (uint32_t i = l->count; i-- > 0 && !dry && !d->failed;)
        if (l->entry[i].type == CAST_FOLDER && d->file[i].state != CAST_GIVEN_UP)
            set_folder(d, i);
    if (!dry && !d->failed && d->made && fchmod(d->root, (mode_t)l->mode | 0700)) { /* 0700: the next cast must be able to write to DEST */
        d->c->state.failed++;
        cast_say(d->c, true, "%s: cannot set its mode: %s", d->dest, base_strerror(errno));
    }
    if (!dry && !d->failed)
        sync_names(d);
}
