/* SPDX-License-Identifier: MIT
 *
 * The asker's side of reading: weft_file_read(). Bytes of a file of this host are copied from the gateway's pool, and used only if the
 * lease of their piece has not ended. Whole pieces of a file of another host are first copied to this node's pool (file_slot.c); parts of
 * pieces are fetched directly into the program's buffer. Pieces are requested in advance only if the program reads in order: the call
 * begins where the previous call ended, or in the next piece, or reads the whole first piece (file_line_begins()).
 */
#include "gateway/file_handle.h"

#include <string.h>

/* Copies `n` bytes of the piece in the slot. -EAGAIN: the lease has ended, and the memory may hold another piece. */
static int copy_out(weft_file *f, const struct file_slot *s, uint8_t *to, uint64_t within, size_t n, int64_t deadline)
{
    weft_node *w = f->g->w;
    if (s->kept && !fab_gpu_memory(w, to)) {
        memcpy(to, weft_ptr(w, s->kept->at + within, n), n);
        return 0;
    }
    int64_t before = fab_limit(deadline);
    int rc = weft_get_blocking(w, to, (s->kept ? s->kept->at : s->at) + within, n);
    fab_limit(before);
    return rc || s->kept ? rc : base_now_ns() >= s->until + FILE_COPY_NS ? -EAGAIN : 0;
}

int file_read(weft_file *f, void *buf, size_t len, uint64_t offset, size_t *got, int64_t deadline)
{
    uint8_t *to = buf;
    int rc = 0;
    *got = 0;
    struct file_line *line = &f->reads;
    file_line_begin(f, line);
    uint64_t left = offset < f->info.bytes ? f->info.bytes - offset : 0;
    left = left < len ? left : len;
    /* A call that reads a few MiB in the middle of a file must not transfer more than these few MiB over the network. */
    const bool follows = offset == f->ends, next = line->last != UINT64_MAX && line->last + 1 == offset / WEFT_FILE_PIECE;
    const bool begins = offset == 0 && left >= file_piece_bytes(f->info.bytes, 0) && file_line_begins(f, line);
    const uint64_t end = follows || next || begins ? f->info.bytes : offset + left;
    while (!rc && left) {
        if (atomic_exchange_explicit(&f->changed[FILE_CHANGED_READ], false, memory_order_relaxed))
            file_slots_expire(f, line);
        uint64_t index = offset / WEFT_FILE_PIECE, within = offset % WEFT_FILE_PIECE;
        uint64_t bytes = file_piece_bytes(f->info.bytes, index), n = bytes - within < left ? bytes - within : left;
        bool keeps = f->far && (n == bytes || follows);
        struct file_slot *s = NULL;
        const bool more = n < left || (begins && index == 0);
        if ((rc = file_slot_begin(f, line, index, more, keeps, end, deadline)) || (rc = file_slot_get(f, line, index, keeps, deadline, &s)))
            break;
        file_slot_ahead(f, line, index, more, keeps, end);
        rc = copy_out(f, s, to, within, (size_t)n, deadline);
        if (rc == -EAGAIN) {
            rc = 0; /* request the piece again */
        } else if (!rc) {
            to += n;
            offset += n;
            left -= n;
            *got += (size_t)n;
            f->ends = offset;
        }
    }
    file_line_end(line);
    return rc;
}

int weft_file_read(weft_file *f, void *buf, size_t len, uint64_t offset, size_t *got, int64_t timeout_ns)
{
    int64_t deadline = fab_timeout(f->g->w, timeout_ns);
    *got = 0;
    int rc = file_use(f, true);
    if (rc)
        return rc;
    rc = file_read(f, buf, len, offset, got, deadline);
    file_unuse(f, true);
    return rc;
}
