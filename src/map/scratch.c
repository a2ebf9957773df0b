/* SPDX-License-Identifier: MIT
 *
 * Unlinked files for data that does not fit in memory. These files have no name, so they vanish however the job ends. Forked nodes inherit
 * the files' descriptors. The disk space of a piece is freed when the piece is no longer needed.
 */
#include "map/job.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void map_scratch_open(struct map_scratch *s)
{
    const char *dir = getenv("TMPDIR");
    snprintf(s->directory, sizeof s->directory, "%s", dir && dir[0] ? dir : "/tmp");
    s->error = 0;
#ifdef O_TMPFILE
    s->fd = open(s->directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (s->fd >= 0)
        return;
#endif
    char path[sizeof s->directory + 32];
    snprintf(path, sizeof path, "%s/weft-map-XXXXXX", s->directory);
    s->fd = mkostemp(path, O_CLOEXEC);
    if (s->fd < 0)
        s->error = errno; /* most jobs never need the file, so report the error only when the file is needed */
    else
        unlink(path);
}

void map_scratch_close(struct map_scratch *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

static int scratch_refused(const struct map_scratch *s, int error, const char *what)
{
    return base_fail(-error, "cannot %s a temporary file in %s: %s%s", what, s->directory, base_strerror(error),
                     error == ENOSPC || error == EDQUOT ? "; set TMPDIR to a directory with more room"
                     : error == EFBIG                   ? "; raise the limit on file sizes (ulimit -f)"
                                                        : "; set TMPDIR to a directory that can be written");
}

int map_scratch_write(const struct map_scratch *s, uint64_t offset, const void *bytes, size_t len)
{
    if (s->fd < 0)
        return scratch_refused(s, s->error, "make");
    const char *p = bytes;
    while (len) {
        ssize_t n = pwrite(s->fd, p, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return scratch_refused(s, n < 0 ? errno : ENOSPC, "write");
        p += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

int map_read_at(int fd, uint64_t offset, void *bytes, size_t len)
{
    char *p = bytes;
    while (len) {
        ssize_t n = pread(fd, p, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        p += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

int map_scratch_read(const struct map_scratch *s, uint64_t offset, void *bytes, size_t len)
{
    int rc = map_read_at(s->fd, offset, bytes, len);
    return rc ? scratch_refused(s, rc == -ENODATA ? EIO : -rc, "read") : 0;
}

void map_scratch_drop(const struct map_scratch *s, uint64_t offset, uint64_t len)
{
#ifdef FALLOC_FL_PUNCH_HOLE
    /* If the file system cannot free a range, the space is freed at the end of the job. */
    if (s->fd >= 0 && len)
        (void)!fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)base_round_up(len, MAP_SCRATCH_ALIGN));
#else
    (void)s, (void)offset, (void)len;
#endif
}
