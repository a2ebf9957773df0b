/* SPDX-License-Identifier: MIT
 *
 * The source: leads the rounds, and sends the list and the files. One thread fills blocks, and another one puts them to the first target
 * (chain.c). Messages of targets change what the source knows of them.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cast/cast.h"

#define LOOK_NS    (20 * WEFT_MS) /* between two looks whether a target has died */
#define STALLS_MAX 3u             /* rounds that brought nothing, until a target is given up */

struct receiver {
    bool chosen, failed, listed;
    uint32_t stage; /* that it has reached in this round: 1 to 3, as `a` of CAST_READY tells; 0: none */
    uint64_t needed;
    uint8_t *need; /* a bit for each entry of the list: it needs that file */
};
struct cast_source {
    struct cast *c;
    struct receiver *receiver; /* [size] */
    struct {
        uint64_t have, verified;
    } * least; /* [list.count]: the least that a target of this round has of the file that it needs; UINT64_MAX: none needs it */
    uint32_t round, chain[WEFT_MAX_NODES], count;
    bool broken;     /* a target has got a damaged block in this round */
    uint64_t failed; /* files that could not be read or sent */
    uint64_t targets_failed;
    /* The block that is being filled. */
    uint64_t number;
    uint32_t used;
    struct cast_relay relay;
    bool aborted;
    int64_t next_ns; /* --bwlimit: when the next block may be sent */
};

int cast_source_open(struct cast *c)
{
    uint32_t size = c->config.head.size;
    struct cast_source *s = calloc(1, sizeof *s);
    if (s)
        s->receiver = calloc(size, sizeof *s->receiver);
    if (!s || !s->receiver) {
        free(s);
        return base_fail(-ENOMEM, "no memory for %u nodes", size);
    }
    s->c = c;
    for (uint32_t i = 0; i < size; i++)
        s->receiver[i].chosen = cast_is_target(c, i);
    c->source = s;
    return 0;
}

void cast_source_close(struct cast *c)
{
    struct cast_source *s = c->source;
    if (!s)
        return;
    for (uint32_t i = 0; i < c->config.head.size; i++)
        free(s->receiver[i].need);
    free(s->receiver);
    free(s->least);
    free(s);
    c->source = NULL;
}

/* --- messages --- */

static void take_needs(struct cast_source *s, struct receiver *t, const void *payload, size_t bytes)
{
    const struct cast_list *l = &s->c->list;
    for (size_t at = 0; at < bytes && t->need; at += sizeof(struct cast_need)) {
        struct cast_need n;
        memcpy(&n, (const uint8_t *)payload + at, sizeof n);
        if (n.file < l->count && l->entry[n.file].type == CAST_FILE && n.have <= l->entry[n.file].size && n.verified <= n.have) {
            t->need[n.file / 8] |= (uint8_t)(1u << n.file % 8);
            s->least[n.file].have = n.have < s->least[n.file].have ? n.have : s->least[n.file].have;
            s->least[n.file].verified = n.verified < s->least[n.file].verified ? n.verified : s->least[n.file].verified;
        }
    }
}

void cast_source_word(struct cast *c, uint32_t from, const struct cast_word *w, const void *payload, size_t bytes)
{
    struct cast_source *s = c->source;
    struct receiver *t = &s->receiver[from];
    pthread_mutex_lock(&c->lock);
    if (!t->chosen || (w->round != s->round && w->kind != CAST_FAILED)) {
        /* of a former round */
    } else if (w->kind == CAST_NEED) {
        take_needs(s, t, payload, bytes);
    } else if (w->kind == CAST_READY) {
        t->stage = (uint32_t)w->a + 1;
        t->needed = w->b;
    } else if (w->kind == CAST_BROKEN) {
        s->broken = true;
    } else {
        t->failed = true;
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* Whether this round must be given up: a node of the chain is gone, a block was damaged, or the cast is to end. */
static bool aborted(struct cast_source *s)
{
    struct cast *c = s->c;
    s->aborted = s->aborted || s->broken || c->quit || c->stopped() || !weft_alive(c->w, 0);
    for (uint32_t i = 0; i < s->count && !s->aborted; i++)
        s->aborted = !weft_alive(c->w, s->chain[i]);
    return s->aborted;
}

/* Wait until all living targets have reached a stage of this round. `chain`: only those of the chain. */
static bool wait_stage(struct cast_source *s, uint32_t stage, bool chain)
{
    struct cast *c = s->c;
    for (;;) {
        uint32_t missing = 0;
        pthread_mutex_lock(&c->lock);
        for (uint32_t i = 0; i < c->config.head.size; i++) {
            const struct receiver *t = &s->receiver[i];
            bool asked = t->chosen && weft_alive(c->w, i) && !(chain && t->failed);
            missing += asked && t->stage < stage;
        }
        if (missing) {
            cast_wait(&c->changed, &c->lock, LOOK_NS);
        }
        pthread_mutex_unlock(&c->lock);
        if (aborted(s))
            return false;
        if (!missing)
            return true;
    }
}

/* --- blocks --- */

static void pace(struct cast_source *s, uint64_t bytes)
{
    uint64_t rate = s->c->config.head.bytes_per_second;
    if (!rate)
        return;
    int64_t now = base_now_ns();
    s->next_ns = s->next_ns > now ? s->next_ns : now;
    s->next_ns += (int64_t)((double)bytes / (double)rate * 1e9);
    while (!aborted(s) && (now = base_now_ns()) < s->next_ns) {
        cast_tell_state(s->c, CAST_WRITING, false);
        base_sleep_ns(s->next_ns - now < LOOK_NS ? s->next_ns - now : LOOK_NS);
    }
}

/* Wait until the slot of the block `number` may be filled. */
static void wait_slot(struct cast_source *s, uint64_t number)
{
    int rc = 0;
    if (number < CAST_SLOTS)
        return;
    while (!s->aborted && !cast_relay_done(&s->relay, number - CAST_SLOTS, &rc)) {
        cast_tell_state(s->c, CAST_WAITING, false);
        cast_relay_wait(&s->relay, number - CAST_SLOTS, LOOK_NS);
        aborted(s);
    }
    s->relay.given = number - CAST_SLOTS + 1;
    s->aborted = s->aborted || rc != 0 || s->relay.damaged;
}

static void flush(struct cast_source *s)
{
    struct cast *c = s->c;
    if (!s->used || aborted(s))
        return;
    struct cast_block *b = cast_slot(c, s->number);
    b->round = s->round;
    b->number = s->number;
    b->bytes = s->used;
    cast_block_seal(b);
    pace(s, s->used);
    if (s->aborted)
        return;
    cast_fill(c, s->round);
    s->number++;
    s->used = 0;
    wait_slot(s, s->number);
}

/* Room for a record with a payload of at most `bytes`. NULL: the round is given up. */
static uint8_t *reserve(struct cast_source *s, uint64_t bytes)
{
    const uint64_t room = CAST_BLOCK - sizeof(struct cast_block);
    if (s->used + sizeof(struct cast_record) + base_round_up(bytes, 8) > room)
        flush(s);
    return s->aborted ? NULL : (uint8_t *)(cast_slot(s->c, s->number) + 1) + s->used;
}

static void add_record(struct cast_source *s, uint8_t *at, const struct cast_record *r, uint64_t payload)
{
    memcpy(at, r, sizeof *r);
    s->used += (uint32_t)(sizeof *r + base_round_up(payload, 8));
}

static void send_record(struct cast_source *s, enum cast_type type, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct cast_record r = {.type = (uint32_t)type, .file = file, .offset = offset, .bytes = bytes};
    uint8_t *at = reserve(s, 0);
    cast_record_seal(&r, NULL);
    if (at)
        add_record(s, at, &r, 0);
}

static void send_list(struct cast_source *s)
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
    send_record(s, CAST_LIST_END, l->count, l->mode, 0);
    flush(s);
}

/* --- files --- */

/* What the targets of the chain need of a file: from where on; up to where all that need it have bytes. False: nobody needs it. */
static bool needed(struct cast_source *s, uint32_t file, uint64_t *verified, uint64_t *have)
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

/* Where the data at `at` ends; `at` itself: a hole begins there, which ends at `*hole_end`. */
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

static int read_all(int fd, uint8_t *to, uint64_t bytes, uint64_t at)
{
    while (bytes) {
        ssize_t n = pread(fd, to, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ESTALE; /* it has become shorter */
        to += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* Send a piece of the file, or only its checksum. */
static int send_piece(struct cast_source *s, int fd, uint32_t file, uint64_t at, uint64_t bytes, bool check)
{
    struct cast_record r = {.type = check ? CAST_CHECK : CAST_DATA, .file = file, .offset = at, .bytes = bytes};
    uint8_t *to = reserve(s, bytes);
    if (!to)
        return 0;
    int rc = read_all(fd, to + sizeof r, bytes, at);
    if (rc)
        return rc;
    cast_hash(r.hash, CAST_DATA, file, at, to + sizeof r, bytes);
    add_record(s, to, &r, check ? 0 : bytes);
    s->c->state.sent += check ? 0 : bytes;
    cast_tell_state(s->c, CAST_WRITING, false);
    return 0;
}

static int send_content(struct cast_source *s, int fd, uint32_t file, uint64_t at, uint64_t have)
{
    uint64_t size = s->c->list.entry[file].size, end = at;
    int rc = 0;
    while (at < size && !rc && !aborted(s)) {
        if (at < have) { /* holes are compared as zeros */
            uint64_t n = have - at < CAST_PIECE ? have - at : CAST_PIECE;
            rc = send_piece(s, fd, file, at, n, true);
            at = end = at + n;
            continue;
        }
        uint64_t hole = at;
        if (at >= end)
            end = data_end(fd, at, size, &hole);
        if (hole > at) {
            send_record(s, CAST_HOLE, file, at, hole - at);
            at = end = hole;
            continue;
        }
        uint64_t n = end - at < CAST_PIECE ? end - at : CAST_PIECE;
        rc = send_piece(s, fd, file, at, n, false);
        at += n;
    }
    return rc;
}

static void send_file(struct cast_source *s, uint32_t file)
{
    uint64_t at = 0, have = 0;
    char path[4096];
    if (!needed(s, file, &at, &have))
        return;
    const struct cast_entry *e = &s->c->list.entry[file];
    int fd = cast_walk_open(s->c, file), rc = fd < 0 ? fd : 0;
    if (!rc && !unchanged(fd, e))
        rc = -ESTALE;
    if (!rc)
        rc = send_content(s, fd, file, at, have);
    if (!rc && !s->aborted && !unchanged(fd, e))
        rc = -ESTALE;
    if (fd >= 0)
        close(fd);
    if (rc) {
        s->failed++;
        cast_say(s->c, true, "%s: %s", cast_list_path(&s->c->list, file, path, sizeof path),
                 rc == -ESTALE ? "has changed while it was read: not sent" : base_strerror(rc));
    }
    send_record(s, CAST_FILE_END, file, (uint64_t)-rc, 0);
}

/* --- rounds --- */

static int choose_chain(struct cast_source *s, bool *list)
{
    struct cast *c = s->c;
    const size_t count = (size_t)c->list.count + 1;
    pthread_mutex_lock(&c->lock);
    int rc = s->least || (s->least = malloc(count * sizeof *s->least)) ? 0 : base_fail(-ENOMEM, "no memory for %u files", c->list.count);
    if (!rc)
        memset(s->least, 0xff, count * sizeof *s->least);
    s->count = 0;
    s->broken = s->aborted = false;
    s->number = s->used = 0;
    *list = false;
    s->round++;
    for (uint32_t i = 0; i < c->config.head.size; i++) {
        struct receiver *t = &s->receiver[i];
        t->stage = 0;
        if (!t->chosen || t->failed || !weft_alive(c->w, i))
            continue;
        s->chain[s->count++] = i;
        *list = *list || !t->listed;
        if (!t->need && !(t->need = malloc(count / 8 + 1)))
            rc = base_fail(-ENOMEM, "no memory for the state of %u files", c->list.count);
        else
            memset(t->need, 0, count / 8 + 1);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* One round. True: it was completed. */
static bool run_round(struct cast_source *s, bool list, bool verify)
{
    struct cast *c = s->c;
    for (uint32_t i = 0; i < c->config.head.size; i++)
        if (s->receiver[i].chosen && weft_alive(c->w, i))
            cast_send(c, i, CAST_BEGIN, s->round, list, verify, s->chain, s->count * sizeof *s->chain);
    bool going = wait_stage(s, 1, false);
    if (going && list)
        send_list(s);
    going = going && wait_stage(s, 2, true);
    for (uint32_t i = 0; i < s->count; i++)
        s->receiver[s->chain[i]].listed = s->receiver[s->chain[i]].listed || s->receiver[s->chain[i]].stage >= 2;
    if (going && !(c->config.head.flags & CAST_DRY_RUN))
        for (uint32_t i = 0; i < c->list.count && !aborted(s); i++)
            if (c->list.entry[i].type == CAST_FILE)
                send_file(s, i);
    if (going) {
        send_record(s, CAST_ROUND_END, s->failed != 0, 0, 0);
        flush(s);
        going = wait_stage(s, 3, true);
    }
    return going;
}

/* What the targets of the chain still need; those that are gone are counted once. */
static uint64_t look_at_targets(struct cast_source *s, uint32_t *left)
{
    uint64_t sum = 0;
    *left = 0;
    for (uint32_t i = 0; i < s->c->config.head.size; i++) {
        struct receiver *t = &s->receiver[i];
        if (!t->chosen)
            continue;
        if (!weft_alive(s->c->w, i)) {
            cast_say(s->c, true, "%s is gone; the others go on without it", s->c->config.hosts[i]);
            t->chosen = false;
            s->targets_failed++;
        } else if (!t->failed) {
            ++*left;
            sum += t->needed;
        }
    }
    return sum;
}

/* Rounds until all targets have all. Returns 0, or a negative errno with base_error(). */
static int run_rounds(struct cast_source *s)
{
    struct cast *c = s->c;
    uint64_t before = UINT64_MAX;
    uint32_t left, stalls = 0;
    bool list, verified = !(c->config.head.flags & CAST_VERIFY), dry = c->config.head.flags & CAST_DRY_RUN;
    bool verify = false;
    for (;;) {
        int rc = choose_chain(s, &list);
        if (rc || !s->count || c->quit || c->stopped())
            return rc;
        if (s->round == CAST_ROUNDS - 1)
            return base_fail(-EIO, "%u rounds, and not all has arrived: give the same command again", s->round);
        if ((rc = cast_relay_start(&s->relay, c, s->chain[0], s->round)))
            return rc;
        bool complete = run_round(s, list, verify);
        cast_relay_stop(&s->relay);
        uint64_t need = look_at_targets(s, &left);
        if (complete && need == 0) {
            verified = verified || verify;
            if (verified || dry)
                return 0;
            verify = true;
            continue;
        }
        verified = verified || (complete && verify);
        verify = verify && !complete;
        stalls = complete && need >= before ? stalls + 1 : 0;
        before = complete ? need : before;
        if (stalls == STALLS_MAX)
            return base_fail(-EIO, "data arrives damaged again and again: see `weft status` for the links");
    }
}

void cast_source_run(struct cast *c)
{
    struct cast_source *s = c->source;
    uint32_t left = 0;
    int rc = cast_walk(c, &s->failed);
    cast_send(c, 0, CAST_TOTAL, 0, c->list.files, c->list.bytes, NULL, 0);
    if (!rc && !c->list.count && s->failed) /* none of the sources is there */
        rc = base_fail(-ENOENT, "there is nothing to send");
    if (!rc)
        rc = run_rounds(s);
    if (c->stopped())
        rc = base_fail(-EINTR, "the source was stopped by a signal: give the same command again, which sends what is missing");
    if (rc && (c->rank || !c->stopped())) /* at node 0, the user has stopped it */
        cast_say(c, true, "%s", base_error());
    look_at_targets(s, &left);
    for (uint32_t i = 0; i < c->config.head.size; i++)
        if (cast_is_target(c, i) && weft_alive(c->w, i))
            cast_send(c, i, CAST_QUIT, 0, 0, 0, NULL, 0);
    cast_tell_state(c, CAST_ENDED, true);
    cast_send(c, 0, CAST_OVER, 0, rc || s->failed || s->targets_failed || !left, 0, NULL, 0);
}
