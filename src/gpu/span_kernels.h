/* SPDX-License-Identifier: MIT
 *
 * The GPU versions of the kernels of src/kernel/. The same source compiles as CUDA (span_kernels.cu), and as C for the back end `host`
 * (spans.c). A launch processes one chunk of a span of bytes. Each block writes its part of the result to the host's memory, and spans.c
 * combines the parts.
 *
 * A block has SPAN_THREADS threads. A step of all threads is written in SPAN_EACH, with SPAN_SYNC between two steps, so that C can run a
 * step as a loop. Variables are SPAN_SHARED if threads share them, or if a thread keeps them from one step to the next.
 */
#ifndef WEFT_GPU_SPAN_KERNELS_H
#define WEFT_GPU_SPAN_KERNELS_H

#include "kernel/wc.h"
#include "weft/device_memory.h"

#define SPAN_THREADS 256u
/* Maximum number of bytes of a chunk. The copy engine loses 2 us between two copies: an H200 copies chunks of 2 MiB at 50.6 GB/s, of 4 MiB
 * at 52.5, and of 16 MiB at 54. */
#define SPAN_CHUNK_BYTES (4u << 20)
#define SPAN_GRAIN       64u /* bytes that one thread of wc or grep processes */
#define SPAN_TEXT_MAX    64u /* the GPU compares the first SPAN_TEXT_MAX bytes of the text that grep looks for, the host the rest */
#define SPAN_BEHIND_MAX  (SPAN_TEXT_MAX - 1)
#define SPAN_SLACK_BYTES 128u /* how many bytes beyond a chunk's end a thread may load */

#define SPAN_BLOCK_BYTES (SPAN_THREADS * SPAN_GRAIN) /* bytes for one block of wc or grep */
/* bytes for one block of histogram; the block's result has 1 KiB */
#define SPAN_HISTOGRAM_BYTES (64u << 10)

enum span_function { SPAN_WC, SPAN_HISTOGRAM, SPAN_HASH, SPAN_GREP, SPAN_FUNCTIONS };

/* The arguments of a launch. */
struct span_chunk {
    const uint8_t *bytes; /* the chunk, in device memory, aligned to 64 */
    uint32_t len;         /* 1 to SPAN_CHUNK_BYTES */
    uint32_t behind;      /* grep: how many bytes of the next chunk follow */
    uint8_t *result;      /* the result, in host memory */
    uint64_t *state;      /* four words of device memory: the state of xxh64 between chunks */
    uint64_t total;       /* the bytes of the whole piece */
    uint32_t first, last; /* first: this is the piece's first chunk; last: this is its last chunk */
    uint32_t text_len;
    uint8_t text[SPAN_TEXT_MAX];
};

#if defined(__CUDACC__)
#define SPAN_KERNEL(name) extern "C" __global__ void __launch_bounds__(SPAN_THREADS) name(const __grid_constant__ struct span_chunk c)
#define SPAN_BLOCK        blockIdx.x
#define SPAN_SHARED       __shared__
#define SPAN_EACH(t)      for (uint32_t t = threadIdx.x; t < SPAN_THREADS; t += SPAN_THREADS)
#define SPAN_SYNC()       __syncthreads()
#define SPAN_COUNT(p)     atomicAdd((p), 1u)
#else
#define SPAN_KERNEL(name) static void name(const struct span_chunk c, __attribute__((unused)) uint32_t block)
#define SPAN_BLOCK        block
#define SPAN_SHARED
#define SPAN_EACH(t)  for (uint32_t t = 0; t < SPAN_THREADS; t++)
#define SPAN_SYNC()   (void)0
#define SPAN_COUNT(p) (void)++*(p)
#endif

WEFT_DEVICE_CALL uint32_t span_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Loads 16 bytes at once. */
WEFT_DEVICE_CALL weft_device_cell span_cell(const struct span_chunk *c, uint32_t at)
{
    return *(const weft_device_cell *)(const void *)(c->bytes + at);
}

/* --- wc --- */

/* Joins the results of two neighbouring parts; `b` follows `a`. */
WEFT_DEVICE_CALL struct kernel_wc_piece span_wc_join(struct kernel_wc_piece a, struct kernel_wc_piece b)
{
    a.lines += b.lines;
    a.bytes += b.bytes;
    if (!a.space)
        a.head |= b.head;
    if (b.space) { /* a word at the end of `a` may continue at the start of `b` */
        a.ended += b.ended - b.head + (a.tail | b.head);
        a.space = 1;
        a.tail = b.tail;
    } else {
        a.tail |= b.tail;
    }
    return a;
}

WEFT_DEVICE_CALL struct kernel_wc_piece span_wc_join_all(const struct kernel_wc_piece *part, uint32_t n)
{
    struct kernel_wc_piece all = part[0];
    for (uint32_t i = 1; i < n; i++)
        all = span_wc_join(all, part[i]);
    return all;
}

WEFT_DEVICE_CALL struct kernel_wc_piece span_wc_count(const struct span_chunk *c, uint32_t from)
{
    uint32_t to = span_least(from + SPAN_GRAIN, c->len), lines = 0, ended = 0;
    bool space = false, head = false, tail = false;
    for (uint32_t at = from; at < to; at += 16) {
        weft_device_cell cell = span_cell(c, at);
        uint32_t n = span_least(to - at, 16);
        for (uint32_t i = 0; i < n; i++) {
            uint8_t byte = (uint8_t)((i < 8 ? cell.low : cell.high) >> 8 * (i & 7));
            lines += byte == '\n';
            if (kernel_wc_space(byte)) {
                ended += tail;
                tail = false;
                space = true;
            } else {
                tail = tail || kernel_wc_mark(byte, WEFT_WC_PRINTABLE);
                head = head || (!space && tail);
            }
        }
    }
    struct kernel_wc_piece p = {lines, from < to ? to - from : 0, ended, 0, space, head, tail, {0}};
    return p;
}

/* A block's parts are joined in two steps: first SPAN_JOINERS threads join neighbours, then one thread joins their results. */
#define SPAN_JOINERS 16u

SPAN_KERNEL(span_wc)
{
    SPAN_SHARED struct kernel_wc_piece part[SPAN_THREADS], joined[SPAN_JOINERS];
    SPAN_EACH (t)
        part[t] = span_wc_count(&c, SPAN_BLOCK * SPAN_BLOCK_BYTES + t * SPAN_GRAIN);
    SPAN_SYNC();
    SPAN_EACH (t)
        if (t < SPAN_JOINERS)
            joined[t] = span_wc_join_all(part + t * (SPAN_THREADS / SPAN_JOINERS), SPAN_THREADS / SPAN_JOINERS);
    SPAN_SYNC();
    SPAN_EACH (t)
        if (t == 0)
            ((struct kernel_wc_piece *)(void *)c.result)[SPAN_BLOCK] = span_wc_join_all(joined, SPAN_JOINERS);
}

/* --- histogram --- */

/* Number of tables of counters in a block. Threads of a warp that count the same byte value in the same table wait for each other. */
#define SPAN_TABLES 8u
#define SPAN_AHEAD  4u /* cells that a thread loads before it begins to count */

WEFT_DEVICE_CALL void span_count_word(uint32_t *table, uint64_t word, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        SPAN_COUNT(&table[(word >> 8 * i & 255) * SPAN_TABLES]);
}

SPAN_KERNEL(span_histogram)
{
    SPAN_SHARED uint32_t count[256 * SPAN_TABLES];
    SPAN_EACH (t)
        for (uint32_t i = t; i < 256 * SPAN_TABLES; i += SPAN_THREADS)
            count[i] = 0;
    SPAN_SYNC();
    uint32_t from = SPAN_BLOCK * SPAN_HISTOGRAM_BYTES, to = span_least(from + SPAN_HISTOGRAM_BYTES, c.len);
    SPAN_EACH (t) {
        uint32_t *mine = &count[t % SPAN_TABLES], at = from + 16 * t;
        for (; at + 16 * SPAN_THREADS * (SPAN_AHEAD - 1) + 16 <= to; at += 16 * SPAN_THREADS * SPAN_AHEAD) {
            weft_device_cell cell[SPAN_AHEAD];
            for (uint32_t i = 0; i < SPAN_AHEAD; i++)
                cell[i] = span_cell(&c, at + 16 * SPAN_THREADS * i);
            for (uint32_t i = 0; i < SPAN_AHEAD; i++) {
                span_count_word(mine, cell[i].low, 8);
                span_count_word(mine, cell[i].high, 8);
            }
        }
        for (; at < to; at += 16 * SPAN_THREADS) {
            weft_device_cell cell = span_cell(&c, at);
            uint32_t n = span_least(to - at, 16);
            span_count_word(mine, cell.low, span_least(n, 8));
            span_count_word(mine, cell.high, n < 8 ? 0 : n - 8);
        }
    }
    SPAN_SYNC();
    SPAN_EACH (t) /* SPAN_THREADS is 256: a thread for each value */
    {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < SPAN_TABLES; i++)
            sum += count[t * SPAN_TABLES + i];
        ((uint32_t *)(void *)c.result)[SPAN_BLOCK * 256 + t] = sum;
    }
}

/* xxh64 has four chains of multiplications, in which each multiplication needs the result of the one before. So one block hashes a piece,
 * with one thread for each chain. The other threads load the data in advance, and do the work that depends on no chain. */

#define SPAN_PRIME_1    UINT64_C(0x9E3779B185EBCA87)
#define SPAN_PRIME_2    UINT64_C(0xC2B2AE3D27D4EB4F)
#define SPAN_PRIME_3    UINT64_C(0x165667B19E3779F9)
#define SPAN_PRIME_4    UINT64_C(0x85EBCA77C2B2AE63)
#define SPAN_PRIME_5    UINT64_C(0x27D4EB2F165667C5)
#define SPAN_TILE_WORDS 2048u
#define SPAN_CHAINS     4u
#define SPAN_LOADERS    32u /* threads from this index on load data; threads 0 to 31, one warp, compute the chains */

WEFT_DEVICE_CALL uint64_t span_turn(uint64_t v, uint32_t by)
{
    return v << by | v >> (64 - by);
}

WEFT_DEVICE_CALL uint64_t span_hash_step(uint64_t acc, uint64_t word_times_prime_2)
{
    return span_turn(acc + word_times_prime_2, 31) * SPAN_PRIME_1;
}

WEFT_DEVICE_CALL uint64_t span_hash_end(const uint64_t *v, uint64_t total, const uint8_t *rest, uint32_t len)
{
    uint64_t h = v[2] + SPAN_PRIME_5; /* right if total < 32: no full round has changed v[2], which is still the seed, 0 */
    if (total >= 32) {
        h = span_turn(v[0], 1) + span_turn(v[1], 7) + span_turn(v[2], 12) + span_turn(v[3], 18);
        for (uint32_t i = 0; i < 4; i++)
            h = (h ^ span_hash_step(0, v[i] * SPAN_PRIME_2)) * SPAN_PRIME_1 + SPAN_PRIME_4;
    }
    h += total;
    for (; len >= 8; rest += 8, len -= 8)
        h = span_turn(h ^ span_hash_step(0, *(const uint64_t *)(const void *)rest * SPAN_PRIME_2), 27) * SPAN_PRIME_1 + SPAN_PRIME_4;
    if (len >= 4) {
        h = span_turn(h ^ *(const uint32_t *)(const void *)rest * SPAN_PRIME_1, 23) * SPAN_PRIME_2 + SPAN_PRIME_3;
        rest += 4;
        len -= 4;
    }
    for (; len; rest++, len--)
        h = span_turn(h ^ *rest * SPAN_PRIME_5, 11) * SPAN_PRIME_1;
    h = (h ^ h >> 33) * SPAN_PRIME_2;
    h = (h ^ h >> 29) * SPAN_PRIME_3;
    return h ^ h >> 32;
}

SPAN_KERNEL(span_hash)
{
    SPAN_SHARED uint64_t tile[2][SPAN_TILE_WORDS], acc[SPAN_CHAINS];
    const uint64_t *word = (const uint64_t *)(const void *)c.bytes;
    uint32_t words = c.len / 32 * 4;
    SPAN_EACH (t) {
        if (t < SPAN_CHAINS)
            acc[t] = !c.first ? c.state[t] : t == 0 ? SPAN_PRIME_1 + SPAN_PRIME_2 : t == 1 ? SPAN_PRIME_2 : t == 2 ? 0 : 0 - SPAN_PRIME_1;
        for (uint32_t i = t; i < span_least(words, SPAN_TILE_WORDS); i += SPAN_THREADS)
            tile[0][i] = word[i] * SPAN_PRIME_2;
    }
    for (uint32_t at = 0, now = 0; at < words; at += SPAN_TILE_WORDS, now ^= 1) {
        uint32_t n = span_least(words - at, SPAN_TILE_WORDS), after = at + n, more = span_least(words - after, SPAN_TILE_WORDS);
        SPAN_SYNC();
        SPAN_EACH (t)
            if (t < SPAN_CHAINS) {
                uint64_t v = acc[t];
                for (uint32_t i = t; i < n; i += SPAN_CHAINS)
                    v = span_hash_step(v, tile[now][i]);
                acc[t] = v;
            } else if (t >= SPAN_LOADERS) {
                for (uint32_t i = t - SPAN_LOADERS; i < more; i += SPAN_THREADS - SPAN_LOADERS)
                    tile[now ^ 1][i] = word[after + i] * SPAN_PRIME_2;
            }
    }
    SPAN_SYNC();
    SPAN_EACH (t) {
        if (t < SPAN_CHAINS)
            c.state[t] = acc[t];
        if (t == 0 && c.last)
            *(uint64_t *)(void *)c.result = span_hash_end(acc, c.total, c.bytes + words * 8, c.len % 32);
    }
}

/* --- grep: a byte for each SPAN_GRAIN bytes, 1 if the text begins in these bytes --- */

WEFT_DEVICE_CALL bool span_text_at(const struct span_chunk *c, uint32_t at)
{
    for (uint32_t i = 0; i < c->text_len; i++)
        if (c->bytes[at + i] != c->text[i])
            return false;
    return true;
}

SPAN_KERNEL(span_grep)
{
    const uint32_t *word = (const uint32_t *)(const void *)c.bytes;
    uint32_t mask = c.text_len < 4 ? (1u << 8 * c.text_len) - 1 : ~0u, first = 0;
    for (uint32_t i = span_least(c.text_len, 4); i-- > 0;)
        first = first << 8 | c.text[i];
    SPAN_EACH (t) {
        uint32_t from = SPAN_BLOCK * SPAN_BLOCK_BYTES + t * SPAN_GRAIN, to = span_least(from + SPAN_GRAIN, c.len);
        uint32_t most = c.len + c.behind; /* bytes that may be read */
        bool found = false;
        for (uint32_t at = from; at < to && !found; at += 4) {
            uint64_t two = (uint64_t)word[at / 4 + 1] << 32 | word[at / 4];
            for (uint32_t i = 0; i < 4; i++)
                if (((uint32_t)(two >> 8 * i) & mask) == first && at + i < to && at + i + c.text_len <= most)
                    found = found || span_text_at(&c, at + i);
        }
        if (from < to)
            c.result[from / SPAN_GRAIN] = found;
    }
}

#endif
