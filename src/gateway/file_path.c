/* SPDX-License-Identifier: MIT
 *
 * Opens the files that askers name, as this process's user. If WEFT_FILE_ROOT is set, no path may lead out of it. On Linux the system
 * ensures this while it opens the path (openat2(2) with RESOLVE_BENEATH). Without openat2(), a path must not contain a symbolic link or
 * `..`. Files that the program itself offers are opened by exactly the path that it gave.
 */
#include "gateway/file.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__) && __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#include <sys/syscall.h>
#endif

#define TRIES 64 /* openat2() returns EAGAIN while a directory of the path is being renamed */

/* --- what the program offers --- */

#define OFFER_BUCKETS 4096u

struct offer {
    struct offer *next;
    char path[];
};
struct file_offers {
    pthread_mutex_t lock;
    struct offer *bucket[OFFER_BUCKETS];
};

struct file_offers *file_offers_new(void)
{
    struct file_offers *all = calloc(1, sizeof *all);
    if (all)
        pthread_mutex_init(&all->lock, NULL);
    return all;
}

static void offers_free(struct file_offers *all)
{
    for (uint32_t i = 0; all && i < OFFER_BUCKETS; i++)
        for (struct offer *o; (o = all->bucket[i]);) {
            all->bucket[i] = o->next;
            free(o);
        }
    if (all)
        pthread_mutex_destroy(&all->lock);
    free(all);
}

static struct offer **offer_bucket(struct file_offers *all, const char *path)
{
    uint32_t hash = 2166136261u; /* FNV-1a, without a secret key, since only the program adds paths */
    for (const char *p = path; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 16777619u;
    return &all->bucket[hash % OFFER_BUCKETS];
}

static bool offered(struct file_offers *all, const char *path)
{
    pthread_mutex_lock(&all->lock);
    struct offer *o = *offer_bucket(all, path);
    while (o && strcmp(o->path, path) != 0)
        o = o->next;
    pthread_mutex_unlock(&all->lock);
    return o != NULL;
}

int weft_file_offer(weft_node *w, const char *path)
{
    struct file_offers *all = gateway_in(w)->file_offers;
    size_t len = path ? strlen(path) : 0;
    if (!len)
        return base_fail(-EINVAL, "weft_file_offer(): the path is empty: name a file or a directory");
    if (len > WEFT_FILE_PATH_MAX)
        return base_fail(-ENAMETOOLONG, "weft_file_offer(): the path has %zu bytes, but at most %u are possible: use a shorter path", len,
                         WEFT_FILE_PATH_MAX);
    if (!all)
        return base_fail(-EOPNOTSUPP, "weft_file_offer(): this node does not offer the service 'file': set WEFT_SERVE=file");
    if (offered(all, path))
        return 0;
    struct offer *o = malloc(sizeof *o + len + 1);
    if (!o)
        return base_fail(-ENOMEM, "no memory to offer %s" BASE_MEMORY_HINT, path);
    memcpy(o->path, path, len + 1);
    struct offer **at = offer_bucket(all, path);
    pthread_mutex_lock(&all->lock);
    o->next = *at;
    *at = o;
    pthread_mutex_unlock(&all->lock);
    return 0;
}

/* --- opening --- */

static bool only_offered(const struct file_root *root)
{
    return root->path && strcmp(root->path, "-") == 0;
}

int file_root_open(struct file_root *out, const char *path, struct file_offers *offers)
{
    *out = (struct file_root){.fd = -1, .offers = offers};
    if (!path[0])
        return 0;
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    out->path = strndup(path, len);
    if (!out->path)
        return base_fail(-ENOMEM, "no memory for the path of WEFT_FILE_ROOT" BASE_MEMORY_HINT);
    int rc = 0;
    if (only_offered(out))
        return 0;
    if (path[0] != '/')
        rc = -EINVAL;
    else if ((out->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        rc = -errno;
    if (rc)
        return base_fail(rc, "WEFT_FILE_ROOT=%s: %s", path,
                         rc == -EINVAL ? "the path is not absolute; set it to the absolute path of a directory, or to -"
                                       : base_strerror(rc));
    return 0;
}

void file_root_close(struct file_root *root)
{
    if (root->fd >= 0)
        close(root->fd);
    free(root->path);
    offers_free(root->offers);
    *root = (struct file_root){.fd = -1};
}

/* Returns the part of the path after the root. NULL: the path is not below the root. */
static const char *below(const struct file_root *root, const char *path)
{
    size_t len = strlen(root->path);
    if (path[0] != '/')
        return path;
    if (strncmp(path, root->path, len) != 0 || (path[len] && path[len] != '/' && len > 1))
        return NULL;
    path += len;
    return path + strspn(path, "/");
}

/* Opens a path one component at a time, for systems without openat2(). */
static int open_each(int root, const char *path, int flags)
{
    char name[256];
    int at = root, fd = -ENOENT;
    while (*path) {
        size_t len = strcspn(path, "/");
        const char *rest = path + len + strspn(path + len, "/");
        if (len >= sizeof name) {
            fd = -ENAMETOOLONG;
            break;
        }
        memcpy(name, path, len);
        name[len] = '\0';
        if (strcmp(name, "..") == 0) {
            fd = -EXDEV;
            break;
        }
        fd = openat(at, name, *rest ? O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC : flags | O_NOFOLLOW, 0666);
        fd = fd < 0 ? (errno == ELOOP ? -EXDEV : -errno) : fd;
        path = rest;
        if (fd < 0 || !*rest)
            break;
        if (at != root)
            close(at);
        at = fd;
    }
    if (at != root)
        close(at);
    return fd;
}

static int open_below(int root, const char *path, int flags)
{
#if defined(SYS_openat2) && defined(RESOLVE_BENEATH)
    struct open_how how = {
        .flags = (uint64_t)(unsigned)flags, .mode = flags & O_CREAT ? 0666 : 0, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    for (int i = 0; i < TRIES; i++) {
        long fd = syscall(SYS_openat2, root, path, &how, sizeof how);
        if (fd >= 0)
            return (int)fd;
        /* EPERM: perhaps a container forbids openat2(); if EPERM has another cause, open_each() fails, too */
        if (errno == ENOSYS || errno == EPERM)
            break;
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        if (i == TRIES - 1)
            return -EAGAIN;
    }
#endif
    return open_each(root, path, flags);
}

int file_path_open(const struct file_root *root, const char *path, int flags, bool *outside)
{
    struct stat st;
    int fd;
    *outside = false;
    /* a terminal must not become this process's controlling terminal, and a FIFO must not block it */
    flags |= O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    bool named = root->path && root->offers && !(flags & (O_RDWR | O_CREAT)) && offered(root->offers, path);
    if (only_offered(root) && !named) {
        *outside = true;
        return -EPERM;
    }
    if (root->fd < 0 || named) {
        do
            fd = open(path, flags, 0666);
        while (fd < 0 && errno == EINTR);
        fd = fd < 0 ? -errno : fd;
    } else {
        const char *rest = below(root, path);
        fd = rest ? open_below(root->fd, rest[0] ? rest : ".", flags) : -EXDEV;
        *outside = fd == -EXDEV;
        fd = *outside ? -EACCES : fd;
    }
    if (fd < 0)
        return fd == -ENXIO ? -EINVAL : fd; /* ENXIO: a socket, a FIFO without a reader, or a device without a driver */
    int rc = fstat(fd, &st) ? -errno : S_ISREG(st.st_mode) ? 0 : S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
    if (!rc)
        return fd;
    close(fd);
    return rc;
}
