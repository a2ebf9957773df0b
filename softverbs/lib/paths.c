/* SPDX-License-Identifier: MIT
 *
 * Files that programs look for beside libibverbs. UCX uses a device only if its node in /dev/infiniband exists and may be read and written.
 * NCCL and UCX read the types of its GIDs in /sys/class/infiniband. So this library replaces libc's functions that look for files. Each
 * function first calls libc's. Only if that one finds nothing (or the file is forbidden to this user), and the path belongs to a device of
 * this host, does this library answer:
 *
 *   /dev/infiniband/uverbsN        stat and similar calls, access: a character device that everybody may use. It cannot be opened (ENXIO),
 *                                  because a program that talks to the kernel without libibverbs cannot reach a softverbs device
 *   /sys/class/infiniband/NAME/... stat, access, open for reading: the files of sysfs.c
 *   /sys/class/infiniband and the directories below it: stat, access; listing.c lists them
 *
 * Only the shared library contains this file. Its symbols have no version (symbols.map), so that they replace those of libc.
 */
#include "interpose.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* ---- Answers ---- */
struct file {
    bool node; /* true: a device node; false: a text, or a directory */
    bool directory;
    unsigned number;
    int length;
    char text[512];
};

static const char nodes[] = "/dev/infiniband/uverbs", sys[] = "/sys/class/infiniband";

/* Whether the path is an emulated file. If not, errno stays unchanged. Called when libc's function has failed. */
static bool paths_ours(const char *path, struct file *file)
{
    int error = errno;
    bool yes = false;

    if (error != ENOENT && error != EACCES) /* with these two errors, the string at `path` is readable */
        return false;
    file->directory = false;
    file->node = !strncmp(path, nodes, sizeof nodes - 1);
    if (!file->node && strncmp(path, sys, sizeof sys - 1))
        return false;
    if (!getenv("SOFTVERBS_FABRIC") || sv_join())
        goto out;
    if (file->node) {
        yes = sv_device_node(path + sizeof nodes - 1 - strlen("uverbs"), &file->number);
        goto out;
    }
    file->directory = sv_sysfs_directory(path);
    if (file->directory) {
        yes = true;
        goto out;
    }
    file->length = sv_sysfs_text(path, file->text, sizeof file->text - 1);
    yes = file->length >= 0 && (size_t)file->length < sizeof file->text - 1;
    if (yes)
        file->text[file->length++] = '\n';
out:
    errno = error;
    return yes;
}

static int paths_look(int result, const char *path, struct stat *buffer)
{
    struct file file;

    if (!result || !paths_ours(path, &file))
        return result;
    memset(buffer, 0, sizeof *buffer);
    buffer->st_mode = file.node ? S_IFCHR | 0666 : file.directory ? S_IFDIR | 0555 : S_IFREG | 0444;
    buffer->st_nlink = file.directory ? 2 : 1;
    buffer->st_blksize = 4096;
    if (file.node)
        buffer->st_rdev = makedev(231, 192 + file.number); /* the same numbers as Linux gives to the first 32 such nodes */
    else if (!file.directory)
        buffer->st_size = 4096; /* as sysfs reports for every file */
    return 0;
}

static int paths_permit(int result, const char *path, int mode)
{
    struct file file;

    if (!result || !paths_ours(path, &file))
        return result;
    if (!(mode & (file.node ? X_OK : file.directory ? W_OK : X_OK | W_OK)))
        return 0;
    errno = EACCES;
    return -1;
}

static int paths_give(int result, const char *path, int flags)
{
    struct file file;
    int fd;

    if (result >= 0 || flags & (O_PATH | O_DIRECTORY) || !paths_ours(path, &file) || file.directory)
        return result;
    if (file.node || (flags & O_ACCMODE) != O_RDONLY) {
        errno = file.node ? ENXIO : EACCES;
        return -1;
    }
    fd = memfd_create("softverbs", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
    if (fd >= 0 && (write(fd, file.text, (size_t)file.length) != file.length || lseek(fd, 0, SEEK_SET))) {
        close(fd);
        errno = EIO;
        return -1;
    }
    return fd;
}

/* ---- The calls ------------------------------------------------------------------------------------------------- */
CALL(int, access, const char *path, int mode)
{
    return paths_permit(((int (*)(const char *, int))sv_next(SV_ACCESS))(path, mode), path, mode);
}

CALL(int, faccessat, int at, const char *path, int mode, int flags)
{
    return paths_permit(((int (*)(int, const char *, int, int))sv_next(SV_FACCESSAT))(at, path, mode, flags), path, mode);
}

CALL(int, stat, const char *path, struct stat *buffer)
{
    return paths_look(((int (*)(const char *, struct stat *))sv_next(SV_STAT))(path, buffer), path, buffer);
}

CALL(int, lstat, const char *path, struct stat *buffer) /* no emulated file is a link */
{
    return paths_look(((int (*)(const char *, struct stat *))sv_next(SV_LSTAT))(path, buffer), path, buffer);
}

CALL(int, statx, int at, const char *path, int flags, unsigned mask, struct statx *buffer)
{
    int result = ((int (*)(int, const char *, int, unsigned, struct statx *))sv_next(SV_STATX))(at, path, flags, mask, buffer);
    struct stat s;

    if (!result || paths_look(result, path, &s))
        return result;
    memset(buffer, 0, sizeof *buffer);
    buffer->stx_mask = STATX_TYPE | STATX_MODE | STATX_NLINK | STATX_UID | STATX_GID | STATX_SIZE;
    buffer->stx_mode = (uint16_t)s.st_mode;
    buffer->stx_nlink = (uint32_t)s.st_nlink;
    buffer->stx_blksize = (uint32_t)s.st_blksize;
    buffer->stx_size = (uint64_t)s.st_size;
    buffer->stx_rdev_major = major(s.st_rdev);
    buffer->stx_rdev_minor = minor(s.st_rdev);
    return 0;
}

CALL(int, fstatat, int at, const char *path, struct stat *buffer, int flags)
{
    return paths_look(((int (*)(int, const char *, struct stat *, int))sv_next(SV_FSTATAT))(at, path, buffer, flags), path, buffer);
}

/* stat() of programs built with a glibc before 2.33. On 64-bit machines versions 0 and 1 of the structure are the same. */
CALL(int, __xstat, int version, const char *path, struct stat *buffer)
{
    if (version == 0 || version == 1)
        return sv_call_stat(path, buffer);
    errno = EINVAL;
    return -1;
}

CALL(int, __lxstat, int version, const char *path, struct stat *buffer)
{
    if (version == 0 || version == 1)
        return sv_call_lstat(path, buffer);
    errno = EINVAL;
    return -1;
}

#define TAKE_MODE(mode) /* the argument is there only if the flags require it */ \
    mode_t mode = 0;                                                             \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {                   \
        va_list more;                                                            \
        va_start(more, flags);                                                   \
        mode = va_arg(more, mode_t);                                             \
        va_end(more);                                                            \
    }

CALL(int, open, const char *path, int flags, ...)
{
    TAKE_MODE(mode)
    return paths_give(((int (*)(const char *, int, ...))sv_next(SV_OPEN))(path, flags, mode), path, flags);
}

CALL(int, openat, int at, const char *path, int flags, ...)
{
    TAKE_MODE(mode)
    return paths_give(((int (*)(int, const char *, int, ...))sv_next(SV_OPENAT))(at, path, flags, mode), path, flags);
}

CALL(FILE *, fopen, const char *path, const char *mode)
{
    FILE *stream = ((FILE * (*)(const char *, const char *)) sv_next(SV_FOPEN))(path, mode);
    int fd;

    if (stream || mode[0] != 'r' || strchr(mode, '+'))
        return stream;
    fd = paths_give(-1, path, O_RDONLY | (strchr(mode, 'e') ? O_CLOEXEC : 0));
    return fd < 0 ? NULL : fdopen(fd, mode);
}

TWIN(int, stat, stat64, const char *, struct stat *);
TWIN(int, lstat, lstat64, const char *, struct stat *);
TWIN(int, fstatat, fstatat64, int, const char *, struct stat *, int);
TWIN(int, __xstat, __xstat64, int, const char *, struct stat *);
TWIN(int, __lxstat, __lxstat64, int, const char *, struct stat *);
TWIN(int, open, open64, const char *, int, ...);
TWIN(int, openat, openat64, int, const char *, int, ...);
TWIN(FILE *, fopen, fopen64, const char *, const char *);
