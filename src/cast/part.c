/* SPDX-License-Identifier: MIT
 *
 * The temporary file for the bytes of an incomplete file. Other users may know its name and be able to write to its folder, for example
 * /tmp. So a temporary file is used only if it is a regular file of this user that no other user can open, and only after locking it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "cast/cast.h"

#define TRIES 16 /* a try fails only if another process creates or removes the file meanwhile */

void cast_disk_part(const char *name, char out[CAST_PART_NAME])
{
    snprintf(out, CAST_PART_NAME, ".weft-cast-%016llx.part", (unsigned long long)base_hash(name, strlen(name), 0));
}

/* Lock an open file. Returns 0, -EBUSY if another cast is writing the file, -EAGAIN if the file's name is no longer `part`, or -EPERM if
 * the file must not be used. */
static int lock_part(int at, const char *part, int fd, bool new)
{
    struct stat st;
    if (fstat(fd, &st))
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_nlink > 1)
        return -EPERM;
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return -EBUSY; /* other errors are ignored, because they mean that the file system has no locks */
    if (!cast_part_is(at, part, fd))
        return -EAGAIN; /* another cast has just renamed or removed the file */
    if (!new &&st.st_uid != geteuid())
        return -EPERM;
    return (st.st_mode & 07777) != 0600 && fchmod(fd, 0600) && !new ? -errno : 0;
}

static int open_once(int at, const char *part, bool *new)
{
    const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    *new = false;
    int fd = openat(at, part, O_RDWR | flags), rc = fd < 0 ? -errno : 0;
    if (rc == -ENOENT) {
        *new = true;
        fd = openat(at, part, O_RDWR | O_CREAT | O_EXCL | flags, 0600);
        rc = fd >= 0 ? 0 : errno == EEXIST ? -EAGAIN : -errno;
    }
    /* if the file's mode forbids writing, open it for reading so that lock_part() can change the mode. The next try opens it for writing */
    bool closed = rc == -EACCES && (fd = openat(at, part, O_RDONLY | flags)) >= 0;
    if (fd >= 0)
        rc = lock_part(at, part, fd, *new);
    if (closed && rc == 0)
        rc = -EAGAIN;
    if (rc && fd >= 0)
        close(fd);
    /* remove a link, a socket or another user's file of this name */
    if (rc == -EPERM || rc == -EACCES || rc == -ELOOP || rc == -ENXIO || rc == -EOPNOTSUPP)
        rc = unlinkat(at, part, 0) && errno != ENOENT ? -errno : -EAGAIN;
    return rc ? rc : fd;
}

int cast_part_open(int at, const char *name, bool *new)
{
    char part[CAST_PART_NAME];
    int fd = -EAGAIN;
    cast_disk_part(name, part);
    for (int i = 0; i < TRIES && fd == -EAGAIN; i++)
        fd = open_once(at, part, new);
    return fd;
}

bool cast_part_is(int at, const char *part, int fd)
{
    struct stat st, named;
    return fstat(fd, &st) == 0 && fstatat(at, part, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_ino == st.st_ino &&
           named.st_dev == st.st_dev;
}

bool cast_part_is_live(int at, const char *part)
{
    int fd = openat(at, part, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool live = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return live;
}
