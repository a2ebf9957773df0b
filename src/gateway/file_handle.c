/* SPDX-License-Identifier: MIT
 *
 * The asker's handles of files: opens and closes them, and makes the calls that need one request.
 */
#include "gateway/file_handle.h"

#include <stdlib.h>
#include <string.h>

weft_request file_request(const weft_file *f, enum file_kind kind)
{
    return (weft_request){
        .version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_FILE, .kind = (uint16_t)kind, .node = f->node, .handle = f->there};
}

int file_claim(weft_file *f)
{
    if (atomic_exchange_explicit(&f->busy, true, memory_order_acquire)) /* acquire: pairs with file_unuse() */
        return base_fail(-EBUSY, "%s at node %u: another thread reads or writes through this handle: open the file once for each thread",
                         f->path, f->node);
    atomic_fetch_add_explicit(&f->users, 1, memory_order_relaxed);
    return 0;
}

int file_use(weft_file *f, bool alone)
{
    if (fab_in_handler())
        return base_fail(-EDEADLK, "%s at node %u: a handler must not wait for a file; make this call in another thread", f->path, f->node);
    if (alone)
        return file_claim(f);
    atomic_fetch_add_explicit(&f->users, 1, memory_order_relaxed);
    return 0;
}

void file_unuse(weft_file *f, bool alone)
{
    if (alone)
        atomic_store_explicit(&f->busy, false, memory_order_release);
    atomic_fetch_sub_explicit(&f->users, 1, memory_order_release); /* last: another thread may then close the handle */
}

void file_info_set(weft_file *f, const weft_file_info *info)
{
    f->info = *info;
    atomic_store_explicit(&f->size, info->bytes, memory_order_relaxed);
}

int file_ask(weft_file *f, weft_request *r, const void *data, bool info, struct gateway_result *out, int64_t timeout_ns)
{
    weft_file_info new;
    size_t len = sizeof new;
    struct gateway_question q = {.record = r, .data = data};
    int rc = gateway_ask_wait(f->g, &q, timeout_ns, out, info ? &new : NULL, info ? &len : NULL);
    if (!rc && info)
        file_info_set(f, &new);
    return rc;
}

void file_slot_free(weft_file *f, struct file_slot *s)
{
    if (s->kept)
        file_keep_leave(f->g, s->kept);
    s->kept = NULL;
    atomic_store_explicit(&s->state, SLOT_FREE, memory_order_relaxed);
}

void file_slots_leave(weft_file *f, struct file_line *line)
{
    for (unsigned i = 0; i < FILE_SLOTS; i++) {
        struct file_slot *s = &line->slot[i];
        if (file_slot_state(s) == SLOT_ASKED)
            (void)gateway_ask_leave(f->g, s->ask, 0); /* after this, no answer is written to the slot */
        file_slot_free(f, s);
    }
}

/* --- what is mapped --- */

void file_post_return(struct gateway *g, uint32_t node, uint64_t lease)
{
    const weft_request r = {
        .version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_FILE, .kind = FILE_RETURN, .node = node, .arg = {lease}};
    gateway_ask_ignore(g, &r);
}

void file_map_slot_free(struct file_slot *s)
{
    s->claimed = false;
    atomic_store_explicit(&s->state, SLOT_FREE, memory_order_relaxed);
}

/* Frees a slot for which no thread waits. Called with `maps` locked. */
void file_map_slot_leave(weft_file *f, struct file_slot *s)
{
    /* If the answer has not arrived yet, mapped_late() will end the lease. */
    if (file_slot_state(s) == SLOT_ASKED)
        (void)gateway_ask_leave(f->g, s->ask, 0);
    if (file_slot_state(s) == SLOT_READY)
        file_post_return(f->g, f->node, s->lease);
    file_map_slot_free(s);
}

bool file_maps_leave(weft_file *f)
{
    bool any = false;
    pthread_mutex_lock(&f->maps);
    for (unsigned i = 0; i < FILE_MAP_SLOTS; i++)
        if (file_slot_state(&f->map_slot[i]) != SLOT_FREE && !f->map_slot[i].claimed) {
            file_map_slot_leave(f, &f->map_slot[i]);
            any = true;
        }
    pthread_mutex_unlock(&f->maps);
    return any;
}

/* --- opening and closing --- */

void file_post_close(struct gateway *g, uint32_t node, uint64_t there)
{
    const weft_file like = {.node = node, .there = there};
    const weft_request r = file_request(&like, FILE_CLOSE);
    gateway_ask_ignore(g, &r);
}

/* Handles the answer to a request to open a file, after this node has cancelled the request: closes the file again. */
static void opened_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    if (r->status == 0)
        file_post_close(g, a->node, r->word[0]);
}

/* Handles the gateway's report that a file has changed: the next read or map will send a request, and the gateway will answer it with
 * -ESTALE. */
void gateway_file_changed(struct gateway *g, uint32_t from, const struct gateway_message *m)
{
    base_spin_lock(&g->lock);
    for (weft_file *f = g->files; f; f = f->next)
        if (f->node == from && f->there == m->to) {
            atomic_store_explicit(&f->changed[FILE_CHANGED_READ], true, memory_order_relaxed);
            atomic_store_explicit(&f->changed[FILE_CHANGED_MAP], true, memory_order_relaxed);
        }
    base_spin_unlock(&g->lock);
}

static void handle_list(struct gateway *g, weft_file *f)
{
    base_spin_lock(&g->lock);
    f->next = g->files;
    f->at_next = &g->files;
    if (f->next)
        f->next->at_next = &f->next;
    g->files = f;
    base_spin_unlock(&g->lock);
}

static void handle_unlist(struct gateway *g, weft_file *f)
{
    base_spin_lock(&g->lock);
    if (f->next)
        f->next->at_next = f->at_next;
    *f->at_next = f->next;
    base_spin_unlock(&g->lock);
}

static void file_free(weft_file *f)
{
    pthread_mutex_destroy(&f->maps);
    free(f->path);
    free(f);
}

int file_open_check(weft_node *w, uint32_t node, const char *path, uint32_t flags)
{
    size_t len = path ? strlen(path) : 0;
    if (node >= w->size)
        return base_fail(-EFAULT, "weft_file_open(): there is no node %u; the cluster has nodes 0 to %u", node, w->size - 1);
    if (!len)
        return base_fail(-EINVAL, "weft_file_open(): the path is empty: name a file");
    if (flags & ~WEFT_FILE_FLAGS)
        return base_fail(-EINVAL, "weft_file_open() of '%s': unknown flags (%#x): leave them out", path, flags & ~WEFT_FILE_FLAGS);
    if (flags && !(flags & WEFT_FILE_WRITE))
        return base_fail(-EINVAL, "weft_file_open() of '%s': the flags (%#x) need WEFT_FILE_WRITE as well: add this flag", path, flags);
    if (len > WEFT_FILE_PATH_MAX)
        return base_fail(-ENAMETOOLONG, "weft_file_open(): the path has %zu bytes, but at most %u are possible: use a shorter path", len,
                         WEFT_FILE_PATH_MAX);
    return 0;
}

uint64_t file_far(const struct weft_node *w, uint32_t node)
{
    bool here = weft_ptr((struct weft_node *)(uintptr_t)w, weft_gaddr_make(node, 0, w->heap_offset), 1);
    return here ? 0 : file_hash(w->host_id, sizeof w->host_id);
}

int weft_file_open(weft_node *w, uint32_t node, const char *path, uint32_t flags, weft_file **out, int64_t timeout_ns)
{
    *out = NULL;
    int rc = file_open_check(w, node, path, flags);
    if (rc)
        return rc;
    weft_file *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return base_fail(-ENOMEM, "no memory for the handle of %s" BASE_MEMORY_HINT, path);
    }
    f->g = gateway_in(w);
    f->node = node;
    f->flags = flags;
    f->reads.ahead = f->maps_far.ahead = 1;
    f->reads.last = f->maps_far.last = f->mapped = f->ends = UINT64_MAX;
    f->maps_far.maps = true;
    const uint64_t host = file_far(w, node);
    f->far = host;
    pthread_mutex_init(&f->maps, NULL);
    weft_request r = file_request(f, FILE_OPEN);
    struct gateway_result result;
    weft_file_info now;
    r.flags = flags;
    r.data_bytes = strlen(path);
    r.arg[0] = host;
    size_t info = sizeof now;
    struct gateway_question q = {.record = &r, .data = path, .late = opened_late};
    rc = gateway_ask_wait(f->g, &q, timeout_ns, &result, &now, &info);
    if (rc) {
        file_free(f);
        return rc;
    }
    f->there = result.word[0];
    file_info_set(f, &now);
    if (f->far)
        file_keeps_opened(f->g);
    handle_list(f->g, f);
    *out = f;
    return 0;
}

static void copies_free(weft_file *f)
{
    uint32_t at = 0;
    for (struct file_kept *k; (k = gateway_table_next(&f->copies, &at));)
        file_keep_leave(f->g, k);
    gateway_table_free(&f->copies);
}

int weft_file_close(weft_file *f)
{
    if (!f)
        return 0;
    if (atomic_load_explicit(&f->users, memory_order_acquire)) /* acquire: pairs with file_unuse() */
        return base_fail(-EBUSY,
                         "%s at node %u cannot be closed while a thread waits in a call with this handle: let that call return first",
                         f->path, f->node);
    file_slots_leave(f, &f->reads);
    file_slots_leave(f, &f->maps_far);
    (void)file_maps_leave(f);
    handle_unlist(f->g, f);
    copies_free(f);
    file_post_close(f->g, f->node, f->there);
    if (f->far)
        file_keeps_closed(f->g);
    file_free(f);
    return 0;
}

uint64_t weft_file_size(const weft_file *f)
{
    return file_size(f);
}

uint32_t weft_file_node(const weft_file *f)
{
    return f->node;
}

/* --- one request --- */

static int ask_one(weft_file *f, enum file_kind kind, int64_t timeout_ns)
{
    int rc = file_use(f, kind == FILE_STAT);
    if (rc)
        return rc;
    weft_request r = file_request(f, kind);
    rc = file_ask(f, &r, NULL, kind == FILE_STAT, NULL, timeout_ns);
    file_unuse(f, kind == FILE_STAT);
    return rc;
}

int weft_file_stat(weft_file *f, weft_file_info *out, size_t bytes, int64_t timeout_ns)
{
    int rc = ask_one(f, FILE_STAT, timeout_ns);
    if (!rc && out)
        base_give_struct(out, bytes, &f->info, sizeof f->info);
    return rc;
}

int file_sync(weft_file *f, int64_t timeout_ns)
{
    weft_request r = file_request(f, FILE_SYNC);
    return file_ask(f, &r, NULL, false, NULL, timeout_ns);
}

int weft_file_sync(weft_file *f, int64_t timeout_ns)
{
    return ask_one(f, FILE_SYNC, timeout_ns);
}

int weft_file_pin(weft_file *f, int64_t timeout_ns)
{
    return ask_one(f, FILE_PIN, timeout_ns);
}

/* Writes at most one piece. If the bytes do not fit into the message, the gateway fetches them from a copy in this node's pool. The gateway
 * checks the hash of the bytes, so this node may free the copy after a time-out. */
static int write_some(weft_file *f, const void *buf, size_t len, uint64_t offset, size_t *put, int64_t deadline)
{
    weft_node *w = f->g->w;
    weft_request r = file_request(f, FILE_WRITE);
    struct gateway_result result;
    int64_t left = deadline - base_now_ns();
    int rc = 0;
    r.data_bytes = len;
    r.arg[0] = offset;
    if (len > WEFT_REQUEST_INLINE) {
        rc = weft_alloc(w, len, &r.data);
        if (rc)
            return rc;
        buf = memcpy(weft_ptr(w, r.data, len), buf, len);
    }
    rc = file_ask(f, &r, buf, true, &result, left > 0 ? left : 0);
    *put = rc ? 0 : result.word[0] < len ? (size_t)result.word[0] : len;
    weft_free(w, r.data);
    return rc;
}

int file_write_check(const weft_file *f)
{
    return f->flags & WEFT_FILE_WRITE
               ? 0
               : base_fail(-EBADF, "%s at node %u cannot be written: open it with WEFT_FILE_WRITE", f->path, f->node);
}

int file_write(weft_file *f, const void *buf, size_t len, uint64_t offset, size_t *put, int64_t deadline)
{
    size_t done = 0, n;
    int rc = 0;
    file_slots_leave(f,
                     &f->reads); /* the slots have pieces of the old generation. Their leases are not returned, and expire at the gateway */
    (void)file_maps_leave(f);
    f->reads.last = UINT64_MAX;
    while (!rc && done < len) {
        rc = write_some(f, (const uint8_t *)buf + done, len - done < WEFT_FILE_PIECE ? len - done : WEFT_FILE_PIECE, offset + done, &n,
                        deadline);
        done += n;
        if (!rc && !n)
            rc = base_fail(-EIO, "%s: node %u has written no bytes, and has given no reason; run the same version of weft on all hosts",
                           f->path, f->node);
    }
    *put = done;
    return rc;
}

int weft_file_write(weft_file *f, const void *buf, size_t len, uint64_t offset, size_t *put, int64_t timeout_ns)
{
    int64_t deadline = fab_timeout(f->g->w, timeout_ns);
    size_t done = 0;
    int rc = file_write_check(f);
    if (put)
        *put = 0;
    if (rc || (rc = file_use(f, true)))
        return rc;
    rc = file_write(f, buf, len, offset, &done, deadline);
    file_unuse(f, true);
    if (put)
        *put = done;
    return rc;
}

/* --- the gateway's cache --- */

static int cache_ask(weft_node *w, uint32_t node, weft_request *r, const void *data, uint64_t *word, void *payload, size_t bytes,
                     int64_t timeout_ns)
{
    struct gateway_result result;
    size_t len = bytes;
    r->version = WEFT_REQUEST_VERSION;
    r->service = WEFT_SERVICE_FILE;
    r->node = node;
    struct gateway_question q = {.record = r, .data = data};
    int rc = gateway_ask_wait(gateway_in(w), &q, timeout_ns, &result, payload, &len);
    *word = rc ? 0 : result.word[0];
    return rc;
}

int weft_file_cache_stat(weft_node *w, uint32_t node, weft_file_cache *out, size_t bytes, int64_t timeout_ns)
{
    uint64_t word;
    weft_file_cache full;
    weft_request r = {.kind = FILE_CACHE};
    int rc = cache_ask(w, node, &r, NULL, &word, &full, sizeof full, timeout_ns);
    if (!rc)
        base_give_struct(out, bytes, &full, sizeof full);
    return rc;
}

int weft_file_list(weft_node *w, uint32_t node, weft_file_cached *out, size_t bytes, uint64_t *next, int64_t timeout_ns)
{
    weft_file_cached full;
    weft_request r = {.kind = FILE_LIST, .arg = {*next}};
    int rc = cache_ask(w, node, &r, NULL, next, &full, sizeof full, timeout_ns);
    if (rc == -ENOENT)
        return base_fail(rc, "node %u has no file open or cached for other nodes", node);
    if (!rc) {
        full.path[WEFT_FILE_PATH_MAX] = '\0';
        base_give_struct(out, bytes, &full, sizeof full);
    }
    return rc;
}

int weft_file_unpin(weft_node *w, uint32_t node, const char *path, int64_t timeout_ns)
{
    uint64_t word;
    size_t len = path ? strlen(path) : 0;
    if (!len || len > WEFT_FILE_PATH_MAX)
        return base_fail(-EINVAL, "weft_file_unpin(): a path must have 1 to %u bytes", WEFT_FILE_PATH_MAX);
    weft_request r = {.kind = FILE_UNPIN, .data_bytes = len};
    int rc = cache_ask(w, node, &r, path, &word, NULL, 0, timeout_ns);
    return rc == -ENOENT ? base_fail(rc, "node %u has not pinned %s: give the path that was used to pin the file", node, path) : rc;
}
