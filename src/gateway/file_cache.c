/* SPDX-License-Identifier: MIT
 *
 * The cache of the file service: generations of files (bodies), their pieces in the pool, and the leases of pieces. A piece without leases
 * is idle, unless its file is pinned. To make room, the idle piece that was least recently used is dropped.
 */
#include "gateway/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static weft_node *node_of(const struct files *all)
{
    return gateway_of(all->server)->w;
}

/* --- lists --- */

static struct file_body **body_bucket(struct files *all, const struct file_identity *is)
{
    return &all->body[(is->inode ^ is->device * UINT64_C(0x9e3779b1)) % FILE_BUCKETS];
}

static struct file_piece **piece_bucket(struct files *all, uint64_t generation, uint64_t index)
{
    return &all->piece[(generation * UINT64_C(0x9e3779b1) ^ index) & (all->buckets - 1)];
}

int file_cache_open(struct files *all)
{
    all->over = all->look = INT64_MAX;
    all->buckets = FILE_BUCKETS;
    all->piece = calloc(all->buckets, sizeof(struct file_piece *));
    all->holders = calloc(node_of(all)->room, sizeof(struct file_holder *));
    return all->piece && all->holders ? 0 : -ENOMEM;
}

/* Doubles the table if it has more pieces than buckets. If there is no memory for that, the table stays as it is. */
static void pieces_spread(struct files *all)
{
    struct file_piece **old = all->piece, **more;
    if (all->pieces < all->buckets || all->buckets > UINT32_MAX / 2 || !(more = calloc(2 * (size_t)all->buckets, sizeof *more)))
        return;
    all->piece = more;
    all->buckets *= 2;
    for (uint32_t i = 0; i < all->buckets / 2; i++)
        for (struct file_piece *p = old[i], *next; p; p = next) {
            next = p->hashed;
            struct file_piece **bucket = piece_bucket(all, p->body->generation, p->index);
            p->hashed = *bucket;
            *bucket = p;
        }
    free((void *)old);
}

static void idle_remove(struct files *all, struct file_piece *p)
{
    if (!p->idle)
        return;
    *(p->older ? &p->older->newer : &all->oldest) = p->newer;
    *(p->newer ? &p->newer->older : &all->newest) = p->older;
    p->older = p->newer = NULL;
    p->idle = false;
}

static void idle_add(struct files *all, struct file_piece *p)
{
    p->older = all->newest;
    p->newer = NULL;
    *(all->newest ? &all->newest->newer : &all->oldest) = p;
    all->newest = p;
    p->idle = true;
}

void file_piece_wanted(struct files *all, struct file_piece *p)
{
    idle_remove(all, p);
}

static uint64_t charge(const struct file_piece *p)
{
    return p->bytes > FILE_CHARGE_MIN ? p->bytes : FILE_CHARGE_MIN;
}

/* --- files --- */

/* Marks as stale all bodies of this inode that have another generation, and unpins those with this path. */
static void forget_others(struct files *all, const struct file_identity *is, const char *path)
{
    for (struct file_body *b = *body_bucket(all, is), *next; b; b = next) {
        next = b->hashed;
        if (b->is.device == is->device && b->is.inode == is->inode && !file_same(&b->is, is))
            file_body_stale(all, b);
    }
    if (all->pinned)
        (void)file_body_unpin(all, path, is);
}

struct file_body *file_body_get(struct files *all, const struct file_identity *is, const char *path, int fd)
{
    forget_others(all, is, path);
    struct file_body **bucket = body_bucket(all, is), *b = *bucket;
    while (b && (b->stale || !file_same(&b->is, is)))
        b = b->hashed;
    if (!b && (b = calloc(1, sizeof *b))) {
        *b = (struct file_body){.hashed = *bucket, .generation = ++all->generations, .is = *is, .path = strdup(path), .fd = -1, .wd = -1};
        if (!b->path) {
            free(b);
            b = NULL;
        } else {
            *bucket = b;
            all->bodies++;
        }
    }
    if (b && b->fd < 0)
        b->fd = fd;
    else
        close(fd);
    return b;
}

void file_body_leave(struct files *all, struct file_body *b)
{
    if (!b->opens && !b->jobs && b->fd >= 0) {
        close(b->fd);
        b->fd = -1;
    }
    if (b->opens || b->jobs || b->pieces || b->pinned)
        return;
    if (all->forget)
        all->forget(all, b);
    struct file_body **at = body_bucket(all, &b->is);
    while (*at != b)
        at = &(*at)->hashed;
    *at = b->hashed;
    all->bodies--;
    free(b->path);
    free(b);
}

void file_body_opened(struct file_body *b, const struct file_open *o)
{
    b->opens++;
    if (!o->host)
        return;
    b->several = b->several || b->far;
    b->nodes = b->nodes || (b->far && b->far_node != o->node);
    b->far_node = b->far ? b->far_node : o->node;
    b->far++;
}

void file_body_closed(struct files *all, struct file_body *b, const struct file_open *o)
{
    b->opens--;
    if (o->host && --b->far == 0)
        b->several = b->nodes = false;
    file_body_leave(all, b);
}

bool file_body_pin(struct files *all, struct file_body *b, bool pin)
{
    if (pin == b->pinned)
        return true;
    if (pin && b->is.bytes > all->limit / 2 - all->mapped - all->pinned)
        return false;
    b->pinned = pin;
    all->pinned = pin ? all->pinned + b->is.bytes : all->pinned - b->is.bytes;
    for (struct file_piece *p = b->pieces; p; p = p->of_body) {
        idle_remove(all, p);
        if (!pin && p->ready && !p->leases && !p->delayed)
            idle_add(all, p);
    }
    return true;
}

uint32_t file_body_unpin(struct files *all, const char *path, const struct file_identity *but)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < FILE_BUCKETS; i++)
        for (struct file_body *b = all->body[i], *next; b; b = next) {
            next = b->hashed;
            if (!b->pinned || strcmp(b->path, path) != 0 || (but && file_same(&b->is, but)))
                continue;
            n++;
            (void)file_body_pin(all, b, false);
            file_body_leave(all, b);
        }
    return n;
}

/* Tells the askers that have the file open, so that they notice the change before their leases end. */
static void tell_readers(struct files *all, const struct file_body *b)
{
    uint32_t at = 0;
    for (const struct file_open *o; (o = gateway_table_next(&all->opens, &at));)
        if (o->body == b && !o->closed)
            (void)gateway_post(gateway_of(all->server), o->node, &(struct gateway_message){.type = GATEWAY_CHANGED, .to = o->id}, NULL, 0);
}

void file_body_stale(struct files *all, struct file_body *b)
{
    if (b->stale)
        return;
    b->opens++; /* keeps the body while the loop drops its last piece */
    b->stale = true;
    if (all->forget)
        all->forget(all, b);
    tell_readers(all, b);
    file_body_pin(all, b, false);
    for (struct file_piece *p = b->pieces, *next; p; p = next) {
        next = p->of_body;
        file_piece_moved(all, p);
        if (p->idle)
            file_piece_drop(all, p);
    }
    b->opens--;
    file_body_leave(all, b);
}

struct file_body *file_body_next(struct files *all, uint64_t from)
{
    struct file_body *found = NULL;
    for (uint32_t i = 0; i < FILE_BUCKETS; i++)
        for (struct file_body *b = all->body[i]; b; b = b->hashed)
            if (b->generation >= from && (!found || b->generation < found->generation))
                found = b;
    return found;
}

/* --- pieces --- */

struct file_piece *file_piece_find(struct files *all, uint64_t generation, uint64_t index)
{
    struct file_piece *p = *piece_bucket(all, generation, index);
    while (p && (p->body->generation != generation || p->index != index))
        p = p->hashed;
    return p;
}

void file_piece_drop(struct files *all, struct file_piece *p)
{
    struct file_body *b = p->body;
    struct file_piece **at = piece_bucket(all, b->generation, p->index);
    while (*at != p)
        at = &(*at)->hashed;
    *at = p->hashed;
    idle_remove(all, p);
    if (p->of_body)
        p->of_body->of_body_at = p->of_body_at;
    *p->of_body_at = p->of_body;
    all->cached -= charge(p);
    b->cached -= p->bytes;
    fab_use(node_of(all), FAB_USE_FILES, -(int64_t)p->bytes);
    (void)weft_free(node_of(all), p->at);
    file_holders_free(all, p);
    all->pieces--;
    free(p);
    file_body_leave(all, b);
}

static bool drop_oldest(struct files *all)
{
    if (!all->oldest)
        (void)file_leases_over(all);
    if (!all->oldest)
        return false;
    all->dropped++;
    file_piece_drop(all, all->oldest);
    return true;
}

int file_piece_new(struct files *all, struct file_body *b, uint64_t index, struct file_piece **out)
{
    struct file_piece *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    *p = (struct file_piece){.body = b, .index = index, .bytes = file_piece_bytes(b->is.bytes, index)};
    b->opens++; /* keeps the body while its other pieces are dropped to make room */
    int rc = 0;
    while (!rc && all->cached + charge(p) > all->limit)
        rc = drop_oldest(all) ? 0 : -EAGAIN;
    while (!rc && weft_alloc(node_of(all), p->bytes, &p->at))
        rc = drop_oldest(all) ? 0 : all->cached ? -EAGAIN : -ENOMEM;
    b->opens--;
    if (rc) {
        free(p);
        return rc;
    }
    pieces_spread(all);
    struct file_piece **bucket = piece_bucket(all, b->generation, index);
    p->hashed = *bucket;
    *bucket = p;
    all->pieces++;
    p->of_body = b->pieces;
    p->of_body_at = &b->pieces;
    if (b->pieces)
        b->pieces->of_body_at = &p->of_body;
    b->pieces = p;
    all->cached += charge(p);
    b->cached += p->bytes;
    fab_use(node_of(all), FAB_USE_FILES, p->bytes);
    *out = p;
    return 0;
}

void file_piece_rest(struct files *all, struct file_piece *p)
{
    if (!p->ready || p->leases || p->idle || p->delayed)
        return;
    if (p->body->stale)
        file_piece_drop(all, p);
    else if (!p->body->pinned)
        idle_add(all, p);
}

/* --- leases --- */

int file_lease_new(struct files *all, struct file_open *o, struct file_piece *p, bool map, struct file_lease **out)
{
    if (o->leases >= FILE_LEASES_MAX || (map && all->mapped + all->pinned + charge(p) > all->limit / 2))
        return -ENOBUFS;
    struct file_lease *l = malloc(sizeof *l);
    if (!l)
        return -ENOMEM;
    *l = (struct file_lease){.open = o, .piece = p, .end = map ? INT64_MAX : base_deadline(FILE_LEASE_NS)};
    all->over = l->end < all->over ? l->end : all->over;
    l->id = gateway_table_add(&all->leases, l);
    if (!l->id) {
        free(l);
        return -ENOMEM;
    }
    idle_remove(all, p);
    all->leased += p->leases++ == 0 ? charge(p) : 0;
    o->leases++;
    all->mapped += map ? charge(p) : 0;
    *out = l;
    return 0;
}

void file_lease_end(struct files *all, struct file_lease *l)
{
    gateway_table_remove(&all->leases, l->id);
    all->leased -= --l->piece->leases == 0 ? charge(l->piece) : 0;
    if (l->gets)
        file_holder_left(all, l->piece, l->open);
    l->open->leases--;
    all->mapped -= l->end == INT64_MAX ? charge(l->piece) : 0;
    file_piece_rest(all, l->piece);
    free(l);
}

void file_leases_of(struct files *all, const struct file_open *o)
{
    uint32_t at = 0;
    for (struct file_lease *l; o->leases && (l = gateway_table_next(&all->leases, &at));)
        if (l->open == o)
            file_lease_end(all, l);
}

int64_t file_leases_over(struct files *all)
{
    uint32_t at = 0;
    int64_t now = base_now_ns();
    if (now >= all->over) {
        all->over = INT64_MAX;
        for (struct file_lease *l; (l = gateway_table_next(&all->leases, &at));) {
            if (l->end <= now) {
                l->gets = false; /* keeps the asker among the holders: it may still be getting the piece over a slow link */
                file_lease_end(all, l);
            } else if (l->end < all->over)
                all->over = l->end;
        }
    }
    return all->over == INT64_MAX ? INT64_MAX : all->over - now;
}

void file_cache_free(struct files *all)
{
    uint32_t at = 0;
    for (struct file_lease *l; (l = gateway_table_next(&all->leases, &at));)
        free(l);
    gateway_table_free(&all->leases);
    for (uint32_t i = 0; all->piece && i < all->buckets; i++)
        for (struct file_piece *p; (p = all->piece[i]);) {
            all->piece[i] = p->hashed;
            fab_use(node_of(all), FAB_USE_FILES, -(int64_t)p->bytes);
            (void)weft_free(node_of(all), p->at);
            p->delayed = NULL;
            file_holders_free(all, p);
            free(p);
        }
    free((void *)all->piece);
    free((void *)all->holders);
    for (uint32_t i = 0; i < FILE_BUCKETS; i++) {
        for (struct file_body *b; (b = all->body[i]);) {
            all->body[i] = b->hashed;
            if (b->fd >= 0)
                close(b->fd);
            free(b->path);
            free(b);
        }
    }
}
