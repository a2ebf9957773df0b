/* SPDX-License-Identifier: MIT
 *
 * Opens the files that askers name, as this process's user. With a root, no component of the path leads out of it: the system checks that
 * while it walks the path (openat2(2)), so that nobody can change a folder to a symbolic link in between. On systems that cannot, no
 * component may be a symbolic link or `..`.
 */
#include "gateway/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/openat2.h>
#include <sys/syscall.h>
#endif

#define TRIES 64 /* while others rename folders: the system then asks to try again */

int file_root_open(struct file_root *out, const char *path)
{
    *out = (struct file_root){.fd = -1};
    if (!path[0])
        return 0;
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    out->path = strndup(path, len);
    if (!out->path)
        return base_fail(-ENOMEM, "no memory for WEFT_FILE_ROOT");
    int rc = 0;
    if (path[0] != '/')
        rc = -EINVAL;
    else if ((out->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        rc = -errno;
    if (rc)
        return base_fail(rc, "WEFT_FILE_ROOT=%s: %s", path, rc == -EINVAL ? "give the whole path of a folder" : base_strerror(rc));
    return 0;
}

void file_root_close(struct file_root *root)
{
    if (root->fd >= 0)
        close(root->fd);
    free(root->path);
    *root = (struct file_root){.fd = -1};
}

/* The part of a path that follows the root. NULL: it is not below the root. */
static const char *below(const struct file_root *root, const char *path)
{
    size_t len = strlen(root->path);
    if (path[0] != '/')
        return path;
    if (strncmp(path, root->path, len) != 0 || (path[len] != '/' && len > 1))
        return NULL;
    path += len;
    return path + strspn(path, "/");
}

/* Component by component. */
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
#if defined(__linux__) && defined(SYS_openat2)
    struct open_how how = {
        .flags = (uint64_t)(unsigned)flags, .mode = flags & O_CREAT ? 0666 : 0, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    for (int i = 0; i < TRIES; i++) {
        long fd = syscall(SYS_openat2, root, path, &how, sizeof how);
        if (fd >= 0)
            return (int)fd;
        if (errno == ENOSYS || errno == EPERM) /* EPERM: a container forbids the call; or the file is sealed, which open_each() tells */
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
    flags |= O_CLOEXEC | O_NOCTTY | O_NONBLOCK; /* neither a terminal nor a FIFO must have an effect on this process */
    if (root->fd < 0) {
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
        return fd;
    int rc = fstat(fd, &st) ? -errno : S_ISREG(st.st_mode) ? 0 : S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
    if (!rc)
        return fd;
    close(fd);
    return rc;
}
