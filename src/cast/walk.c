/* SPDX-License-Identifier: MIT
 *
 * The source: makes the list of its files, and opens them. For an entry directly in DEST, `target` is the index of its SRC.
 */
#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cast/cast.h"

#define DEPTH_MAX 1000u

struct inode { /* a file with several hard links; unused if index is UINT32_MAX */
    uint64_t device, number;
    uint32_t index;
};
struct walk {
    struct cast *c;
    uint32_t source, depth; /* depth: number of folders above the entry */
    uint64_t *failed;
    struct inode *inode;
    size_t inodes, inode_room;
};

bool cast_excluded(const struct cast_config *config, const char *path, const char *name, bool folder)
{
    for (uint32_t i = 0; i < config->head.excludes; i++) {
        char pattern[4096];
        size_t n = strlen(config->excludes[i]);
        if (n == 0 || n >= sizeof pattern)
            continue;
        memcpy(pattern, config->excludes[i], n + 1);
        if (pattern[n - 1] == '/') {
            if (!folder)
                continue;
            pattern[n - 1] = '\0';
        }
        const char *p = pattern[0] == '/' ? pattern + 1 : pattern;
        if (strchr(pattern, '/') ? fnmatch(p, path, FNM_PATHNAME) == 0 : fnmatch(p, name, 0) == 0)
            return true;
    }
    return false;
}

static void failed(struct walk *k, const char *path, const char *why)
{
    ++*k->failed;
    cast_say_unsent(k->c, path, why);
}

/* Returns the index of an earlier hard link to the same file. Otherwise stores `index` for this file and returns UINT32_MAX. Without memory
 * also returns UINT32_MAX; then the file is sent as a separate file. */
static uint32_t met_before(struct walk *k, const struct stat *st, uint32_t index)
{
    if (2 * (k->inodes + 1) > k->inode_room) {
        size_t room = k->inode_room ? 2 * k->inode_room : 64;
        struct inode *more = malloc(room * sizeof *more);
        if (!more)
            return UINT32_MAX;
        for (size_t i = 0; i < room; i++)
            more[i].index = UINT32_MAX;
        for (size_t i = 0; i < k->inode_room; i++) {
            if (k->inode[i].index == UINT32_MAX)
                continue;
            size_t at = k->inode[i].number % room;
            while (more[at].index != UINT32_MAX)
                at = (at + 1) % room;
            more[at] = k->inode[i];
        }
        free(k->inode);
        k->inode = more;
        k->inode_room = room;
    }
    size_t at = (uint64_t)st->st_ino % k->inode_room;
    for (; k->inode[at].index != UINT32_MAX; at = (at + 1) % k->inode_room)
        if (k->inode[at].number == (uint64_t)st->st_ino && k->inode[at].device == (uint64_t)st->st_dev)
            return k->inode[at].index;
    k->inode[at] = (struct inode){(uint64_t)st->st_dev, (uint64_t)st->st_ino, index};
    k->inodes++;
    return UINT32_MAX;
}

void cast_walk_times(struct cast_line *n, const struct stat *st)
{
#if defined(__APPLE__)
    n->seconds = st->st_mtimespec.tv_sec;
    n->nanoseconds = (uint32_t)st->st_mtimespec.tv_nsec;
#else
    n->seconds = st->st_mtim.tv_sec;
    n->nanoseconds = (uint32_t)st->st_mtim.tv_nsec;
#endif
}

static int walk_folder(struct walk *k, int fd, uint32_t index, const char *path, const char *below);

/* Not inlined, because of its large array: walk_entry() is recursive. */
static __attribute__((noinline)) int add_symlink(struct walk *k, int at, const char *name, struct cast_line *n, const char *path)
{
    char link[CAST_LINK_MAX + 1];
    ssize_t got = readlinkat(at, name, link, sizeof link);
    if (got <= 0 || got > (ssize_t)CAST_LINK_MAX) {
        failed(k, path, got < 0 ? base_strerror(errno) : "the target of this symbolic link is too long");
        return 0;
    }
    n->type = CAST_SYMLINK;
    n->link_bytes = (uint32_t)got;
    int rc = cast_list_add(&k->c->list, n, name, link);
    return rc ? base_context(rc, "%s", path) : 0;
}

/* Add the entry `name` of the folder `at`, and everything below this entry. `path`: the path for messages; `below`: the path below DEST. */
static int walk_entry(struct walk *k, int at, const char *name, uint32_t parent, const char *path, const char *below)
{
    struct cast_list *l = &k->c->list;
    struct stat st;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW)) {
        failed(k, path, base_strerror(errno));
        return 0;
    }
    bool named = path == k->c->config.sources[k->source];
    if (cast_is_part(name, strlen(name))) {
        if (named)
            failed(k, path, "has a name that weft cast gives to unfinished files: not sent; rename or remove it");
        return 0;
    }
    if (!named && cast_excluded(&k->c->config, below, name, S_ISDIR(st.st_mode)))
        return 0;
    struct cast_line n = {.parent = parent,
                          .mode = (uint32_t)st.st_mode & 07777,
                          .target = parent == CAST_ROOT ? k->source : 0,
                          .name_bytes = (uint32_t)strlen(name)};
    cast_walk_times(&n, &st);
    if (S_ISREG(st.st_mode)) {
        uint32_t first = st.st_nlink > 1 ? met_before(k, &st, l->count) : UINT32_MAX;
        n.type = first == UINT32_MAX ? CAST_FILE : CAST_HARDLINK;
        n.size = first == UINT32_MAX ? (uint64_t)st.st_size : 0;
        n.target = first == UINT32_MAX ? n.target : first;
    } else if (S_ISDIR(st.st_mode)) {
        n.type = CAST_FOLDER;
    } else if (S_ISLNK(st.st_mode)) {
        return add_symlink(k, at, name, &n, path);
    } else {
        failed(k, path, "is a device, a socket or a pipe: not sent");
        return 0;
    }
    uint32_t index = l->count;
    int rc = cast_list_add(l, &n, name, "");
    if (rc || n.type != CAST_FOLDER)
        return rc ? base_context(rc, "%s", path) : 0;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        failed(k, path, base_strerror(errno));
        return 0;
    }
    if (k->depth == DEPTH_MAX) {
        close(fd);
        failed(k, path, "is too many directories deep: its contents are not sent");
        return 0;
    }
    k->depth++;
    rc = walk_folder(k, fd, index, path, below);
    k->depth--;
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Reads the names in a folder, and sorts them. Closes `fd`. Returns the number of names, or a negative errno. */
static ssize_t names_of(int fd, char ***out)
{
    DIR *d = fdopendir(fd);
    size_t count = 0, room = 0;
    char **names = NULL;
    int rc = d ? 0 : -errno;
    if (!d)
        close(fd);
    for (struct dirent *e; !rc && (errno = 0, e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (count == room) {
            room = room ? 2 * room : 64;
            char **more = realloc(names, room * sizeof *more);
            names = more ? more : names;
            rc = more ? 0 : -ENOMEM;
        }
        if (!rc && !(names[count] = strdup(e->d_name)))
            rc = -ENOMEM;
        count += rc == 0;
    }
    if (!rc && errno)
        rc = -errno;
    if (d)
        closedir(d);
    if (count)
        qsort(names, count, sizeof *names, by_name);
    *out = names;
    if (rc) {
        for (size_t i = 0; i < count; i++)
            free(names[i]);
        free(names);
        *out = NULL;
    }
    return rc ? rc : (ssize_t)count;
}

static int walk_folder(struct walk *k, int fd, uint32_t index, const char *path, const char *below)
{
    char **names = NULL;
    int rc = 0, own = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* names_of() closes `fd` */
    ssize_t count = own < 0 ? -errno : names_of(fd, &names);
    if (own < 0)
        close(fd);
    if (count < 0)
        failed(k, path, base_strerror((int)count));
    for (ssize_t i = 0; i < count; i++) {
        size_t n = strlen(path) + strlen(below) + 2 * strlen(names[i]) + 8;
        char *inner = rc ? NULL : malloc(n);
        if (!rc && !inner)
            rc = base_fail(-ENOMEM, "no memory for the list of files" BASE_MEMORY_HINT);
        if (!rc && inner) {
            snprintf(inner, n, "%s/%s", path, names[i]);
            char *inner_below = inner + strlen(inner) + 1;
            snprintf(inner_below, n - (size_t)(inner_below - inner), "%s%s%s", below, below[0] ? "/" : "", names[i]);
            rc = k->c->stopped() ? base_fail(-EINTR, "stopped") : walk_entry(k, own, names[i], index, inner, inner_below);
        }
        free(inner);
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    if (own >= 0)
        close(own);
    return rc;
}

/* Split a source into the folder that its top-level entries lie in, and its own name. The name is "" if the content of that folder is
 * sent. */
static void split(const char *source, char *folder, char *name, size_t len)
{
    bool content = cast_is_content(source);
    size_t n = strlen(source);
    while (n > 1 && source[n - 1] == '/')
        n--;
    size_t at = n;
    while (at && source[at - 1] != '/')
        at--;
    size_t bytes = n - at;
    snprintf(folder, len, "%.*s", (int)(content ? n : at ? at : 1), content || at ? source : ".");
    snprintf(name, len, "%.*s", content ? 0 : (int)bytes, source + at);
}

/* Fail if two sources have the same name, because they would have the same path on the targets. */
static int check_names(const struct cast_list *l)
{
    char **names = calloc(l->count + 1, sizeof *names);
    uint32_t count = 0;
    int rc = names ? 0 : base_fail(-ENOMEM, "no memory for the list of files" BASE_MEMORY_HINT);
    for (uint32_t i = 0; i < l->count && !rc; i++)
        if (l->entry[i].parent == CAST_ROOT)
            names[count++] = (char *)(uintptr_t)l->entry[i].name;
    if (count)
        qsort(names, count, sizeof *names, by_name);
    for (uint32_t i = 1; i < count && !rc; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            rc = base_fail(-EEXIST, "two sources have the name '%s': send them to different directories, by two commands", names[i]);
    free(names);
    return rc;
}

int cast_walk(struct cast *c, uint64_t *failures)
{
    struct walk k = {.c = c, .failed = failures};
    int rc = 0;
    c->list.mode = 0755;
    for (uint32_t i = 0; i < c->config.head.sources && !rc; i++) {
        char folder[4096], name[4096];
        split(c->config.sources[i], folder, name, sizeof folder);
        k.source = i;
        int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
            failed(&k, c->config.sources[i], base_strerror(errno));
        } else if (name[0]) {
            rc = walk_entry(&k, fd, name, CAST_ROOT, c->config.sources[i], name);
            close(fd);
        } else {
            struct stat st;
            uint32_t mode = fstat(fd, &st) ? 0700 : (uint32_t)st.st_mode & 01777;
            /* a new DEST gets only the permissions that all sources have */
            c->list.mode = c->config.head.sources == 1 ? mode : c->list.mode & mode;
            rc = walk_folder(&k, fd, CAST_ROOT, folder, "");
        }
    }
    free(k.inode);
    return rc ? rc : check_names(&c->list);
}

/* Open the folder of a source. Not inlined, because of its large buffers: open_entry() is recursive. */
static __attribute__((noinline)) int open_source_folder(const struct cast *c, uint32_t source)
{
    char folder[4096], name[4096];
    if (source >= c->config.head.sources)
        return -ENOENT;
    split(c->config.sources[source], folder, name, sizeof folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Open an entry of the list for reading. Never follows a symbolic link. */
static int open_entry(const struct cast *c, uint32_t index, int flags)
{
    const struct cast_entry *e = &c->list.entry[index];
    int at = e->parent == CAST_ROOT ? open_source_folder(c, e->target) : open_entry(c, e->parent, O_DIRECTORY);
    if (at < 0)
        return at;
    int fd = openat(at, e->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | flags);
    int rc = fd < 0 ? -errno : fd;
    close(at);
    return rc;
}

int cast_walk_open(struct cast *c, uint32_t index)
{
    return open_entry(c, index, O_NONBLOCK);
}

const char *cast_walk_path(const struct cast *c, uint32_t index, char *out, size_t len)
{
    const struct cast_entry *e = c->list.entry;
    char folder[4096] = "", name[4096], path[4096];
    uint32_t top = index;
    while (e[top].parent != CAST_ROOT)
        top = e[top].parent;
    if (e[top].target < c->config.head.sources)
        split(c->config.sources[e[top].target], folder, name, sizeof folder);
    size_t n = strlen(folder);
    snprintf(out, len, "%s%s%s", folder, n && folder[n - 1] != '/' ? "/" : "", cast_list_path(&c->list, index, path, sizeof path));
    return out;
}
