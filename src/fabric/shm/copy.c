/* SPDX-License-Identifier: MIT
 *
 * Chooses the way for large copies: see copy.h. The ways are measured on the machine, because no fixed choice is right everywhere, not even
 * for processors with the same features: all of these report fast string moves (FSRM). GB/s between two shared mappings, best of many:
 *                       64 KiB  256 KiB  1 MiB  2 MiB  8 MiB  16 MiB  64 MiB  256 MiB
 *   EPYC (Zen 3), L3 of 32 MiB
 *     memcpy                34       32     33     32     30      15      10       16
 *     rep movsb             33       32     29     29     26      14      18       18
 *     AVX2                  46       42     32     32     30      16      10       10
 *     AVX2 non-temporal     23       24     25     25     25      23      18       18
 *     the same, four pages   5        4      4      4      4       4       4        4
 *   Xeon (Emerald Rapids), L2 of 2 MiB
 *     memcpy                41       41     32     14     13      12      10       12
 *     rep movsb             41       41     32     14     13      13      12        9
 *     AVX2                  41       41     28     14     13      13      12        8
 *     AVX2 non-temporal     17       19     19     19     15      16      14        9
 *     the same, four pages  18       19     18     19     16      16      16       12
 *     AVX-512, four pages   19       20     19     20     17      16      17       13
 *   Zen 5, memcpy / rep movsb / non-temporal: 64 KiB 143/143/49, 1 MiB 66/83/45, 8 MiB 68/73/44, 16 MiB 37/52/42, 64 MiB 20/27/27
 *
 * A size class is measured after several copies, so that a process with few large copies spends no time on measuring. Until then, and if
 * there is no memory to measure with, a guess is used.
 *
 * Copies are measured in private memory, by the thread's processor time, which other programs hardly change. The least of several times
 * counts. The measured time does not include the time of the next reader, who must fetch the data from memory after non-temporal stores. So
 * of two ways that are about equally fast, the one without non-temporal stores is chosen. Below 1 MiB non-temporal ways are not considered,
 * because the destination fits into a core's own cache.
 *
 * Of the non-temporal ways, those that copy four pages in turn are preferred. They are chosen even if they are up to a fifth slower than
 * the other ways at 16 MiB: the class of 16 MiB also has all larger sizes, for which they are faster. On machines where they are bad, they
 * are slower by far more than a fifth.
 */
#include "fabric/shm/copy.h"

#include <stdio.h>
#include <sys/mman.h>

#include "fabric/shm/copy_ways.h"

#define STREAM_LEAST ((size_t)1 << 20)
/* The chosen way is the first of the table that takes at most this percentage of the fastest way's time. */
#define MARGIN       104u
#define ALIKE        120u              /* used instead of MARGIN if both ways are non-temporal */
#define BEHIND       125u              /* a way that takes more than this percentage of the fastest time is not measured in later rounds */
#define SAMPLE       ((size_t)2 << 20) /* the fewest bytes to copy between two readings of the clock */
#define SAMPLES      2u                /* samples of a way in a row; an additional first sample is ignored */
#define ROUNDS       4u                /* rounds over all ways for small classes */
#define ROUNDS_LEAST 2u                /* rounds for large classes */
/* A class is measured when as many bytes were copied as in this number of copies of its smallest size. Measuring takes 2 to 8 ms for sizes
 * up to 2 MiB, and up to 100 ms for 16 MiB. */
#define COPIES_BEFORE 16u

unsigned copy_class(size_t len)
{
    if (len < COPY_LARGE)
        return 0;
    unsigned octave = 63u - (unsigned)__builtin_clzll((unsigned long long)len / COPY_LARGE);
    return octave < COPY_CLASSES ? octave : COPY_CLASSES - 1;
}

size_t copy_class_bytes(unsigned class)
{
    return (size_t)COPY_LARGE << class;
}

unsigned copy_choose(const uint64_t ns[COPY_WAYS_MAX])
{
    unsigned best = 0;
    uint64_t least = 0;
    for (unsigned i = 0; i < COPY_WAYS_MAX; i++)
        if (ns[i] && (!least || ns[i] < least))
            least = ns[i], best = i;
    for (unsigned i = 0; i < best; i++)
        if (ns[i] && ns[i] * 100 <= least * (copy_ways[i].streams && copy_ways[best].streams ? ALIKE : MARGIN))
            return i;
    return best;
}

/* Returns the shortest time for one copy, of several samples. The first sample is ignored, because the way that was measured before has
 * left data in the caches. */
static uint64_t sample(const struct copy_way *way, uint8_t *dst, const uint8_t *src, size_t len)
{
    uint64_t least = UINT64_MAX;
    size_t copies = len < SAMPLE ? SAMPLE / len : 1;
    for (unsigned i = 0; i <= SAMPLES; i++) {
        int64_t start = base_cpu_ns();
        for (size_t k = 0; k < copies; k++)
            way->copy(dst, src, len);
        uint64_t took = (uint64_t)(base_cpu_ns() - start) / copies;
        least = i && took < least ? took : least;
    }
    return least ? least : 1; /* 0 means: not measured */
}

bool copy_measure(unsigned class, uint64_t ns[COPY_WAYS_MAX])
{
    size_t len = copy_class_bytes(class), part = len < STREAM_LEAST ? len : len / 8;
    memset(ns, 0, COPY_WAYS_MAX * sizeof *ns);
    uint8_t *src = mmap(NULL, 2 * len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (src == MAP_FAILED)
        return false;
    uint8_t *dst = src + len;
    memset(src, 1, 2 * len);
    /* First measure each way with a part of the size. A way that takes twice as long as the best way of its kind (ordinary or non-temporal)
     * is not measured further. */
    uint64_t least[2] = {UINT64_MAX, UINT64_MAX};
    for (unsigned i = 0; copy_ways[i].name; i++)
        if (copy_ways[i].works() && (!copy_ways[i].streams || len >= STREAM_LEAST)) {
            ns[i] = sample(&copy_ways[i], dst, src, part);
            uint64_t *of_kind = &least[copy_ways[i].streams];
            *of_kind = ns[i] < *of_kind ? ns[i] : *of_kind;
        }
    bool behind[COPY_WAYS_MAX];
    for (unsigned i = 0; i < COPY_WAYS_MAX; i++) {
        behind[i] = !ns[i] || ns[i] / 2 > least[copy_ways[i].streams];
        ns[i] = 0;
    }
    size_t rounds = ROUNDS * STREAM_LEAST / len;
    for (rounds = rounds < ROUNDS_LEAST ? ROUNDS_LEAST : rounds > ROUNDS ? ROUNDS : rounds; rounds; rounds--) {
        uint64_t best = UINT64_MAX;
        for (unsigned i = 0; copy_ways[i].name; i++)
            if (!behind[i]) {
                uint64_t took = sample(&copy_ways[i], dst, src, len);
                ns[i] = ns[i] && ns[i] < took ? ns[i] : took;
                best = ns[i] < best ? ns[i] : best;
            }
        for (unsigned i = 0; copy_ways[i].name; i++)
            behind[i] = behind[i] || ns[i] > best / 100 * BEHIND;
    }
    munmap(src, 2 * len);
    return true;
}

#if BASE_ADDRESS_SANITIZER || BASE_THREAD_SANITIZER

/* With a sanitizer, use only the C library's memcpy, because sanitizers do not check all of the other ways. */
const struct copy_way *copy_way_for(size_t len)
{
    (void)len;
    return &copy_ways[0];
}

#else

static struct {
    _Atomic(const struct copy_way *) way; /* NULL: not measured yet; relaxed, because it points to constants */
    _Atomic uint64_t bytes;               /* bytes of copies requested so far */
    _Atomic bool measuring;
} classes[COPY_CLASSES];

/* Returns the way to use before there is a measurement: the C library's. For data that does not fit into half of the last-level cache, the
 * last way of the table that works here, because it is bad on no machine. */
static const struct copy_way *guess(size_t len)
{
    uint64_t cache = base_cache_bytes();
    const struct copy_way *way = &copy_ways[0];
    if (len >= (cache ? cache / 2 : (uint64_t)8 << 20))
        for (unsigned i = 1; copy_ways[i].name; i++)
            way = copy_ways[i].works() ? &copy_ways[i] : way;
    return way;
}

static void copy_tell(unsigned class, const uint64_t ns[COPY_WAYS_MAX], const struct copy_way *way)
{
    char text[512] = "", size[32];
    int at = 0;
    for (unsigned i = 0; copy_ways[i].name && at >= 0 && (size_t)at < sizeof text; i++)
        if (ns[i])
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%s %.1f", at ? "; " : "", copy_ways[i].name,
                           (double)copy_class_bytes(class) / (double)ns[i]);
    base_log(BASE_LOG_INFO, "copies of %s and more use %s; measured, in GB/s: %s",
             base_format_bytes(copy_class_bytes(class), size, sizeof size), way->name, text);
}

static BASE_COLD const struct copy_way *not_measured(unsigned class, size_t len)
{
    uint64_t before = atomic_fetch_add_explicit(&classes[class].bytes, len, memory_order_relaxed);
    if (before + len < COPIES_BEFORE * copy_class_bytes(class) ||
        atomic_exchange_explicit(&classes[class].measuring, true, memory_order_relaxed))
        return guess(len); /* too early to measure, or another thread is measuring */
    uint64_t ns[COPY_WAYS_MAX];
    const struct copy_way *way = guess(copy_class_bytes(class));
    if (copy_measure(class, ns)) {
        way = &copy_ways[copy_choose(ns)];
        copy_tell(class, ns, way);
    }
    atomic_store_explicit(&classes[class].way, way, memory_order_relaxed);
    return way;
}

const struct copy_way *copy_way_for(size_t len)
{
    unsigned class = copy_class(len);
    const struct copy_way *way = atomic_load_explicit(&classes[class].way, memory_order_relaxed);
    return BASE_LIKELY(way) ? way : not_measured(class, len);
}

#endif

void copy_large(void *dst, const void *src, size_t len)
{
    copy_way_for(len)->copy(dst, src, len);
}
