/* SPDX-License-Identifier: MIT
 *
 * The output. Large chunks are written directly from the pool. Small chunks are gathered in a buffer. The file of --output gets its name
 * only when it is complete.
 */
#include "map/job.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GATHER_BYTES (256u << 10)

static int emit_refused(const struct map_emit *e, int error, const char *what)
{
    return base_fail(-error, "cannot %s %s: %s", what, e->name, base_strerror(error));
}

/* Create a file in the directory of the final file: a file without a name, if the system supports that. */
static int open_nameless(struct map_emit *e)
{
    char *slash = strrchr(e->final_path, '/');
    int dir_len = slash ? (int)(slash - e->final_path) : 1;
    const char *dir = slash ? e->final_path : ".";
    if (slash == e->final_path)
        dir_len = 1;
    char directory[4096];
    snprintf(directory, sizeof directory, "%.*s", dir_len, dir);
#ifdef O_TMPFILE
    e->fd = open(directory, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (e->fd >= 0)
        return 0;
#endif
    size_t len = strlen(directory) + 40;
    char *path = malloc(len);
    if (!path)
        return base_fail(-ENOMEM, "no memory for the path of the unfinished output" BASE_MEMORY_HINT);
    snprintf(path, len, "%s/.weft-map-XXXXXX", directory);
    e->fd = mkostemp(path, O_CLOEXEC);
    if (e->fd < 0) {
        int rc = emit_refused(e, errno, "make");
        free(path);
        return rc;
    }
    mode_t mask = umask(0);
    umask(mask);
    fchmod(e->fd, 0666 & ~mask);
    e->temporary_path = path;
    return 0;
}

/* Follow symbolic links up to the path where the file is to be created. Returns NULL, with errno set, if the path cannot be found. */
static char *behind_links(const char *path)
{
    char *at = strdup(path), target[4096];
    for (int links = 0; at; links++) {
        ssize_t n = readlink(at, target, sizeof target - 1);
        if (n < 0)
            return at; /* `at` is not a link: the chain ends at it */
        target[n] = '\0';
        const char *slash = strrchr(at, '/');
        int directory = target[0] == '/' || !slash ? 0 : (int)(slash - at) + 1;
        size_t len = (size_t)directory + (size_t)n + 1;
        char *next = links < 40 ? malloc(len) : NULL;
        if (next)
            snprintf(next, len, "%.*s%s", directory, at, target);
        else
            errno = links < 40 ? ENOMEM : ELOOP;
        free(at);
        at = next;
    }
    return NULL;
}

int map_emit_open(struct map_emit *e, const char *path)
{
    struct stat st;
    e->fd = -1;
    e->name = path ? path : "standard output";
    e->buffer = malloc(GATHER_BYTES);
    if (!e->buffer)
        return base_fail(-ENOMEM, "no memory to write the output" BASE_MEMORY_HINT);
    if (!path) {
        e->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
        return e->fd < 0 ? emit_refused(e, errno, "write to") : 0;
    }
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return emit_refused(e, EISDIR, "write to");
    if (exists && !S_ISREG(st.st_mode)) { /* a device, a pipe: there is nothing to rename */
        e->fd = open(path, O_WRONLY | O_CLOEXEC);
        return e->fd < 0 ? emit_refused(e, errno, "open") : 0;
    }
    if (exists && access(path, W_OK))
        return emit_refused(e, errno, "write to");
    e->exists = exists;
    /* Resolve symbolic links, so that the file is replaced and not the link. */
    e->final_path = exists ? realpath(path, NULL) : behind_links(path);
    if (!e->final_path)
        return emit_refused(e, errno, "open");
    int rc = open_nameless(e);
    /* Change the owner before the mode, because a change of the owner clears bits of the mode. If the user may not change the owner, go
     * on. */
    if (!rc && exists) {
        (void)!fchown(e->fd, st.st_uid, st.st_gid);
        fchmod(e->fd, st.st_mode & 07777);
    }
    return rc;
}

static int write_all(struct map_emit *e, const uint8_t *p, size_t len)
{
    if (e->bar && len) { /* a bar that is drawn later would erase an unfinished line of the output */
        map_progress_clear(e->bar);
        e->bar->progress = false;
        e->bar = NULL;
    }
    while (len) {
        ssize_t n = write(e->fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) { /* another process made our standard output non-blocking */
            base_sleep_ns(WEFT_MS);
            continue;
        }
        if (n <= 0)
            return emit_refused(e, n < 0 ? errno : ENOSPC, "write to");
        p += n;
        len -= (size_t)n;
        e->bytes += (uint64_t)n;
    }
    return 0;
}

int map_emit_flush(struct map_emit *e)
{
    size_t len = e->used;
    e->used = 0;
    return write_all(e, e->buffer, len);
}

int map_emit_write(struct map_emit *e, const void *bytes, size_t len)
{
    if (e->used + len > GATHER_BYTES) {
        int rc = map_emit_flush(e);
        if (rc)
            return rc;
    }
    if (len >= GATHER_BYTES / 4 && e->used == 0)
        return write_all(e, bytes, len);
    if (len)
        memcpy(e->buffer + e->used, bytes, len);
    e->used += len;
    return 0;
}

int map_emit_close(struct map_emit *e)
{
    int rc = map_emit_flush(e);
    if (!rc && e->final_path && !e->temporary_path) {
        /* rename() replaces the file in one step, but needs a name to start from. */
        char from[64];
        size_t len = strlen(e->final_path) + 40;
        char *path = malloc(len);
        if (!path)
            return base_fail(-ENOMEM, "no memory for the path of the complete output" BASE_MEMORY_HINT);
        snprintf(from, sizeof from, "/proc/self/fd/%d", e->fd);
        snprintf(path, len, "%s.weft-%d", e->final_path, (int)getpid());
        unlink(path);
        e->temporary_path = path; /* from now on a signal handler removes the file */
        if (linkat(AT_FDCWD, from, AT_FDCWD, path, AT_SYMLINK_FOLLOW))
            rc = emit_refused(e, errno, "name");
    }
    if (!rc && e->final_path && rename(e->temporary_path, e->final_path))
        rc = emit_refused(e, errno, "name");
    if (!rc) {
        free(e->temporary_path);
        e->temporary_path = NULL;
        int fd = e->fd;
        e->fd = -1;
        /* Some file systems report a full disk only at close(). */
        if (close(fd) && errno != EINTR)
            rc = emit_refused(e, errno, "write to");
    }
    map_emit_abandon(e);
    return rc;
}

void map_emit_abandon(struct map_emit *e)
{
    if (e->temporary_path)
        unlink(e->temporary_path);
    free(e->temporary_path);
    free(e->final_path);
    free(e->buffer);
    if (e->fd >= 0)
        close(e->fd);
    *e = (struct map_emit){.fd = -1, .name = e->name, .bytes = e->bytes};
}
