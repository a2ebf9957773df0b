/* SPDX-License-Identifier: MIT
 *
 * Inputs that only one node, their home, can read, because the nodes are on different hosts. The home offers its file service for these
 * inputs only. The service reads the inputs into its cache, and the home's carriers (carry.c) put the bytes from the cache into the pools
 * of other nodes. So bytes that are needed twice are read from the disk once.
 *
 * The service fails if the home's pool is full of outputs, or if the file changes. Then the carrier reads the file itself.
 */
#include "map/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft/file.h"

#define KNOWN_WAIT  (30 * WEFT_SECOND)
#define KNOWN_LOOK  (5 * WEFT_MS)
#define CACHE_BYTES (32u << 20) /* size of a home's cache: four times what the carriers of a node hold (carry.c) */
#define LOOK_BYTES  ((uint64_t)MAP_CHUNK_BYTES)
#define SHOW_AGAIN  (100 * WEFT_MS)
#define STEP_BYTES  (UINT64_C(16) << 20) /* bytes of a read, after which the claim is renewed if that is due */

uint64_t map_identity(uint64_t device, uint64_t inode)
{
    return inode ^ device * UINT64_C(0x9e3779b97f4a7c15);
}

/* Makes the cache of the file service small, so that it fits into the processor's caches. It need only hold bytes that are being sent.
 * Returns false if there is no memory for the environment variable. */
static bool homes_small_cache(const struct map_job *job)
{
    const char *setting = getenv("WEFT_POOL");
    uint64_t pool = job->pool_bytes;
    if (getenv("WEFT_FILE_CACHE") || (!pool && (!setting || base_parse_bytes(setting, &pool))) || pool / 4 <= CACHE_BYTES)
        return true;
    char bytes[24];
    snprintf(bytes, sizeof bytes, "%u", CACHE_BYTES);
    return setenv("WEFT_FILE_CACHE", bytes, 1) == 0;
}

int map_homes_serve(const struct map_job *job)
{
    /* Commands do not get these variables, because the environment for commands was saved before. */
    if (setenv("WEFT_SERVE", "file", 1) || setenv("WEFT_FILE_ROOT", "-", 1) || !homes_small_cache(job))
        return base_fail(-ENOMEM, "no memory to set environment variables" BASE_MEMORY_HINT);
    return 0;
}

int map_homes_offer(struct map_job *job)
{
    int rc = 0;
    for (uint32_t i = 0; job->inputs && i < job->input_count && !rc; i++)
        if (job->inputs[i].cached && job->inputs[i].home == job->rank)
            rc = weft_file_offer(job->w, job->inputs[i].path);
    return rc;
}

/* --- the owner --- */

/* Opens an input at its home. Tries again for a while, because the home answers -EPERM until it knows which inputs to offer. */
static int open_known(struct map_job *job, const struct map_input *in, weft_file **f)
{
    int64_t deadline = base_deadline(KNOWN_WAIT);
    for (;;) {
        int rc = weft_file_open(job->w, in->home, in->path, 0, f, WEFT_TIMEOUT_DEFAULT);
        if ((rc != -EPERM && rc != -EOPNOTSUPP && rc != -ENETDOWN) || base_now_ns() > deadline)
            return rc;
        base_sleep_ns(KNOWN_LOOK);
    }
}

int map_homes_open(struct map_job *job)
{
    int rc = 0;
    for (uint32_t i = 0; i < job->input_count && !rc; i++) {
        struct map_input *in = &job->inputs[i];
        weft_file *f;
        weft_file_info info;
        if (!in->home)
            continue;
        if (!job->look && (rc = weft_alloc(job->w, LOOK_BYTES + sizeof(uint64_t), &job->look)))
            return base_context(rc, "no room in the pool to read inputs of other hosts (raise --memory)");
        if ((rc = open_known(job, in, &f)))
            return rc;
        if (!(rc = weft_file_stat(f, &info, sizeof info, WEFT_TIMEOUT_DEFAULT))) {
            in->size = info.bytes;
            in->device = info.device;
            in->inode = info.inode;
        }
        weft_file_close(f);
    }
    map_inputs_count(job);
    return rc;
}

void map_homes_close(struct map_job *job)
{
    weft_free(job->w, job->look);
    job->look = WEFT_NULL;
}

int64_t map_read_remote(void *arg, void *to, size_t len, uint64_t offset)
{
    const struct map_remote *r = arg;
    struct map_job *job = r->job;
    uint64_t left = offset < r->in->size ? r->in->size - offset : 0, done = 0;
    left = left < len ? left : len;
    while (done < left) {
        uint64_t n = left - done < LOOK_BYTES ? left - done : LOOK_BYTES;
        const struct map_ask ask = {
            .what = MAP_ASK_FILE, .input = r->input, .offset = offset + done, .len = n, .to = job->look, .word = job->look + LOOK_BYTES};
        int rc = map_ask(job, r->in->home, &ask);
        if (!rc)
            rc = map_asked(job, r->in->home, ask.word, NULL, NULL);
        if (rc == -ENETDOWN && weft_alive(job->w, r->in->home)) { /* there is no route now; if this lasts, apart.c gives up the node */
            base_sleep_ns(KNOWN_LOOK);
            continue;
        }
        if (rc == -ENODATA) /* the file has become shorter; the node that reads the piece reports that */
            return (int64_t)done;
        if (rc == -ECONNRESET)
            return base_fail(rc, "node %u, which has the file, is gone; run the job again when its host is back", r->in->home);
        if (rc == -ESTALE)
            return base_fail(rc, "%s: the file was replaced by another one during the job; run the job again", r->in->name);
        if (rc)
            return base_fail(rc, "node %u cannot read %s: %s; check the file on that node's host", r->in->home, r->in->name,
                             base_strerror(rc));
        memcpy((uint8_t *)to + done, weft_ptr(job->w, job->look, n), n);
        done += n;
    }
    return (int64_t)done;
}

/* --- the carriers --- */

void map_shown_close(struct map_shown *shown)
{
    weft_file_close(shown->f);
    shown->f = NULL;
}

static int show_open(struct map_job *job, struct map_shown *shown, uint32_t input)
{
    const struct map_input *in = &job->inputs[input];
    weft_file_info info;
    if (shown->f && shown->input == input)
        return 0;
    map_shown_close(shown);
    int rc = weft_file_open(job->w, job->rank, in->path, 0, &shown->f, job->renew_ns);
    if (rc)
        return rc;
    shown->input = input;
    rc = weft_file_stat(shown->f, &info, sizeof info, job->renew_ns);
    return rc ? rc : info.device == in->device && info.inode == in->inode ? 0 : -ESTALE;
}

int map_show(struct map_job *job, struct map_shown *shown, const struct map_ask *ask, weft_file_view *view)
{
    if (!job->inputs[ask->input].cached || ask->len == 0 || base_now_ns() < shown->not_before)
        return -EAGAIN;
    int rc = show_open(job, shown, ask->input);
    if (!rc)
        rc = weft_file_map(shown->f, ask->offset, view, job->renew_ns);
    if (!rc && view->bytes < ask->len) { /* the bytes lie in two pieces of the cache, or the file is too short */
        weft_file_unmap(shown->f, view);
        return -ENODATA;
    }
    if (rc) {
        map_shown_close(shown);
        shown->not_before = base_deadline(SHOW_AGAIN);
    }
    return rc;
}

/* --- the pieces --- */

/* Reads `len` bytes at `offset`. Waits for as long as the home is alive. */
static int read_some(struct map_slot *slot, weft_file *f, uint8_t *to, size_t len, uint64_t offset, int64_t *next)
{
    struct map_job *job = slot->job;
    for (size_t done = 0, got; done < len; done += got) {
        int rc = weft_file_read(f, to + done, len - done, offset + done, &got, job->renew_ns);
        map_slot_renew(slot, next);
        if (!rc && !got)
            return -ENODATA;
        while (rc == -ETIMEDOUT &&
               weft_flush(job->w, weft_file_node(f), job->renew_ns) == -ETIMEDOUT) /* a get that has timed out may still write to `to` */
            map_slot_renew(slot, next);
        if (rc && rc != -ETIMEDOUT)
            return rc;
    }
    return 0;
}

int map_bring_cached(struct map_slot *slot, const struct map_piece *piece, struct map_span *in)
{
    struct map_job *job = slot->job;
    const struct map_input *input = &job->inputs[piece->input];
    int64_t next = base_now_ns() + job->renew_ns;
    weft_file *f;
    weft_file_info info;
    /* Open the file for this piece only, so that the home's cache may drop the piece while the command runs. */
    int rc = weft_file_open(job->w, input->home, input->path, 0, &f, job->renew_ns);
    if (rc)
        return rc;
    map_slot_renew(slot, &next);
    rc = weft_file_stat(f, &info, sizeof info, job->renew_ns);
    if (!rc && map_identity(info.device, info.inode) != piece->at)
        rc = base_fail(-ESTALE, "%s: the file was replaced by another one during the job; run the job again", input->name);
    weft_gaddr to = WEFT_NULL;
    bool whole = !rc && map_bring_room(slot, piece, &to);
    const uint64_t step = whole ? STEP_BYTES : (uint64_t)MAP_BRING_DEPTH * MAP_CHUNK_BYTES;
    for (uint64_t done = 0, n; !rc && done < piece->length; done += n) {
        weft_gaddr at = whole ? to + done : to;
        n = piece->length - done < step ? piece->length - done : step;
        rc = read_some(slot, f, weft_ptr(job->w, at, n), (size_t)n, piece->offset + done, &next);
        if (!rc && !whole)
            rc = map_scratch_write(&job->spill, slot->brought_at + done, weft_ptr(job->w, at, n), (size_t)n);
    }
    weft_file_close(f);
    if (!rc)
        map_brought(slot, piece->length, whole, to, in);
    return rc;
}
