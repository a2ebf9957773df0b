/* SPDX-License-Identifier: MIT
 *
 * The source: sends the list and the files, in blocks.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cast/cast.h"
#include "cast/source.h"

#define LOOK_NS (20 * WEFT_MS) /* how often to check whether a target has died */

/* --- blocks --- */

bool cast_send_aborted(struct cast_source *s)
{
    struct cast *c = s->c;
    s->aborted = s->aborted || s->broken || s->relay.broken || c->quit || c->stopped() || !weft_alive(c->w, 0);
    for (uint32_t i = 0; i < s->count && !s->aborted; i++)
        s->aborted = !weft_alive(c->w, s->chain[i]);
    return s->aborted;
}

static void pace(struct cast_source *s, uint64_t bytes)
{
    uint64_t rate = s->c->config.head.bytes_per_second;
    if (!rate)
        return;
    int64_t now = base_now_ns();
    s->next_ns = s->next_ns > now ? s->next_ns : now;
    s->next_ns += (int64_t)((double)bytes / (double)rate * 1e9);
    while (!cast_send_aborted(s) && (now = base_now_ns()) < s->next_ns) {
        cast_tell_state(s->c, CAST_WRITING, false);
        base_sleep_ns(s->next_ns - now < LOOK_NS ? s->next_ns - now : LOOK_NS);
    }
}

static void wait_slot(struct cast_source *s, uint64_t number)
{
    if (number < CAST_SLOTS)
        return;
    while (!s->aborted && !cast_relay_done(&s->relay, number - CAST_SLOTS)) {
        cast_tell_state(s->c, CAST_WAITING, false);
        cast_relay_wait(&s->relay, number - CAST_SLOTS, LOOK_NS);
        cast_send_aborted(s);
    }
    s->relay.given = number - CAST_SLOTS + 1;
}

void cast_send_flush(struct cast_source *s)
{
    struct cast *c = s->c;
    if (!s->used || cast_send_aborted(s))
        return;
    struct cast_block *b = cast_slot(c, s->number);
    b->round = s->round;
    b->number = s->number;
    b->bytes = s->used;
    cast_block_seal(b);
    pace(s, s->used);
    if (s->aborted)
        return;
    cast_fill(c, s->round, s->number);
    s->number++;
    s->used = 0;
    wait_slot(s, s->number);
}

/* Reserve space in the current block for a record with a payload of at most `bytes`. Returns NULL if the round has been aborted. */
static uint8_t *reserve(struct cast_source *s, uint64_t bytes)
{
    const uint64_t room = CAST_BLOCK - sizeof(struct cast_block);
    if (s->used + sizeof(struct cast_record) + base_round_up(bytes, 8) > room)
        cast_send_flush(s);
    return s->aborted ? NULL : (uint8_t *)(cast_slot(s->c, s->number) + 1) + s->used;
}

static void add_record(struct cast_source *s, uint8_t *at, const struct cast_record *r, uint64_t payload)
{
    memcpy(at, r, sizeof *r);
    s->used += (uint32_t)(sizeof *r + base_round_up(payload, 8));
}

void cast_send_record(struct cast_source *s, enum cast_type type, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct cast_record r = {.type = (uint32_t)type, .file = file, .offset = offset, .bytes = bytes};
    uint8_t *at = reserve(s, 0);
    cast_record_seal(&r, NULL);
    if (at)
        add_record(s, at, &r, 0);
}

void cast_send_list(struct cast_source *s)
{
    const struct cast_list *l = &s->c->list;
    for (uint32_t i = 0; i < l->count && !s->aborted; i++) {
        const struct cast_entry *e = &l->entry[i];
        struct cast_line n = {e->type, e->parent, e->mode, e->target, e->size, e->seconds, e->nanoseconds, 0, 0, 0};
        n.name_bytes = (uint32_t)strlen(e->name);
        n.link_bytes = (uint32_t)strlen(e->link);
        struct cast_record r = {.type = CAST_ENTRY, .file = i, .bytes = sizeof n + n.name_bytes + n.link_bytes};
        uint8_t *at = reserve(s, r.bytes);
        if (!at)
            return;
        uint8_t *payload = at + sizeof r;
        memcpy(payload, &n, sizeof n);
        memcpy(payload + sizeof n, e->name, n.name_bytes);
        memcpy(payload + sizeof n + n.name_bytes, e->link, n.link_bytes);
        cast_record_seal(&r, payload);
        add_record(s, at, &r, r.bytes);
    }
    cast_send_record(s, CAST_LIST_END, l->count, l->mode, 0);
    cast_send_flush(s);
}

/* --- files --- */

/* What the targets of the chain need of a file. *verified: all targets have the right bytes before this offset. *have: all targets have
 * bytes before this offset, but these must be compared. Returns false if no target needs the file. */
bool cast_send_needed(struct cast_source *s, uint32_t file, uint64_t *verified, uint64_t *have)
{
    bool any = false;
    pthread_mutex_lock(&s->c->lock);
    for (uint32_t i = 0; i < s->count && !any; i++) {
        const struct receiver *t = &s->receiver[s->chain[i]];
        any = !t->failed && t->need[file / 8] >> file % 8 & 1;
    }
    *verified = s->least[file].verified;
    *have = s->least[file].have;
    pthread_mutex_unlock(&s->c->lock);
    return any;
}

static bool unchanged(int fd, const struct cast_entry *e)
{
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != e->size)
        return false;
#if defined(__APPLE__)
    return st.st_mtimespec.tv_sec == e->seconds && (uint32_t)st.st_mtimespec.tv_nsec == e->nanoseconds;
#else
    return st.st_mtim.tv_sec == e->seconds && (uint32_t)st.st_mtim.tv_nsec == e->nanoseconds;
#endif
}

/* Returns where the data at offset `at` ends. If it returns `at`, there is a hole up to `*hole_end`. */
static uint64_t data_end(int fd, uint64_t at, uint64_t size, uint64_t *hole_end)
{
#if defined(SEEK_HOLE) && defined(SEEK_DATA)
    off_t data = lseek(fd, (off_t)at, SEEK_DATA);
    if (data < 0 && errno == ENXIO)
        data = (off_t)size;
    *hole_end = data > (off_t)at ? (uint64_t)data : at;
    *hole_end = *hole_end < size ? *hole_end : size;
    if (data > (off_t)at)
        return at;
    off_t hole = lseek(fd, (off_t)at, SEEK_HOLE);
    return hole > (off_t)at && (uint64_t)hole < size ? (uint64_t)hole : size;
#else
    (void)fd, (void)at, (void)hole_end;
    return size;
#endif
}

int cast_read_all(int fd, uint8_t *to, uint64_t bytes, uint64_t at)
{
    while (bytes) {
        ssize_t n = pread(fd, to, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ESTALE; /* the file has become shorter */
        to += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

static int send_piece(struct cast_source *s, int fd, uint32_t file, uint64_t at, uint64_t bytes, bool check)
{
    struct cast_record r = {.type = check ? CAST_CHECK : CAST_DATA, .file = file, .offset = at, .bytes = bytes};
    uint8_t *to = reserve(s, bytes);
    if (!to)
        return 0;
    int rc = cast_read_all(fd, to + sizeof r, bytes, at);
    if (rc)
        return rc;
    cast_hash(r.hash, CAST_DATA, file, at, to + sizeof r, bytes);
    if (s->follow.hash)
        XXH3_128bits_update(s->follow.hash, to + sizeof r, bytes);
    add_record(s, to, &r, check ? 0 : bytes);
    s->c->state.sent += check ? 0 : bytes;
    cast_tell_state(s->c, CAST_WRITING, false);
    return 0;
}

int cast_send_content(struct cast_source *s, int fd, uint32_t file, uint64_t at, uint64_t have, uint64_t size)
{
    uint64_t end = at;
    int rc = 0;
    while (at < size && !rc && !cast_send_aborted(s)) {
        if (at < have) { /* the targets have bytes here; a hole is compared as zeros */
            uint64_t most = have < size ? have : size, n = most - at < CAST_PIECE ? most - at : CAST_PIECE;
            rc = send_piece(s, fd, file, at, n, true);
            at = end = at + n;
            continue;
        }
        uint64_t hole = at;
        if (s->follow.hash) /* read holes, too, because the final checksum must detect a hole that was filled later */
            end = size;
        else if (at >= end)
            end = data_end(fd, at, size, &hole);
        if (hole > at) {
            cast_send_record(s, CAST_HOLE, file, at, hole - at);
            at = end = hole;
            continue;
        }
        uint64_t n = end - at < CAST_PIECE ? end - at : CAST_PIECE;
        rc = send_piece(s, fd, file, at, n, false);
        at += n;
    }
    return rc;
}

static void send_size(struct cast_source *s, uint32_t file)
{
    const struct cast_entry *e = &s->c->list.entry[file];
    const struct cast_line n = {.type = e->type, .mode = e->mode, .size = e->size, .seconds = e->seconds, .nanoseconds = e->nanoseconds};
    struct cast_record r = {.type = CAST_SIZE, .file = file, .bytes = sizeof n};
    uint8_t *at = reserve(s, sizeof n);
    if (!at)
        return;
    memcpy(at + sizeof r, &n, sizeof n);
    cast_record_seal(&r, at + sizeof r);
    add_record(s, at, &r, sizeof n);
}

#define NO_SIZE_MAX UINT64_C(65536) /* the largest page size: files of /sys report one page as their size */

/* Send a file that is not followed. Returns 0, or a negative errno with base_error(). */
static int send_still_file(struct cast_source *s, int fd, uint32_t file, uint64_t at, uint64_t have)
{
    const struct cast_entry *e = &s->c->list.entry[file];
    int rc = fd < 0 ? fd : unchanged(fd, e) ? 0 : -ESTALE;
    if (!rc && e->size <= NO_SIZE_MAX && !base_size_is_true(fd, e->size) && unchanged(fd, e))
        return base_fail(-EINVAL, "its size is unknown, as for files of /proc: not sent; copy it to another file first");
    if (!rc)
        rc = cast_send_content(s, fd, file, at, have, e->size);
    if (!rc && !s->aborted && !unchanged(fd, e))
        rc = -ESTALE;
    return rc ? base_fail(rc, "%s",
                          rc == -ESTALE ? "was changed while it was read: not sent; give the same command again" : base_strerror(rc))
              : 0;
}

void cast_send_ended(struct cast_source *s, uint32_t file, int rc)
{
    char path[2 * 4096];
    if (rc) {
        s->failed++;
        cast_say_unsent(s->c, cast_walk_path(s->c, file, path, sizeof path), base_error());
    } else if (s->follow.fd >= 0) {
        send_size(s, file);
    }
    cast_send_record(s, CAST_FILE_END, file, (uint64_t)-base_status_out(rc), 0);
}

void cast_send_file(struct cast_source *s, uint32_t file)
{
    uint64_t at = 0, have = 0;
    if (!cast_send_needed(s, file, &at, &have))
        return;
    bool follow = s->follow.fd >= 0;
    int fd = follow ? s->follow.fd : cast_walk_open(s->c, file);
    int rc = send_still_file(s, fd, file, at, have);
    if (fd >= 0 && !follow)
        close(fd);
    cast_send_ended(s, file, rc);
}
