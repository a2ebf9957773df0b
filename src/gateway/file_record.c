/* SPDX-License-Identifier: MIT
 *
 * Requests by record about files (weft/request.h), at the asker. A record can name only files that a record has opened.
 */
#include "gateway/file_record.h"

#include <stdlib.h>
#include <string.h>

struct file_write {
    struct gateway_copy copy;
    struct file_record *f;
    weft_request *r;
    weft_gaddr buffer; /* a copy of the bytes in this node's pool; WEFT_NULL: no copy was needed */
};

static void file_free(struct gateway *g, struct gateway_object *o, bool over)
{
    struct file_record *f = (struct file_record *)(void *)o;
    for (unsigned i = 0; i < FILE_RECORD_SLOTS && !over; i++)
        if (f->slot[i].kept)
            file_keep_leave(g, f->slot[i].kept);
    if (f->there && !over)
        file_post_close(g, f->node, f->there);
    if (f->far && !over)
        file_keeps_closed(g);
    free(f);
}

void gateway_file_record_changed(struct gateway *g, uint32_t from, const struct gateway_message *m)
{
    uint32_t at = 0;
    base_spin_lock(&g->lock);
    for (struct gateway_object *o; (o = gateway_table_next(&g->objects, &at));) {
        struct file_record *f = (struct file_record *)(void *)o;
        if (o->service == WEFT_SERVICE_FILE && f->node == from && f->there == m->to)
            f->writes++;
    }
    base_spin_unlock(&g->lock);
}

/* --- writing --- */

static void put_info(weft_request *r, const weft_file_info *info)
{
    r->result[1] = info->bytes;
    r->result[2] = info->device;
    r->result[3] = info->inode;
    r->result[4] = (uint64_t)info->modified_ns;
    r->result[5] = info->generation;
}

/* Reads the gateway's answer, which describes the file's present generation. The caller holds gateway.lock. */
static int take_info(struct file_record *f, weft_request *r, const struct gateway_result *result)
{
    if (result->status)
        return result->status;
    memcpy(&f->info, result->payload, sizeof f->info);
    put_info(r, &f->info);
    return 0;
}

/* The caller holds gateway.lock. */
static void write_end(struct gateway *g, struct file_write *j, int rc)
{
    struct file_record *f = j->f;
    weft_request *r = j->r;
    f->writes++;
    free(j);
    gateway_record_answer(g, r, rc);
    gateway_object_leave_locked(g, &f->object);
}

static void write_failed(struct gateway *g, struct file_write *j, int rc)
{
    weft_free(g->w, j->buffer);
    base_spin_lock(&g->lock);
    write_end(g, j, rc);
    base_spin_unlock(&g->lock);
}

static void write_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *result)
{
    struct file_write *j = a->arg;
    weft_request *r = j->r;
    int rc = take_info(j->f, r, result);
    r->result[0] = rc ? 0 : result->word[0] < r->arg[1] ? result->word[0] : r->arg[1];
    write_end(g, j, rc);
}

/* Sends the request. The gateway fetches the bytes from `at` in this node's pool, and checks their hash. */
static void write_ask(struct gateway *g, struct file_write *j, weft_gaddr at)
{
    weft_request ask = file_record_request(j->f, FILE_WRITE);
    ask.timeout_ns = j->r->timeout_ns;
    ask.data = at;
    ask.data_bytes = j->r->arg[1];
    ask.arg[0] = j->r->arg[2];
    int rc = gateway_ask(g,
                         &(struct gateway_question){.record = &ask,
                                                    .data = weft_ptr(g->w, at, (size_t)ask.data_bytes),
                                                    .tell = write_told,
                                                    .arg = j,
                                                    .owned = j->buffer,
                                                    .post = true},
                         NULL);
    if (rc)
        write_failed(g, j, rc);
}

static void write_copied(struct gateway_copy *c, int rc)
{
    struct file_write *j = (struct file_write *)(void *)c;
    if (rc)
        write_failed(c->g, j, rc);
    else
        write_ask(c->g, j, j->buffer);
}

static int write_begin(struct gateway *g, struct file_record *f, weft_request *r)
{
    bool here = weft_gaddr_node(r->arg[0]) == g->w->rank && weft_gaddr_space(r->arg[0]) == 0;
    if (!r->arg[1] || r->arg[1] > WEFT_FILE_PIECE)
        return base_fail(-EINVAL, "the record of a request to write to a file has %llu bytes: expected 1 to %u",
                         (unsigned long long)r->arg[1], WEFT_FILE_PIECE);
    if (here && !weft_ptr(g->w, r->arg[0], (size_t)r->arg[1]))
        return base_fail(-EFAULT,
                         "the record of a request to write to a file gives %#llx as the address of its %llu bytes, but these are not in "
                         "this node's pool",
                         (unsigned long long)r->arg[0], (unsigned long long)r->arg[1]);
    struct file_write *j = malloc(sizeof *j);
    if (!j)
        return base_fail(-ENOMEM, "no memory for a request to write to a file" BASE_MEMORY_HINT);
    *j = (struct file_write){.f = f, .r = r, .buffer = WEFT_NULL};
    int rc = here ? 0 : weft_alloc(g->w, r->arg[1], &j->buffer);
    if (rc) {
        free(j);
        return rc;
    }
    base_spin_lock(&g->lock);
    f->writes++;
    base_spin_unlock(&g->lock);
    if (here) {
        write_ask(g, j, r->arg[0]);
    } else {
        j->copy = (struct gateway_copy){.to = j->buffer, .from = r->arg[0], .bytes = r->arg[1], .done = write_copied};
        gateway_copy(g, &j->copy);
    }
    return GATEWAY_LATER;
}

/* --- opening, and requests that the gateway answers --- */

bool gateway_file_valid(uint16_t kind, const struct gateway_result *r)
{
    switch (kind) {
    case FILE_OPEN:
    case FILE_STAT:
    case FILE_WRITE: return r->len == sizeof(weft_file_info);
    case FILE_LIST: return r->len == sizeof(weft_file_cached);
    case FILE_CACHE: return r->len == sizeof(weft_file_cache);
    default: return true;
    }
}

static int file_open(struct gateway *g, weft_request *r, uint64_t *arg)
{
    if (r->data_bytes > WEFT_FILE_PATH_MAX)
        return base_fail(-ENAMETOOLONG, "the record of a request to open a file has a path of %llu bytes: expected at most %u",
                         (unsigned long long)r->data_bytes, WEFT_FILE_PATH_MAX);
    struct file_record *f = calloc(1, sizeof *f);
    if (!f)
        return base_fail(-ENOMEM, "no memory to open a file for the record of a request" BASE_MEMORY_HINT);
    f->object.service = WEFT_SERVICE_FILE;
    f->object.free = file_free;
    f->object.uses = 1; /* for the request that opens the file, until its answer arrives */
    f->node = r->node;
    const uint64_t host = file_far(g->w, r->node);
    f->far = host;
    int rc = gateway_object_add(g, &f->object);
    if (rc) {
        free(f);
        return rc;
    }
    if (f->far)
        file_keeps_opened(g);
    memset(r->arg, 0, sizeof r->arg);
    r->arg[0] = host;
    r->kind = FILE_OPEN;
    r->handle = 0;
    *arg = (uint64_t)(uintptr_t)f;
    return 1;
}

static void opened(struct gateway *g, struct file_record *f, weft_request *r, const struct gateway_result *result)
{
    if (result->status) {
        gateway_object_close_locked(g, &f->object);
        return;
    }
    f->there = result->word[0];
    (void)take_info(f, r, result);
    r->result[0] = f->object.id;
}

/* The server's answer. The caller holds gateway.lock. */
void gateway_file_told(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data)
{
    struct file_record *f = (struct file_record *)(uintptr_t)arg;
    (void)data;
    if (r->kind == FILE_OPEN)
        opened(g, f, r, result);
    else if (r->kind == FILE_STAT)
        (void)take_info(f, r, result);
    gateway_object_leave_locked(g, &f->object);
}

void gateway_file_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    if (r->status == 0 && a->kind == FILE_OPEN)
        file_post_close(g, a->node, r->word[0]);
}

/* --- records --- */

static int file_do(struct gateway *g, struct file_record *f, weft_request *r)
{
    base_spin_lock(&g->lock);
    bool open = f->there;
    base_spin_unlock(&g->lock);
    if (!open && r->kind != WEFT_FILE_CLOSE)
        return -EBADF;
    switch (r->kind) {
    case WEFT_FILE_READ_RANGE: return file_record_read(g, f, r);
    case WEFT_FILE_WRITE_RANGE: return write_begin(g, f, r);
    case WEFT_FILE_STAT:
    case WEFT_FILE_SYNC: return 1;
    case WEFT_FILE_CLOSE: gateway_object_close(g, &f->object); return 0;
    default: return -EINVAL;
    }
}

int gateway_file_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg)
{
    (void)data;
    memset(r->result, 0, sizeof r->result);
    if (r->kind == WEFT_FILE_OPEN)
        return file_open(g, r, arg);
    struct file_record *f = (struct file_record *)(void *)gateway_object_use(g, r);
    if (!f)
        return -EBADF;
    int rc = file_do(g, f, r);
    if (rc == 1) { /* the gateway will answer the record */
        weft_request ask = file_record_request(f, r->kind == WEFT_FILE_STAT ? FILE_STAT : FILE_SYNC);
        ask.id = r->id;
        ask.timeout_ns = r->timeout_ns;
        *r = ask;
        *arg = (uint64_t)(uintptr_t)f;
    } else if (rc != GATEWAY_LATER) { /* GATEWAY_LATER: the operation that was started releases the file */
        gateway_object_leave(g, &f->object);
    }
    return rc;
}
