/* SPDX-License-Identifier: MIT
 *
 * Messages that nodes of a cast send each other, with any bytes. The first byte chooses what the rest is: a block whose checksums are
 * corrected, so that the code after the check is tested, too; a block without this correction; settings; the header of a message. Each
 * input is refused, or reading it gives a valid result: names that stay below DEST, and settings that are the same after they were written
 * and read again.
 */
#include <stdlib.h>
#include <string.h>

#include "cast/cast.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_list(const struct cast_list *l)
{
    uint64_t files = 0, bytes = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        const struct cast_entry *e = &l->entry[i];
        size_t n = strlen(e->name);
        char path[4096];
        if (!n || n > CAST_NAME_MAX || strchr(e->name, '/') || strcmp(e->name, ".") == 0 || strcmp(e->name, "..") == 0)
            abort();
        if (e->parent != CAST_ROOT && (e->parent >= i || l->entry[e->parent].type != CAST_FOLDER))
            abort();
        if (e->type == CAST_HARDLINK && (e->target >= i || l->entry[e->target].type != CAST_FILE))
            abort();
        if (e->mode > 07777 || (e->type == CAST_SYMLINK) != (e->link[0] != '\0'))
            abort();
        if (cast_list_path(l, i, path, sizeof path)[0] == '/')
            abort();
        files += e->type == CAST_FILE;
        bytes += e->size;
    }
    if (files != l->files || bytes != l->bytes)
        abort();
}

/* Make the checksums of all records right, as far as they can be read. */
static void seal_records(uint8_t *records, uint32_t bytes)
{
    struct cast_record r;
    for (uint32_t at = 0; bytes - at >= sizeof r;) {
        memcpy(&r, records + at, sizeof r);
        uint64_t n = r.type == CAST_ENTRY || r.type == CAST_DATA ? r.bytes : 0;
        if (n > bytes - at - sizeof r)
            return;
        cast_record_seal(&r, n ? records + at + sizeof r : NULL);
        memcpy(records + at, &r, sizeof r);
        uint64_t next = at + sizeof r + base_round_up(n, 8);
        if (next > bytes)
            return;
        at = (uint32_t)next;
    }
}

static void take_block(const uint8_t *data, size_t size, bool seal)
{
    struct cast_list list = {.count = 0};
    struct cast_record r;
    const uint8_t *payload;
    uint32_t at = 0;
    uint8_t *block = malloc(sizeof(struct cast_block) + size);
    if (!block)
        return;
    memcpy(block, data, size);
    struct cast_block *b = (struct cast_block *)block;
    if (seal && size >= sizeof *b) {
        b->round = b->number = 1;
        b->bytes = (uint32_t)(size - sizeof *b);
        cast_block_seal(b);
        seal_records(block + sizeof *b, b->bytes);
    }
    if (size >= sizeof *b && cast_block_fits(b, 1, 1, size)) {
        if (b->bytes > size - sizeof *b)
            abort();
        const uint8_t *records = block + sizeof *b;
        while (cast_record_next(records, b->bytes, &at, &r, &payload) == 1) {
            if (at > b->bytes || payload > records + b->bytes || r.bytes > INT64_MAX ||
                (r.type == CAST_DATA && payload + r.bytes > records + b->bytes))
                abort();
            if (r.type == CAST_ENTRY && cast_list_take(&list, &r, payload) && !base_error()[0])
                abort();
            if (r.type == CAST_SIZE && cast_list_resize(&list, &r, payload) && !base_error()[0])
                abort();
        }
        check_list(&list);
    }
    cast_list_free(&list);
    free(block);
}

static void take_config(const uint8_t *data, size_t size)
{
    struct cast_config c, again;
    void *written;
    size_t bytes;
    int rc = cast_config_parse(&c, data, size);
    if (rc) {
        if (c.memory || rc != -EPROTO)
            abort();
        return;
    }
    if (!c.dest[0] || !c.hosts[c.head.size - 1] || c.hosts[c.head.size] || c.head.source >= c.head.size)
        abort();
    if (cast_config_write(&c, &written, &bytes) || bytes != size || memcmp(written, data, size) != 0 ||
        cast_config_parse(&again, written, bytes))
        abort();
    cast_config_free(&again);
    cast_config_free(&c);
    free(written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    base_error_clear();
    if (!size)
        return 0;
    const uint8_t *rest = data + 1;
    size_t left = size - 1;
    switch (data[0] % 4) {
    case 0: take_block(rest, left, true); break;
    case 1: take_block(rest, left, false); break;
    case 2: take_config(rest, left); break;
    default:
        if (left >= sizeof(struct cast_word)) {
            struct cast_word w;
            memcpy(&w, rest, sizeof w);
            if (cast_word_fits(&w, sizeof w, left - sizeof w) && (w.kind < CAST_BEGIN || w.kind > CAST_OVER || w.round > CAST_ROUNDS))
                abort();
        }
    }
    return 0;
}
