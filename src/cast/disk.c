/* SPDX-License-Identifier: MIT
 *
 * The files of a target. Every path below DEST is opened component by component, and no component may be a symbolic link, so nothing is
 * ever written outside DEST. The bytes of a file first go into a temporary file in the same folder, ".weft-cast-HASH.part". When all bytes
 * are on the disk, the temporary file is renamed. After an interrupted cast, the next one compares the temporary file with the source's
 * checksums and keeps the right bytes.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cast/cast.h"

#define NAMING_BYTES (UINT64_C(64) << 20) /* complete files are renamed when they have this many bytes together */
#define CACHE_BYTES  (UINT64_C(16) << 20) /* bytes of the open file that stay in the page cache */

const char *cast_disk_name(const struct cast_disk *d, uint32_t index)
{
    return d->alone && d->c->list.entry[index].parent == CAST_ROOT ? d->alone : d->c->list.entry[index].name;
}

static const char *path_of(const struct cast_disk *d, uint32_t index, char *out, size_t len)
{
    return cast_list_path(&d->c->list, index, out, len);
}

/* DEST can no longer be written: give up all files. */
static void fail_all(struct cast_disk *d, uint32_t index, int error, const char *what)
{
    char path[4096];
    if (d->failed)
        return;
    d->failed = true;
    cast_say(d->c, true, "%s: %s %s: %s; nothing more is written on this host",
             index == CAST_ROOT ? d->dest : path_of(d, index, path, sizeof path), "cannot", what, base_strerror(error));
}

/* Update state.partial. Bytes of a file that an earlier cast has left unfinished count, until a comparison with the source finds a
 * difference. */
static void count_partial(struct cast_disk *d, uint32_t index)
{
    struct cast_file *f = &d->file[index];
    uint64_t now = d->open >= 0 && d->open_index == index && (f->state == CAST_WANTED || f->state == CAST_COMPARE) ? d->at : 0;
    if (f->state == CAST_WANTED && f->have > now)
        now = f->have;
    d->c->state.partial += now - f->counted;
    f->counted = now;
}

void cast_disk_give_up(struct cast_disk *d, uint32_t index, int error, const char *what)
{
    char path[4096];
    struct cast_file *f = &d->file[index];
    if (error == ENOSPC || error == EDQUOT || error == EROFS || error == EIO) {
        fail_all(d, index, error, what);
        return;
    }
    if (f->state == CAST_GIVEN_UP)
        return;
    d->wanted -= f->state == CAST_COMPARE || f->state == CAST_WANTED;
    f->state = CAST_GIVEN_UP;
    d->c->state.failed++;
    count_partial(d, index);
    uint32_t parent = d->c->list.entry[index].parent;
    if (parent == CAST_ROOT ||
        d->file[parent].state != CAST_GIVEN_UP) /* if the folder was given up, the user already has a message about that */
        cast_say(d->c, true, "%s: cannot %s: %s", path_of(d, index, path, sizeof path), what, base_strerror(error));
}

bool cast_disk_refuses(struct cast_disk *d, uint32_t index, const struct stat *there)
{
    if (S_ISREG(there->st_mode) || S_ISLNK(there->st_mode))
        return false;
    if (S_ISDIR(there->st_mode))
        cast_disk_give_up(d, index, EISDIR, "replace the directory of this name (remove it, or copy to another name)");
    else
        cast_disk_give_up(d, index, EEXIST, "replace the device, socket or pipe of this name (remove it, or copy to another name)");
    return true;
}

/* --- folders --- */

static int open_folder(struct cast_disk *d, uint32_t index)
{
    if (index == CAST_ROOT)
        return d->root < 0 ? -ENOENT : fcntl(d->root, F_DUPFD_CLOEXEC, 0);
    const struct cast_entry *e = &d->c->list.entry[index];
    int at = open_folder(d, e->parent);
    if (at < 0)
        return at;
    int fd = openat(at, e->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc = fd < 0 ? -errno : fd;
    close(at);
    return rc;
}

int cast_disk_folder(struct cast_disk *d, uint32_t index)
{
    uint32_t parent = index == CAST_ROOT ? CAST_ROOT : d->c->list.entry[index].parent;
    if (d->folder >= 0 && d->folder_index == parent)
        return d->folder;
    if (d->folder >= 0)
        close(d->folder);
    d->folder = open_folder(d, parent);
    d->folder_index = parent;
    return d->folder;
}

/* Set the mode of a file or folder, without following a symbolic link. */
static int set_mode(int at, const char *name, mode_t mode)
{
    if (fchmodat(at, name, mode, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    if (errno != EOPNOTSUPP && errno != ENOTSUP && errno != EINVAL && errno != ENOSYS)
        return -errno;
    /* older kernels do not have AT_SYMLINK_NOFOLLOW for fchmodat() */
    int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int rc = fd < 0 || fchmod(fd, mode) ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

static void make_folder(struct cast_disk *d, uint32_t index)
{
    struct stat st;
    const char *name = d->c->list.entry[index].name;
    int at = cast_disk_folder(d, index);
    if (at < 0) {
        if (!(d->c->config.head.flags & CAST_DRY_RUN))
            cast_disk_give_up(d, index, at == -ELOOP || at == -ENOTDIR ? ENOTDIR : -at, "open the directory that contains it");
        return;
    }
    int rc = fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
    if (rc == -ENOENT && d->c->config.head.flags & CAST_DRY_RUN)
        return;
    if (rc == -ENOENT)
        rc = mkdirat(at, name, 0700) ? -errno : 0;
    else if (!rc && !S_ISDIR(st.st_mode))
        rc = -ENOTDIR; /* a symbolic link is never followed */
    else if (!rc && (st.st_mode & 0700) != 0700 && !(d->c->config.head.flags & CAST_DRY_RUN))
        rc = set_mode(at, name, (mode_t)((st.st_mode & 07777) | 0700));
    if (rc)
        cast_disk_give_up(d, index, -rc,
                          rc == -ENOTDIR ? "make this directory, because a file or a symbolic link has its name" : "make this directory");
}

/* --- what is needed --- */

static bool same_time(const struct stat *st, const struct cast_entry *e)
{
#if defined(__APPLE__)
    return st->st_mtimespec.tv_sec == e->seconds && (uint32_t)st->st_mtimespec.tv_nsec == e->nanoseconds;
#else
    return st->st_mtim.tv_sec == e->seconds && (uint32_t)st->st_mtim.tv_nsec == e->nanoseconds;
#endif
}

static void file_is_right(struct cast_disk *d, uint32_t index)
{
    struct cast_file *f = &d->file[index];
    d->wanted -= f->state == CAST_COMPARE || f->state == CAST_WANTED;
    f->state = CAST_RIGHT;
    d->c->state.files++;
    d->c->state.bytes += d->c->list.entry[index].size;
    count_partial(d, index);
}

static void compare_file(struct cast_disk *d, uint32_t index)
{
    const struct cast_entry *e = &d->c->list.entry[index];
    struct cast_file *f = &d->file[index];
    char part[CAST_PART_NAME];
    struct stat st;
    int at = cast_disk_folder(d, index);
    d->wanted++;
    f->state = CAST_WANTED;
    if (at < 0) {
        if (!(d->c->config.head.flags & CAST_DRY_RUN))
            cast_disk_give_up(d, index, -at == ELOOP ? ENOTDIR : -at, "open the directory that contains it");
        return;
    }
    const char *name = cast_disk_name(d, index);
    bool there = fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (there && cast_disk_refuses(d, index, &st))
        return;
    const bool follow = d->c->config.head.follow; /* the file may still grow, so checksums at the end decide */
    if (there && S_ISREG(st.st_mode) && (uint64_t)st.st_size == e->size &&
        (d->c->config.head.flags & CAST_CHECKSUM || (follow && same_time(&st, e)))) {
        f->state = CAST_COMPARE;
        f->have = e->size;
        return;
    }
    if (there && S_ISREG(st.st_mode) && (uint64_t)st.st_size == e->size && same_time(&st, e)) {
        int rc = (st.st_mode & 07777) == e->mode || d->c->config.head.flags & CAST_DRY_RUN ? 0 : set_mode(at, name, (mode_t)e->mode);
        if (rc) {
            cast_disk_give_up(d, index, -rc, "set its mode");
            return;
        }
        d->c->state.skipped++;
        file_is_right(d, index);
        return;
    }
    cast_disk_part(name, part);
    if (fstatat(at, part, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
        f->have = (uint64_t)st.st_size < e->size ? (uint64_t)st.st_size : e->size;
    count_partial(d, index);
}

int cast_disk_compare(struct cast_disk *d)
{
    const struct cast_list *l = &d->c->list;
    d->file = calloc(l->count + 1, sizeof *d->file);
    int rc = d->file ? cast_dest_open(d) : -ENOMEM;
    if (rc) {
        fail_all(d, CAST_ROOT, rc, "make or open this directory");
        return rc;
    }
    for (uint32_t i = 0; i < l->count; i++)
        if (l->entry[i].type == CAST_FOLDER)
            make_folder(d, i);
    for (uint32_t i = 0; i < l->count && !d->failed; i++) {
        if (l->entry[i].type == CAST_FILE)
            compare_file(d, i);
        cast_tell_state(d->c, CAST_COMPARING, false);
    }
    return d->failed ? -EIO : 0;
}

void cast_disk_verify(struct cast_disk *d)
{
    d->verifying = true;
    for (uint32_t i = 0; i < d->c->list.count; i++)
        if (d->c->list.entry[i].type == CAST_FOLDER && d->file[i].state != CAST_GIVEN_UP)
            make_folder(d, i); /* the folder may have its final mode already, which may forbid writing: allow writing again */
    for (uint32_t i = 0; i < d->c->list.count; i++) {
        struct cast_file *f = &d->file[i];
        if (f->state != CAST_RIGHT)
            continue;
        *f = (struct cast_file){.have = d->c->list.entry[i].size, .state = CAST_COMPARE};
        d->wanted++;
        d->c->state.files--;
        d->c->state.bytes -= d->c->list.entry[i].size;
    }
}

/* --- the open file --- */

static void close_open(struct cast_disk *d)
{
    if (d->open < 0)
        return;
    struct cast_file *f = &d->file[d->open_index];
    if (f->state == CAST_WANTED) {
        f->have = d->at > f->have ? d->at : f->have;
        f->verified = 0; /* other programs may write to a closed file, so the bytes are compared when the file is opened again */
        if (d->open_cut && ftruncate(d->open, (off_t)d->at))
            f->have = 0;
    }
    close(d->open);
    d->open = -1;
    count_partial(d, d->open_index);
}

static bool open_file(struct cast_disk *d, uint32_t index)
{
    struct cast_file *f = &d->file[index];
    if (d->c->list.entry[index].type != CAST_FILE || (f->state != CAST_WANTED && f->state != CAST_COMPARE) || d->failed)
        return false;
    if (d->open >= 0 && d->open_index == index)
        return true;
    close_open(d);
    int at = cast_disk_folder(d, index), fd = at;
    bool new = false;
    if (at >= 0 && f->state == CAST_WANTED)
        fd = cast_part_open(at, cast_disk_name(d, index), &new);
    else if (at >= 0 && (fd = openat(at, cast_disk_name(d, index), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) < 0)
        fd = -errno;
    if (fd < 0) {
        cast_disk_give_up(d, index, -fd,
                          fd == -EBUSY
                              ? "write the file, which another weft cast is writing (if it is this one, for another node of this host, "
                                "put {node} into DEST; else run this command again later)"
                              : "write");
        return false;
    }
    if (new)
        f->have = f->verified = 0;
#if defined(POSIX_FADV_DONTNEED)
    if (f->have)                                      /* after a disk error, cached pages may differ from the disk */
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* drop the cached pages, so that the bytes on the disk are compared */
#endif
    d->open = fd;
    d->open_index = index;
    d->open_cut = new;
    d->written = 0;
    d->at = d->flushed = f->verified;
    return true;
}

static bool read_piece(int fd, uint8_t *to, uint64_t bytes, uint64_t at)
{
    while (bytes) {
        ssize_t n = pread(fd, to, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        to += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return true;
}

/* Stop comparing an existing file, because it is wrong. The target needs all bytes of the file. */
static void compare_no_more(struct cast_disk *d, uint32_t index)
{
    close(d->open);
    d->open = -1;
    d->file[index] = (struct cast_file){.state = CAST_WANTED, .counted = d->file[index].counted};
    d->again = d->c->config.head.follow != 0;
}

static void check_hole(struct cast_disk *d, const struct cast_record *r)
{
    static const uint8_t zeros[4096];
    uint64_t end = r->offset + r->bytes;
    if (r->offset != d->at || end > d->file[r->file].have)
        return;
    while (d->at < end) {
        uint64_t n = end - d->at < CAST_PIECE ? end - d->at : CAST_PIECE, same = 0;
        bool read = read_piece(d->open, d->piece, n, d->at);
        while (read && same < n && memcmp(d->piece + same, zeros, n - same < sizeof zeros ? n - same : sizeof zeros) == 0)
            same += n - same < sizeof zeros ? n - same : sizeof zeros;
        if (same < n) {
            compare_no_more(d, r->file);
            return;
        }
        d->at += n;
    }
}

static void check_piece(struct cast_disk *d, const struct cast_record *r)
{
    struct cast_file *f = &d->file[r->file];
    uint64_t hash[2] = {0, 0};
    if (r->offset != d->at || r->offset + r->bytes > f->have)
        return;
    bool same = read_piece(d->open, d->piece, r->bytes, r->offset);
    if (same) {
        cast_hash(hash, CAST_DATA, r->file, r->offset, d->piece, r->bytes);
        same = hash[0] == r->hash[0] && hash[1] == r->hash[1];
    }
    if (same) {
        d->at += r->bytes;
        return;
    }
    if (f->state == CAST_COMPARE) {
        compare_no_more(d, r->file);
        return;
    }
    f->have = r->offset; /* the bytes from here on are sent in the next round */
    d->again = d->c->config.head.follow != 0;
}

/* Start writeback early, and keep few pages in memory. */
static void drop_cache(struct cast_disk *d)
{
#if defined(__linux__)
    if (d->at - d->flushed < CACHE_BYTES)
        return;
    uint64_t half = CACHE_BYTES / 2, from = d->flushed > half ? d->flushed - half : 0;
    sync_file_range(d->open, (off_t)d->flushed, (off_t)(d->at - d->flushed), SYNC_FILE_RANGE_WRITE);
    posix_fadvise(d->open, 0, (off_t)from, POSIX_FADV_DONTNEED);
    d->flushed = d->at;
#else
    (void)d;
#endif
}

/* Before the first write: truncate the file after its right bytes. */
static bool cut(struct cast_disk *d)
{
    if (!d->open_cut && ftruncate(d->open, (off_t)d->at)) {
        cast_disk_give_up(d, d->open_index, errno, "write");
        return false;
    }
    d->open_cut = true;
    d->file[d->open_index].have = d->at;
    return true;
}

static void write_piece(struct cast_disk *d, const struct cast_record *r, const uint8_t *data)
{
    uint64_t hash[2] = {r->hash[0], r->hash[1]}, left = r->bytes, size = cast_size_most(d->c, r->file);
    if (!d->verified)
        cast_hash(hash, CAST_DATA, r->file, r->offset, data, r->bytes);
    d->c->state.sent += r->bytes;
    if (r->offset != d->at || r->offset + r->bytes > size || hash[0] != r->hash[0] || hash[1] != r->hash[1]) {
        d->c->state.discarded += r->bytes;
        return;
    }
    if (!cut(d))
        return;
    while (left) {
        ssize_t n = pwrite(d->open, data, left, (off_t)d->at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            cast_disk_give_up(d, r->file, n < 0 ? errno : EIO, "write");
            return;
        }
        data += n;
        d->at += (uint64_t)n;
        left -= (uint64_t)n;
    }
    d->written = d->at;
    drop_cache(d);
}

/* --- complete files --- */

static int set_times(int fd, const struct cast_entry *e)
{
    const struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = e->seconds, .tv_nsec = (long)e->nanoseconds}};
    return futimens(fd, t);
}

/* Set the mode and time of a right file, if they differ. This fails if another user owns the file. */
static int set_mode_and_time(int fd, const struct cast_entry *e)
{
    struct stat st;
    if (fstat(fd, &st) || ((st.st_mode & 07777) != e->mode && fchmod(fd, (mode_t)e->mode)) || (!same_time(&st, e) && set_times(fd, e)))
        return -errno;
    return 0;
}

static void give_names(struct cast_disk *d)
{
    struct stat first = {.st_dev = 0}, st;
#if defined(__linux__)
    bool together = d->naming_count > 1 && fstat(d->naming[0].fd, &first) == 0 && syncfs(d->naming[0].fd) == 0;
#else
    bool together = false;
#endif
    for (uint32_t i = 0; i < d->naming_count; i++) {
        uint32_t index = d->naming[i].index;
        char part[CAST_PART_NAME];
        const char *name = cast_disk_name(d, index);
        int fd = d->naming[i].fd;
        bool synced = together && fstat(fd, &st) == 0 && st.st_dev == first.st_dev; /* syncfs() has not synced another file system below
                                                                                       DEST */
        int rc = !synced && fsync(fd) ? -errno : 0;
        int at = rc ? rc : cast_disk_folder(d, index);
        cast_disk_part(name, part);
        if (at >= 0 && !cast_part_is(at, part, fd))
            rc = -ESTALE; /* another program has put a different file in place of this temporary file */
        else if (at >= 0)
            rc = renameat(at, part, at, name) ? -errno : 0;
        else
            rc = at;
        close(fd);
        d->renamed = d->renamed || !rc;
        if (rc)
            cast_disk_give_up(d, index, -rc, "give the complete file its name");
        else
            file_is_right(d, index);
    }
    d->naming_count = 0;
    d->naming_bytes = 0;
}

/* Called when the source cannot send the file, and has printed the reason. The received bytes stay for the next cast. If there are none,
 * the temporary file is removed. */
static void end_unsent(struct cast_disk *d, uint32_t index)
{
    char part[CAST_PART_NAME];
    struct cast_file *f = &d->file[index];
    int at = cast_disk_folder(d, index);
    struct stat st;
    cast_disk_part(cast_disk_name(d, index), part);
    if (f->state == CAST_WANTED && at >= 0 && fstat(d->open, &st) == 0 && st.st_size == 0 && cast_part_is(at, part, d->open))
        unlinkat(at, part, 0);
    d->wanted--;
    f->state = CAST_GIVEN_UP;
    d->c->state.failed++;
    d->c->state.unsent++;
    close(d->open);
    d->open = -1;
}

static void end_file(struct cast_disk *d, const struct cast_record *r)
{
    const struct cast_entry *e = &d->c->list.entry[r->file];
    struct cast_file *f = &d->file[r->file];
    if (r->offset) {
        end_unsent(d, r->file);
        return;
    }
    if (d->at != e->size) {
        if (f->state == CAST_COMPARE && d->at == f->have) /* the file was followed, and has grown */
            compare_no_more(d, r->file);
        else
            close_open(d);
        return;
    }
    if (f->state == CAST_COMPARE) {
        int rc = set_mode_and_time(d->open, e);
        close(d->open);
        d->open = -1;
        if (rc) {
            cast_disk_give_up(d, r->file, -rc, "set its mode and time");
        } else {
            d->c->state.skipped += !d->verifying;
            file_is_right(d, r->file);
        }
        return;
    }
    bool whole = d->open_cut && d->written == e->size; /* the file ends with the last written byte */
    if ((!whole && ftruncate(d->open, (off_t)e->size)) || fchmod(d->open, (mode_t)e->mode) || set_times(d->open, e)) {
        cast_disk_give_up(d, r->file, errno, "set its size, mode and time");
        close_open(d);
        return;
    }
    f->have = f->verified = e->size;
    d->naming[d->naming_count].index = r->file;
    d->naming[d->naming_count++].fd = d->open;
    d->naming_bytes += e->size;
    d->open = -1;
    if (d->naming_count == d->naming_max || d->naming_bytes > NAMING_BYTES)
        give_names(d);
}

void cast_disk_record(struct cast_disk *d, const struct cast_record *r, const uint8_t *payload)
{
    if (r->file >= d->c->list.count || !d->file || !open_file(d, r->file)) {
        d->c->state.sent += r->type == CAST_DATA ? r->bytes : 0;
        return;
    }
    /* true: this target only compares checksums. The source may send bytes all the same, because another target needs them */
    bool compare = d->file[r->file].state == CAST_COMPARE;
    switch (r->type) {
    case CAST_DATA:
        if (!compare) {
            write_piece(d, r, payload);
            break;
        }
        d->c->state.sent += r->bytes;
        d->c->state.discarded += r->bytes;
        check_piece(d, r);
        break;
    case CAST_CHECK: check_piece(d, r); break;
    case CAST_FILE_END: end_file(d, r); break;
    default: /* CAST_HOLE */
        if (compare)
            check_hole(d, r);
        else if (r->offset == d->at && r->offset + r->bytes <= cast_size_most(d->c, r->file) && cut(d))
            d->at += r->bytes;
    }
    count_partial(d, r->file);
}

void cast_disk_settle(struct cast_disk *d)
{
    close_open(d);
    give_names(d);
}

int cast_disk_open(struct cast_disk *d, struct cast *c)
{
    struct rlimit files;
    *d = (struct cast_disk){.c = c, .root = -1, .folder = -1, .open = -1, .naming_max = 32};
    /* use a quarter of the descriptors for files to be renamed: the others are for connections and folders */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 4 > d->naming_max)
        d->naming_max = files.rlim_cur / 4 < CAST_NAMING ? (uint32_t)(files.rlim_cur / 4) : CAST_NAMING;
    d->piece = malloc(CAST_PIECE);
    return d->piece ? 0 : base_fail(-ENOMEM, "no memory for the buffer to compare files" BASE_MEMORY_HINT);
}

void cast_disk_close(struct cast_disk *d)
{
    for (uint32_t i = 0; i < d->naming_count; i++)
        close(d->naming[i].fd);
    if (d->open >= 0)
        close(d->open);
    if (d->folder >= 0)
        close(d->folder);
    if (d->root >= 0)
        close(d->root);
    free(d->file);
    free(d->piece);
}
