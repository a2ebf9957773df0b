/* SPDX-License-Identifier: MIT
 *
 * A node that lies: it writes wrong values into the memory of other nodes, or sends them. Every node may write to every pool, and may send
 * anything. So a record that another node reads from a pool, or gets by message, may hold any bytes. lie_about() takes a correct record and
 * hands it to the test with one field wrong at a time, for each field and each of many values, and also truncated. The test's function
 * `tell` puts it where others read it, or sends it.
 *
 *     static const struct lie_field FIELDS[] = {LIE_FIELD(struct request, length), LIE_FIELD(struct request, name)};
 *     lie_about(&truth, sizeof truth, FIELDS, LIE_COUNT(FIELDS), tell, arg);
 *
 * The other nodes must withstand all lies: no crash, no write outside their memory (the tests also run with the address sanitizer), no call
 * that outlasts its time-out, no unbounded memory; and honest nodes can go on together after the liar has gone. test_liar.c is the example.
 *
 * At the end of this file: one liar and two honest nodes, and what they share.
 */
#ifndef WEFT_LIAR_H
#define WEFT_LIAR_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "cluster_test.h"

struct lie_field {
    const char *name;
    size_t offset, bytes;
};
#define LIE_FIELD(record, field)                                      \
    {                                                                 \
#field, offsetof(record, field), sizeof(((record *)0)->field) \
    }
#define LIE_COUNT(fields) (sizeof(fields) / sizeof((fields)[0]))

/* `what` describes the lie, for a failure's message. */
typedef void (*lie_fn)(const void *record, size_t bytes, const char *what, void *arg);

#define LIE_RECORD_MAX 4096u

/* Small counts and their neighbours, powers of two, negative numbers, and numbers that wrap when something is added. */
static const uint64_t LIE_VALUES[] = {
    0,
    1,
    2,
    3,
    5,
    7,
    8,
    9,
    16,
    63,
    64,
    127,
    128,
    255,
    256,
    1023,
    1024,
    4095,
    4096,
    4097,
    32767,
    32768,
    65535,
    65536,
    1u << 20,
    1u << 30,
    INT32_MAX,
    1u << 31,
    UINT32_MAX - 7,
    UINT32_MAX - 1,
    UINT32_MAX,
    UINT64_C(1) << 32,
    (UINT64_C(1) << 32) + 1,
    UINT64_C(1) << 36,
    UINT64_C(1) << 43,
    (UINT64_C(1) << 44) - 8,
    UINT64_C(1) << 44,
    UINT64_C(1) << 48,
    UINT64_C(1) << 52,
    INT64_MAX,
    UINT64_C(1) << 63,
    UINT64_MAX - 4095,
    UINT64_MAX - 63,
    UINT64_MAX - 7,
    UINT64_MAX - 1,
    UINT64_MAX,
};

static inline void lie_number(uint8_t *record, size_t bytes, const struct lie_field *f, uint64_t value, lie_fn tell, void *arg)
{
    char what[96];
    uint8_t kept[sizeof value];
    memcpy(kept, record + f->offset, f->bytes);
    memcpy(record + f->offset, &value, f->bytes); /* little-endian, like all machines that weft runs on */
    snprintf(what, sizeof what, "%s = %#llx", f->name, (unsigned long long)value);
    tell(record, bytes, what, arg);
    memcpy(record + f->offset, kept, f->bytes);
}

/* A name or a payload: all bytes equal, so that text has no end. */
static inline void lie_bytes(uint8_t *record, size_t bytes, const struct lie_field *f, int byte, lie_fn tell, void *arg)
{
    static uint8_t kept[LIE_RECORD_MAX];
    char what[96];
    memcpy(kept, record + f->offset, f->bytes);
    memset(record + f->offset, byte, f->bytes);
    snprintf(what, sizeof what, "%s full of %#x", f->name, (unsigned)byte);
    tell(record, bytes, what, arg);
    memcpy(record + f->offset, kept, f->bytes);
}

static inline void lie_about_field(uint8_t *record, size_t bytes, const struct lie_field *f, lie_fn tell, void *arg)
{
    if (f->bytes > sizeof(uint64_t)) {
        lie_bytes(record, bytes, f, 0, tell, arg);
        lie_bytes(record, bytes, f, 'A', tell, arg);
        lie_bytes(record, bytes, f, 0xff, tell, arg);
        return;
    }
    uint64_t truth = 0;
    memcpy(&truth, record + f->offset, f->bytes);
    for (size_t i = 0; i < LIE_COUNT(LIE_VALUES); i++)
        if (f->bytes == 8 || LIE_VALUES[i] < UINT64_C(1) << 8 * f->bytes)
            lie_number(record, bytes, f, LIE_VALUES[i], tell, arg);
    for (size_t bit = 0; bit < 8 * f->bytes; bit++)
        lie_number(record, bytes, f, truth ^ UINT64_C(1) << bit, tell, arg);
    for (uint64_t step = 1; step <= 64; step *= 8) {
        lie_number(record, bytes, f, truth + step, tell, arg);
        lie_number(record, bytes, f, truth - step, tell, arg);
    }
}

static inline void lie_about(const void *truth, size_t bytes, const struct lie_field *fields, size_t count, lie_fn tell, void *arg)
{
    static uint8_t record[LIE_RECORD_MAX];
    memcpy(record, truth, bytes);
    for (size_t i = 0; i < count; i++)
        lie_about_field(record, bytes, &fields[i], tell, arg);
    for (size_t cut = 0; cut < bytes; cut = cut ? cut * 2 : 1) {
        char what[64];
        snprintf(what, sizeof what, "cut to %zu of %zu bytes", bytes - 1 - cut, bytes);
        tell(record, bytes - 1 - cut, what, arg);
    }
}

enum { LIAR = 2, NODES = 3 };

struct told {
    _Atomic uint32_t here, over, met[3]; /* met: counts the honest nodes that meet later */
    _Atomic weft_gaddr cut_short;        /* errors that only messages of a wrong length cause */
    char what[96];                       /* the last lie */
    _Atomic uint32_t lies;
};

static inline void note(struct told *t, const char *what)
{
    snprintf(t->what, sizeof t->what, "%s", what);
    atomic_fetch_add(&t->lies, 1);
}

/* The result. If an honest node failed, the last lie is the one to look at. */
static inline void run_with_liar(node_fn fn)
{
    struct told *t = shared_words(4096);
    int failed = nodes_failed_with(NODES, fn, t, (const char *const[]){"WEFT_LOG=error", "WEFT_DEADLINE=10s", NULL});
    if (failed)
        fprintf(stderr, "the last of %u lies: %s\n", t->lies, t->what);
    assert_int_equal(failed, 0);
    assert_true(t->lies > 100);
}

/* A word that other nodes read, and the way in which the liar writes it. */
struct word_to {
    weft_node *w;
    struct told *t;
    weft_gaddr at;
    int (*set)(weft_node *w, weft_gaddr at, uint64_t value);
    useconds_t pause; /* time for the honest nodes to read it */
};

static inline void tell_word(const void *record, size_t bytes, const char *what, void *arg)
{
    struct word_to *to = arg;
    uint64_t value;
    if (bytes != sizeof value)
        return;
    memcpy(&value, record, sizeof value);
    note(to->t, what);
    OK(to->set(to->w, to->at, value));
    usleep(to->pause);
}

static inline void lie_about_word(struct word_to *to, uint64_t truth)
{
    const struct lie_field word = {"word", 0, sizeof truth};
    lie_about(&truth, sizeof truth, &word, 1, tell_word, to);
}

#endif
