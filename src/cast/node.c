/* SPDX-License-Identifier: MIT
 *
 * One node of a cast, from its start to its end. Node 0 has the settings, and sends them to all other nodes.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cast/cast.h"

#define JOIN_WORDS 5u

/* --- messages --- */

/* Copy and check a message's header. Returns false if the header is invalid. */
static bool word_take(struct cast_word *out, const void *header, size_t header_bytes, size_t payload_bytes)
{
    if (header_bytes != sizeof *out)
        return false;
    memcpy(out, header, sizeof *out);
    return cast_word_fits(out, header_bytes, payload_bytes);
}

static void on_target_word(weft_node *w, uint32_t from, const void *header, size_t header_bytes, const void *payload, size_t payload_bytes,
                           void *arg)
{
    struct cast *c = arg;
    struct cast_word word;
    (void)w;
    if (!word_take(&word, header, header_bytes, payload_bytes) || cast_handler_of(word.kind) != CAST_TARGET_HANDLER)
        return;
    pthread_mutex_lock(&c->lock);
    if (!c->config.memory || from != c->config.head.source) {
        /* ignored: only the source may send messages to targets */
    } else if (word.kind == CAST_QUIT) {
        c->quit = true;
    } else if (word.round > c->wanted_round) {
        c->wanted_round = word.round;
        c->send_list = word.a != 0;
        c->verify = word.b != 0;
        c->chain_count = (uint32_t)(payload_bytes / sizeof *c->chain);
        memcpy(c->chain, payload, payload_bytes);
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void on_word(weft_node *w, uint32_t from, const void *header, size_t header_bytes, const void *payload, size_t payload_bytes,
                    void *arg)
{
    struct cast *c = arg;
    struct cast_word word;
    (void)w;
    if (!word_take(&word, header, header_bytes, payload_bytes))
        return;
    pthread_mutex_lock(&c->lock);
    const bool ready = c->config.memory; /* the settings do not change after this */
    pthread_mutex_unlock(&c->lock);
    if (!ready)
        return;
    if (cast_handler_of(word.kind) == CAST_SOURCE_HANDLER && c->source)
        cast_source_word(c, from, &word, payload, payload_bytes);
    else if (cast_handler_of(word.kind) == CAST_SHOW_HANDLER && c->show)
        cast_show_word(c, from, &word, payload, payload_bytes);
}

static void on_member(weft_node *w, uint64_t epoch, uint32_t node, bool died, void *arg)
{
    struct cast *c = arg;
    (void)w, (void)epoch, (void)node, (void)died;
    pthread_mutex_lock(&c->lock);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* --- joining --- */

static int take_memory(struct cast *c, weft_gaddr mine[3])
{
    int rc = weft_alloc_aligned(c->w, CAST_SLOTS * (size_t)CAST_BLOCK, 4096, &mine[0]);
    for (int i = 1; i < 3 && !rc; i++) {
        size_t bytes = CAST_ROUNDS * (i == 1 ? CAST_SLOTS : 1u) * sizeof(uint64_t);
        if (!(rc = weft_alloc(c->w, bytes, &mine[i])))
            memset(weft_ptr(c->w, mine[i], bytes), 0, bytes);
    }
    return rc;
}

/* Node 0 writes the settings into its pool, and the other nodes read them there. */
static int share_config(struct cast *c, const struct cast_config *own, uint64_t words[JOIN_WORDS])
{
    void *data = NULL;
    size_t bytes;
    if (!own)
        return 0;
    int rc = cast_config_write(own, &data, &bytes);
    if (!rc)
        rc = weft_alloc(c->w, bytes, &words[3]);
    if (!rc)
        memcpy(weft_ptr(c->w, words[3], bytes), data, bytes);
    words[4] = bytes;
    free(data);
    return rc;
}

static int take_config(struct cast *c, weft_gaddr at, uint64_t bytes)
{
    struct cast_config config;
    if (bytes > CAST_CONFIG_MAX)
        return base_fail(-EPROTO, "the settings that node 0 has sent are too large; run the same version of weft on all hosts");
    void *data = malloc(bytes + 1);
    if (!data)
        return base_fail(-ENOMEM, "no memory for the settings of the cast" BASE_MEMORY_HINT);
    int rc = weft_get_blocking(c->w, data, at, bytes);
    if (!rc)
        rc = cast_config_parse(&config, data, bytes);
    if (!rc && config.head.size != weft_size(c->w))
        rc = base_fail(-EPROTO,
                       "the settings that node 0 has sent are for a different number of nodes; run the same version of weft on all hosts");
    if (rc) {
        free(data);
        return rc;
    }
    pthread_mutex_lock(&c->lock);
    c->config = config;
    c->config_data = data;
    pthread_mutex_unlock(&c->lock);
    return 0;
}

static int meet(struct cast *c, const struct cast_config *own)
{
    uint64_t words[JOIN_WORDS] = {0};
    uint32_t size = weft_size(c->w);
    uint64_t *all = calloc((size_t)size * JOIN_WORDS, sizeof *all);
    c->rings = calloc(3 * (size_t)size, sizeof *c->rings);
    int rc = all && c->rings ? take_memory(c, words) : base_fail(-ENOMEM, "no memory for the tables of %u nodes" BASE_MEMORY_HINT, size);
    if (!rc)
        rc = share_config(c, own, words);
    if (!rc)
        rc = weft_exchange(c->w, words, JOIN_WORDS, all, NULL, WEFT_TIMEOUT_DEFAULT);
    if (!rc) {
        c->filled = c->rings + size;
        c->credits = c->filled + size;
        for (uint32_t i = 0; i < size; i++) {
            c->rings[i] = all[(size_t)i * JOIN_WORDS];
            c->filled[i] = all[(size_t)i * JOIN_WORDS + 1];
            c->credits[i] = all[(size_t)i * JOIN_WORDS + 2];
        }
        rc = take_config(c, all[3], all[4]);
    }
    free(all);
    if (!rc && c->rank == c->config.head.source)
        rc = cast_source_open(c);
    return rc ? rc : weft_barrier(c->w, WEFT_TIMEOUT_DEFAULT); /* messages can be sent when all nodes have installed their handlers */
}

static int cast_open(struct cast *c, const char *sub, int (*stopped)(void))
{
    *c = (struct cast){.sub = sub, .stopped = stopped};
    pthread_mutex_init(&c->lock, NULL);
    base_cond_init(&c->changed);
    signal(SIGPIPE, SIG_IGN);
    int rc = weft_open(&c->w, NULL);
    if (rc)
        return rc;
    c->rank = weft_rank(c->w);
    weft_handle(c->w, CAST_TARGET_HANDLER, on_target_word, c);
    weft_handle(c->w, CAST_SOURCE_HANDLER, on_word, c);
    weft_handle(c->w, CAST_SHOW_HANDLER, on_word, c);
    return weft_on_change(c->w, on_member, c);
}

static void cast_close(struct cast *c)
{
    if (c->w)
        weft_close(c->w);
    cast_source_close(c);
    cast_show_close(c);
    cast_list_free(&c->list);
    cast_config_free(&c->config);
    free(c->config_data);
    free(c->rings);
}

/* --- the nodes --- */

static void *source_thread(void *arg)
{
    cast_source_run(arg);
    return NULL;
}

int cast_lead(const struct cast_options *o)
{
    static struct cast c;
    pthread_t thread;
    bool running = false;
    int status = 1, rc = cast_open(&c, o->sub, o->stopped);
    if (!rc)
        rc = cast_show_open(&c, o->progress, o->printed);
    if (!rc)
        rc = meet(&c, &o->config);
    if (!rc && c.source && (rc = base_thread(&thread, source_thread, &c)) == 0)
        running = true;
    if (!rc)
        status = cast_show_run(&c);
    else if (!o->stopped())
        fprintf(stderr, "weft %s: %s\n", o->sub, base_error());
    c.quit = true;
    if (running)
        pthread_join(thread, NULL);
    if (o->stopped())
        status = 128 + o->stopped();
    cast_close(&c);
    return status;
}

int cast_serve(const char *sub, int (*stopped)(void))
{
    static struct cast c;
    struct cast_beat beat = {.running = false};
    int status = 0, rc = cast_open(&c, sub, stopped);
    umask(077);
    if (!rc)
        rc = meet(&c, NULL);
    if (!rc)
        rc = cast_beat_start(&beat, &c);
    if (rc) {
        fprintf(stderr, "weft %s: %s\n", sub, base_error());
        status = 1;
    } else if (c.source) {
        cast_source_run(&c);
        while (!c.quit && weft_alive(c.w, 0) && !stopped()) /* wait until node 0 has ended */
            base_sleep_ns(WEFT_MS);
    } else {
        status = cast_target_run(&c);
    }
    cast_beat_stop(&beat);
    cast_close(&c);
    return status;
}
