/* SPDX-License-Identifier: MIT
 *
 * The format of data between nodes, see cast.h. All data from other nodes is checked here or in list.c before use.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "cast/cast.h"

static const char config_magic[8] = {'w', 'e', 'f', 't', 'c', 's', 't', '3'};
#define BLOCK_MAGIC UINT64_C(0x316b6c6274736163)

/* --- settings --- */

static int refuse(const char *why)
{
    return base_fail(-EPROTO, "the settings of the cast, as they arrived, are invalid: %s; run the same version of weft on all hosts", why);
}

int cast_config_parse(struct cast_config *out, const void *data, size_t bytes)
{
    struct cast_head *h = &out->head;
    *out = (struct cast_config){.memory = NULL};
    if (bytes <= sizeof *h || bytes > CAST_CONFIG_MAX)
        return refuse("their size is wrong");
    memcpy(h, data, sizeof *h);
    const char *at = (const char *)data + sizeof *h, *end = (const char *)data + bytes;
    uint64_t lists = 2 * (uint64_t)h->size + h->excludes + h->sources;
    if (memcmp(h->magic, config_magic, sizeof h->magic) != 0 || h->flags & ~(uint32_t)CAST_FLAGS)
        return refuse("their first bytes are wrong");
    if (h->size < 2 || h->size > WEFT_MAX_NODES || h->source > 1 || h->size < h->source + 2 || h->follow > CAST_FOLLOW_MAX)
        return refuse("one of their numbers is out of range");
    if (!base_strings_fit(at, (size_t)(end - at), lists + 1) || !at[0])
        return refuse("they have the wrong number of strings");
    const char **list = out->memory = calloc(lists + 4, sizeof *list);
    if (!list)
        return base_fail(-ENOMEM, "no memory for the settings of a cast" BASE_MEMORY_HINT);
    out->dest = at;
    out->hosts = list;
    out->numbers = out->hosts + h->size + 1;
    out->excludes = out->numbers + h->size + 1;
    out->sources = out->excludes + h->excludes + 1;
    at = base_strings_take(at + strlen(at) + 1, out->hosts, h->size);
    at = base_strings_take(at, out->numbers, h->size);
    at = base_strings_take(at, out->excludes, h->excludes);
    base_strings_take(at, out->sources, h->sources);
    if (!h->follow || (h->sources == 1 && !cast_is_content(out->sources[0])))
        return 0;
    cast_config_free(out);
    return refuse("--follow needs exactly one file to send");
}

void cast_config_free(struct cast_config *c)
{
    free(c->memory);
    *c = (struct cast_config){.memory = NULL};
}

int cast_config_write(const struct cast_config *c, void **data, size_t *bytes)
{
    struct cast_head h = c->head;
    memcpy(h.magic, config_magic, sizeof h.magic);
    size_t n = sizeof h + strlen(c->dest) + 1 + base_strings_bytes(c->hosts, h.size) + base_strings_bytes(c->numbers, h.size) +
               base_strings_bytes(c->excludes, h.excludes) + base_strings_bytes(c->sources, h.sources);
    if (n > CAST_CONFIG_MAX)
        return base_fail(-E2BIG,
                         "the names of the sources and the patterns have %zu bytes, but at most %u are possible: use several commands", n,
                         CAST_CONFIG_MAX);
    char *at = *data = malloc(n);
    if (!at)
        return base_fail(-ENOMEM, "no memory for the settings of a cast" BASE_MEMORY_HINT);
    memcpy(at, &h, sizeof h);
    at = base_strings_put(at + sizeof h, &c->dest, 1);
    at = base_strings_put(at, c->hosts, h.size);
    at = base_strings_put(at, c->numbers, h.size);
    at = base_strings_put(at, c->excludes, h.excludes);
    base_strings_put(at, c->sources, h.sources);
    *bytes = n;
    return 0;
}

bool cast_is_content(const char *source)
{
    const char *slash = strrchr(source, '/'), *last = slash ? slash + 1 : source;
    return !*last || strcmp(last, ".") == 0 || strcmp(last, "..") == 0;
}

/* --- blocks and records --- */

void cast_hash(uint64_t out[2], uint32_t type, uint32_t file, uint64_t offset, const void *data, uint64_t bytes)
{
    const uint64_t fields[3] = {(uint64_t)type << 32 | file, offset, bytes};
    base_hash128(out, data, data ? bytes : 0, base_hash(fields, sizeof fields, 0));
}

void cast_record_seal(struct cast_record *r, const void *payload)
{
    cast_hash(r->hash, r->type, r->file, r->offset, payload, r->bytes);
}

static uint64_t block_hash(const struct cast_block *b)
{
    return base_hash(b, offsetof(struct cast_block, hash), 0);
}

void cast_block_seal(struct cast_block *b)
{
    b->magic = BLOCK_MAGIC;
    b->zero = 0;
    b->hash = block_hash(b);
}

bool cast_block_fits(const struct cast_block *b, uint64_t round, uint64_t number, size_t bytes)
{
    return b->magic == BLOCK_MAGIC && b->round == round && b->number == number && b->hash == block_hash(b) && b->bytes <= bytes - sizeof *b;
}

/* Size of a record's payload, or UINT64_MAX if the record is invalid. */
static uint64_t payload_bytes(const struct cast_record *r)
{
    switch (r->type) {
    case CAST_ENTRY: return r->bytes >= sizeof(struct cast_line) ? r->bytes : UINT64_MAX;
    case CAST_SIZE: return r->bytes == sizeof(struct cast_line) ? r->bytes : UINT64_MAX;
    case CAST_DATA: return r->bytes && r->bytes <= CAST_PIECE ? r->bytes : UINT64_MAX;
    case CAST_CHECK: return r->bytes && r->bytes <= CAST_PIECE ? 0 : UINT64_MAX;
    case CAST_HOLE: return r->bytes ? 0 : UINT64_MAX;
    case CAST_LIST_END:
    case CAST_FILE_END:
    case CAST_ROUND_END: return r->bytes ? UINT64_MAX : 0;
    default: return UINT64_MAX;
    }
}

int cast_record_next(const uint8_t *records, uint32_t bytes, uint32_t *at, struct cast_record *out, const uint8_t **payload)
{
    uint64_t hash[2];
    if (*at == bytes)
        return 0;
    if (bytes < *at || bytes - *at < sizeof *out)
        return -EPROTO;
    memcpy(out, records + *at, sizeof *out);
    uint64_t n = payload_bytes(out), left = bytes - *at - sizeof *out;
    if (n == UINT64_MAX || n > left || out->offset > INT64_MAX || out->bytes > INT64_MAX - out->offset)
        return -EPROTO;
    *payload = records + *at + sizeof *out;
    if (out->type != CAST_DATA && out->type != CAST_CHECK) {
        cast_hash(hash, out->type, out->file, out->offset, n ? *payload : NULL, out->bytes);
        if (hash[0] != out->hash[0] || hash[1] != out->hash[1])
            return -EPROTO;
    }
    *at += (uint32_t)(sizeof *out + base_round_up(n, 8)); /* records begin at multiples of 8 */
    if (*at > bytes)
        return -EPROTO;
    return 1;
}

/* --- messages --- */

bool cast_word_fits(const struct cast_word *w, size_t header_bytes, size_t payload_bytes)
{
    if (header_bytes != sizeof *w || w->round > CAST_ROUNDS)
        return false;
    switch (w->kind) {
    case CAST_BEGIN:
        return payload_bytes % sizeof(uint32_t) == 0 && payload_bytes <= WEFT_PAYLOAD_MAX && w->round >= 1 && w->round < CAST_ROUNDS;
    case CAST_NEED: return payload_bytes && payload_bytes % sizeof(struct cast_need) == 0;
    case CAST_LINKS: return payload_bytes > 0 && w->round == 0;
    case CAST_CHAIN: return payload_bytes % sizeof(uint32_t) == 0 && payload_bytes <= WEFT_PAYLOAD_MAX;
    case CAST_STATE: return payload_bytes == sizeof(struct cast_state);
    case CAST_SAY: return payload_bytes > 0 && w->b <= payload_bytes;
    case CAST_TOTAL: return payload_bytes == sizeof(struct cast_sums);
    case CAST_READY: return payload_bytes == 0 && w->a <= 2;
    case CAST_QUIT:
    case CAST_BROKEN:
    case CAST_FAILED:
    case CAST_HERE:
    case CAST_OVER: return payload_bytes == 0;
    default: return false;
    }
}
