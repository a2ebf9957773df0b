/* SPDX-License-Identifier: MIT
 *
 * The source with --follow: sends one file while another program still writes it, for example a download. The file is complete when it is
 * renamed from a name like SRC.part to SRC. A file that is called SRC from the start is complete when it has not grown for the time that
 * the user gave.
 *
 * The other program may overwrite bytes that were already sent. So at the end all bytes are read once more and compared by a checksum. The
 * size is polled every 50 ms, which also works if another host writes the file over a shared file system.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cast/cast.h"
#include "cast/source.h"

#define LOOK_NS (50 * WEFT_MS)
#define TELL_NS (100 * WEFT_MS)

static const char *const suffixes[] = {".part", ".partial", ".crdownload", ".download", ".incomplete", ".tmp"};
#define SUFFIXES (sizeof suffixes / sizeof suffixes[0])

/* --- finding the file to follow --- */

/* The length of SRC without a suffix of unfinished downloads. */
static size_t bare_length(const char *source)
{
    size_t n = strlen(source);
    for (size_t i = 0; i < SUFFIXES; i++) {
        size_t m = strlen(suffixes[i]);
        if (n > m && source[n - m - 1] != '/' && strcmp(source + n - m, suffixes[i]) == 0)
            return n - m;
    }
    return n;
}

/* Open SRC with `suffix` in place of its own suffix. Returns 0, -ENOENT, or another negative errno with base_error(). */
static int open_name(struct cast_follow *f, const char *source, size_t bare, const char *suffix)
{
    int n = snprintf(f->path, sizeof f->path, "%.*s%s", (int)bare, source, suffix);
    if (n < 0 || (size_t)n >= sizeof f->path)
        return base_fail(-ENAMETOOLONG, "%s: the path is too long; use a shorter path", source);
    f->fd = open(f->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    f->unnamed = suffix[0] != '\0';
    if (f->fd >= 0 || errno == ENOENT)
        return f->fd >= 0 ? 0 : -ENOENT;
    return base_fail(-errno, "cannot open %s: %s", f->path, base_strerror(errno));
}

static bool is_empty(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0;
}

/* Open SRC. If there is no such file, try SRC without its suffix, or with another suffix. A file with a suffix is preferred to an empty
 * SRC, because some browsers create an empty file to reserve the name. Returns 0, or a negative errno with base_error(). */
static int open_file(struct cast_follow *f, const char *source, size_t bare)
{
    int rc = open_name(f, source, bare, source + bare);
    if (rc == -ENOENT && source[bare])
        rc = open_name(f, source, bare, "");
    bool empty = !rc && !f->unnamed && is_empty(f->fd);
    if (empty) {
        close(f->fd);
        rc = -ENOENT;
    }
    for (size_t i = 0; i < SUFFIXES && rc == -ENOENT; i++)
        rc = open_name(f, source, bare, suffixes[i]);
    if (rc == -ENOENT && empty)
        rc = open_name(f, source, bare, "");
    return rc != -ENOENT ? rc
                         : base_fail(-ENOENT,
                                     "%.*s: the file does not exist, neither under this name nor with .part or another suffix of a "
                                     "download: see weft-cast(1)",
                                     (int)bare, source);
}

int cast_follow_open(struct cast_source *s)
{
    struct cast_follow *f = &s->follow;
    const char *source = s->c->config.sources[0];
    size_t bare = bare_length(source), at = bare;
    struct cast_line n = {.type = CAST_FILE, .parent = CAST_ROOT};
    struct stat st;
    char name[CAST_NAME_MAX + 1];
    int rc = open_file(f, source, bare);
    if (rc)
        return rc;
    if (fstat(f->fd, &st) || !S_ISREG(st.st_mode))
        return base_fail(-EINVAL, "%s is not a regular file: --follow takes one regular file", f->path);
    while (at && source[at - 1] != '/')
        at--;
    if (bare - at > CAST_NAME_MAX)
        return base_fail(-ENAMETOOLONG, "%s: the name is too long; use a shorter name", source);
    memcpy(name, source + at, bare - at);
    name[bare - at] = '\0';
    n.name_bytes = (uint32_t)(bare - at);
    n.size = (uint64_t)st.st_size;
    n.mode = (uint32_t)st.st_mode & 07777;
    cast_walk_times(&n, &st);
    return cast_list_add(&s->c->list, &n, name, "");
}

void cast_follow_close(struct cast_source *s)
{
    if (s->follow.fd >= 0)
        close(s->follow.fd);
    s->follow.fd = -1;
}

/* --- its growth --- */

static bool is_renamed(const struct cast_follow *f, const struct stat *open)
{
    struct stat st;
    return stat(f->path, &st) ? errno == ENOENT : st.st_ino != open->st_ino || st.st_dev != open->st_dev;
}

/* Whether SRC without its suffix leads to the open file. */
static bool has_name(const struct cast_source *s, const struct stat *open)
{
    const char *source = s->c->config.sources[0];
    char path[4096];
    struct stat st;
    int n = snprintf(path, sizeof path, "%.*s", (int)bare_length(source), source);
    return n > 0 && (size_t)n < sizeof path && stat(path, &st) == 0 && st.st_ino == open->st_ino && st.st_dev == open->st_dev;
}

static void tell_size(struct cast_source *s, uint64_t size)
{
    struct cast *c = s->c;
    c->list.bytes = size;
    if (base_now_ns() - s->follow.told_ns < TELL_NS)
        return;
    s->follow.told_ns = base_now_ns();
    cast_tell_sums(c);
}

/* Read the bytes from `from` to `to` again, and compare their checksum with the checksum of the bytes that were sent. Returns 0 if both are
 * equal, or a negative errno with base_error(). */
static int compare_again(struct cast_source *s, uint64_t from, uint64_t to)
{
    struct cast_follow *f = &s->follow;
    XXH3_state_t *again = XXH3_createState();
    uint8_t *piece = malloc(CAST_PIECE);
    int rc = again && piece ? 0 : base_fail(-ENOMEM, "no memory for the buffer to read the file a second time" BASE_MEMORY_HINT);
    if (!rc)
        XXH3_128bits_reset(again);
    for (uint64_t at = from; at < to && !rc && !cast_send_aborted(s);) {
        uint64_t n = to - at < CAST_PIECE ? to - at : CAST_PIECE;
        if ((rc = cast_read_all(f->fd, piece, n, at))) {
            base_fail(rc, "cannot read the file a second time, to compare its checksum: %s", base_strerror(rc));
            break;
        }
        XXH3_128bits_update(again, piece, n);
        cast_tell_state(s->c, CAST_COMPARING, false);
        at += n;
    }
    if (!rc && !s->aborted) {
        const XXH128_hash_t a = XXH3_128bits_digest(f->hash), b = XXH3_128bits_digest(again);
        if (a.low64 != b.low64 || a.high64 != b.high64)
            rc = base_fail(-ESTALE, "an earlier part of the file was changed while it was followed (--follow is only for files to which "
                                    "bytes are appended): not sent; when the file is complete, give the same command again");
    }
    XXH3_freeState(again);
    free(piece);
    return rc;
}

static void complete(struct cast_source *s, uint32_t file, const struct stat *st)
{
    struct cast_entry *e = &s->c->list.entry[file];
    struct cast_line n;
    cast_walk_times(&n, st);
    e->size = (uint64_t)st->st_size;
    e->mode = (uint32_t)st->st_mode & 0777;
    e->seconds = n.seconds;
    e->nanoseconds = n.nanoseconds;
    s->follow.complete = true;
    s->follow.told_ns = 0;
    tell_size(s, e->size);
}

/* Whether a file that is not growing now is complete. Returns 1 if it is, 0 if not, or a negative errno with base_error(). */
static int is_complete(struct cast_source *s, const struct stat *st, bool renamed, int64_t grown)
{
    const struct cast_follow *f = &s->follow;
    const uint32_t limit = s->c->config.head.follow;
    if (st->st_nlink == 0)
        return base_fail(-ENOENT, "was removed while it was followed: not sent; give the same command again when there is a new file");
    /* the file was renamed to another name than SRC without its suffix: for example, because a program has discarded an interrupted
     * download */
    if (renamed && f->unnamed && !has_name(s, st))
        return base_fail(
            -ENOENT,
            "%s was renamed, but not to the name without its suffix: not sent; copy the file under its new name when it is complete",
            f->path);
    if (renamed)
        return 1;
    if (base_now_ns() - grown < (int64_t)limit * WEFT_SECOND)
        return 0;
    return f->unnamed
               ? base_fail(-ETIMEDOUT,
                           "%s has not grown for %u s and does not have its final name: not sent; give the same command again when it "
                           "grows, to send the rest",
                           f->path, limit)
               : 1;
}

static bool same_stat(const struct stat *a, const struct stat *b)
{
    struct cast_line x, y;
    cast_walk_times(&x, a);
    cast_walk_times(&y, b);
    return a->st_size == b->st_size && x.seconds == y.seconds && x.nanoseconds == y.nanoseconds;
}

/* Send the file until it is complete. `from`: all targets have the right bytes before this offset. */
static int follow(struct cast_source *s, uint32_t file, uint64_t from, uint64_t have)
{
    struct cast_follow *f = &s->follow;
    uint64_t at = from;
    int64_t grown = base_now_ns();
    struct stat st, then;
    int rc = 0;
    while (!rc && !cast_send_aborted(s)) {
        if (fstat(f->fd, &st))
            return base_fail(-errno, "%s", base_strerror(errno));
        bool renamed = st.st_nlink && is_renamed(f, &st);
        if (renamed && fstat(f->fd, &st)) /* get the size again: bytes may have been written just before the rename */
            return base_fail(-errno, "%s", base_strerror(errno));
        uint64_t size = (uint64_t)st.st_size;
        if (size < at)
            return base_fail(-ESTALE, "became shorter while it was followed: not sent; give the same command again");
        if (size > at) {
            tell_size(s, size);
            rc = cast_send_content(s, f->fd, file, at, have, size);
            if (rc)
                return base_fail(rc, "%s",
                                 rc == -ESTALE ? "became shorter while it was read: not sent; give the same command again"
                                               : base_strerror(rc));
            bool much = size - at >= CAST_PIECE;
            at = size;
            grown = base_now_ns();
            if (much)
                continue;
        }
        cast_send_flush(s);
        rc = is_complete(s, &st, renamed, grown);
        if (rc == 1) {
            rc = compare_again(s, from, at);
            if (!rc && !fstat(f->fd, &then) && same_stat(&st, &then)) {
                complete(s, file, &st);
                return 0;
            }
            continue;
        }
        cast_tell_state(s->c, CAST_WAITING, false);
        base_sleep_ns(LOOK_NS);
    }
    return rc;
}

static int follow_send(struct cast_source *s, uint32_t file, uint64_t at, uint64_t have)
{
    struct cast_follow *f = &s->follow;
    if (!f->hash && !(f->hash = XXH3_createState()))
        return base_fail(-ENOMEM, "no memory for the checksum of the followed file" BASE_MEMORY_HINT);
    XXH3_128bits_reset(f->hash);
    int rc = follow(s, file, at, have);
    XXH3_freeState(f->hash);
    f->hash = NULL;
    return rc;
}

void cast_follow_file(struct cast_source *s, uint32_t file)
{
    uint64_t at = 0, have = 0;
    if (cast_send_needed(s, file, &at, &have))
        cast_send_ended(s, file, follow_send(s, file, at, have));
}
