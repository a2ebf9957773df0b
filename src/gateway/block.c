/* SPDX-License-Identifier: MIT
 *
 * The data of a request that starts a program: limits, then strings (directory, program, arguments, environment), each ending with a zero
 * byte. Data from another node is checked here before it is used.
 */
#include "gateway/gateway.h"

#include <stdlib.h>
#include <string.h>

/* --- reading --- */

static int block_wrong(const char *what)
{
    return base_fail(-EINVAL, "the request to start a program is invalid: %s; weft_spawn() makes valid ones", what);
}

static int check_flags(const weft_request *q)
{
    bool excluded =
        (q->flags & WEFT_SPAWN_STDIN && q->flags & WEFT_SPAWN_STDIN_DATA) ||
        (q->flags & WEFT_SPAWN_STDERR && q->flags & WEFT_SPAWN_STDERR_TO_STDOUT) ||
        (q->flags & WEFT_SPAWN_TERMINAL && q->flags & (WEFT_SPAWN_STDERR | WEFT_SPAWN_STDERR_TO_STDOUT | WEFT_SPAWN_STDIN_DATA));
    if (q->flags & ~WEFT_SPAWN_FLAGS)
        return base_fail(-EINVAL, "the request to start a program has unknown flags (%#x): leave them out", q->flags & ~WEFT_SPAWN_FLAGS);
    if (excluded)
        return base_fail(-EINVAL, "the request to start a program has flags (%#x) that cannot be used together: see weft_spawn_spec(3)",
                         q->flags);
    if (q->arg[2] > INT64_MAX)
        return base_fail(-EINVAL, "the request to start a program has a time limit of %llu ns: at most %lld ns are possible",
                         (unsigned long long)q->arg[2], (long long)INT64_MAX);
    if (q->arg[12] > UINT32_MAX)
        return base_fail(-EINVAL, "the request to start a program gives a terminal of more than 65535 rows or columns: make it smaller");
    if (q->arg[12] && !(q->flags & WEFT_SPAWN_TERMINAL))
        return base_fail(-EINVAL, "the request to start a program gives a terminal's size, but no WEFT_SPAWN_TERMINAL: add this flag");
    return 0;
}

static int read_limits(struct gateway_block *out, const weft_request *r, const uint8_t **at, uint64_t *left)
{
    if (r->arg[1] > WEFT_LIMITS || r->arg[1] * sizeof out->limits[0] > *left)
        return block_wrong("it sets more limits than there are kinds of limit, or its data is too short for these limits");
    out->limit_count = (uint32_t)r->arg[1];
    if (!out->limit_count) /* `*at` may be NULL */
        return 0;
    uint64_t bytes = out->limit_count * sizeof out->limits[0];
    memcpy(out->limits, *at, bytes);
    for (uint32_t i = 0; i < out->limit_count; i++)
        if (out->limits[i].what == 0 || out->limits[i].what > WEFT_LIMITS || out->limits[i].zero)
            return block_wrong("it names a limit that does not exist");
    *at += bytes;
    *left -= bytes;
    return 0;
}

/* The next string. Returns NULL if the string does not end within the data. */
static const char *next_text(const uint8_t **at, uint64_t *left)
{
    const char *text = (const char *)*at;
    const uint8_t *end = *left ? memchr(*at, 0, *left) : NULL;
    if (!end)
        return NULL;
    *left -= (uint64_t)(end + 1 - *at);
    *at = end + 1;
    return text;
}

static bool next_texts(char **out, uint32_t count, const uint8_t **at, uint64_t *left)
{
    for (uint32_t i = 0; i < count; i++)
        if (!(out[i] = (char *)(uintptr_t)next_text(at, left)))
            return false;
    out[count] = NULL;
    return true;
}

int gateway_block_read(struct gateway_block *out, const weft_request *r, const uint8_t *data)
{
    uint64_t left = data ? r->data_bytes : 0;
    const uint8_t *at = data;
    *out = (struct gateway_block){.argc = (uint32_t)r->arg[0], .envc = (uint32_t)(r->arg[0] >> 32)};
    int rc = check_flags(r);
    if (!rc)
        rc = read_limits(out, r, &at, &left);
    if (rc)
        return rc;
    if ((uint64_t)out->argc + out->envc + 2 > left)
        return block_wrong("it counts more strings than its data can hold");
    out->program = next_text(&at, &left);
    out->directory = out->program ? next_text(&at, &left) : NULL;
    if (!out->directory || !out->program[0])
        return block_wrong("it names no program, or a string has no end");
    char **texts = calloc((size_t)out->argc + out->envc + 3, sizeof *texts);
    if (!texts)
        return base_fail(-ENOMEM, "no memory for the %u arguments of '%s'" BASE_MEMORY_HINT, out->argc, out->program);
    out->memory = texts;
    out->argv = texts;
    out->env = texts + (out->argc ? out->argc : 1) + 1;
    if (!next_texts(out->argv, out->argc, &at, &left) || !next_texts(out->env, out->envc, &at, &left) || left) {
        gateway_block_clear(out);
        return block_wrong("a string has no end, or bytes follow the last string");
    }
    if (!out->argc)
        out->argv[0] = (char *)(uintptr_t)out->program;
    for (uint32_t i = 0; i < out->envc; i++)
        if (!out->env[i][0] || out->env[i][0] == '=') {
            gateway_block_clear(out);
            return block_wrong("a variable of the environment has no name");
        }
    return 0;
}

void gateway_block_clear(struct gateway_block *b)
{
    free(b->memory);
    b->memory = NULL;
}

/* --- the environment --- */

struct variable {
    char *text;
    size_t name; /* length of the variable's name in `text` */
    uint32_t order;
};

static int compare_names(const struct variable *a, const struct variable *b)
{
    int c = memcmp(a->text, b->text, a->name < b->name ? a->name : b->name);
    return c ? c : a->name < b->name ? -1 : a->name > b->name;
}

static int compare_variables(const void *a, const void *b)
{
    const struct variable *x = a, *y = b;
    int c = compare_names(x, y);
    return c ? c : x->order < y->order ? -1 : 1;
}

static int compare_names_only(const void *a, const void *b)
{
    return compare_names(a, b);
}

char **gateway_environment(char *const *base, char *const *changes)
{
    size_t had = 0, count = 0, n = 0;
    while (base && base[had])
        had++;
    while (changes[count])
        count++;
    char **env = malloc((had + count + 1) * sizeof *env);
    struct variable *v = malloc((count + 1) * sizeof *v);
    if (!env || !v) {
        free(env);
        free(v);
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        v[i] = (struct variable){changes[i], strcspn(changes[i], "="), (uint32_t)i};
    qsort(v, count, sizeof *v, compare_variables);
    for (size_t i = 0; i < had; i++) {
        struct variable one = {base[i], strcspn(base[i], "="), 0};
        if (!bsearch(&one, v, count, sizeof *v, compare_names_only))
            env[n++] = base[i];
    }
    for (size_t i = 0; i < count; i++) {
        bool later = i + 1 < count && compare_names(&v[i], &v[i + 1]) == 0;
        if (!later && v[i].text[v[i].name]) /* if a name occurs more than once, the last change counts */
            env[n++] = v[i].text;
    }
    env[n] = NULL;
    free(v);
    return env;
}

/* --- writing --- */

static uint64_t texts_bytes(const char *const *texts, uint32_t *count)
{
    uint64_t bytes = 0;
    for (*count = 0; texts && texts[*count]; ++*count)
        bytes += strlen(texts[*count]) + 1;
    return bytes;
}

static uint8_t *put_text(uint8_t *at, const char *text)
{
    size_t n = strlen(text) + 1;
    memcpy(at, text, n);
    return at + n;
}

static int check_spec(const weft_spawn_spec *s)
{
    if (!s->program || !s->program[0])
        return base_fail(-EINVAL, "weft_spawn(): the specification names no program: set its field `program`");
    if (s->limit_count > WEFT_LIMITS)
        return base_fail(-EINVAL, "weft_spawn() of '%s': `limit_count` is %u: give at most %u limits", s->program, s->limit_count,
                         (unsigned)WEFT_LIMITS);
    if (s->limit_count && !s->limits)
        return base_fail(-EINVAL, "weft_spawn() of '%s': `limit_count` is %u, but `limits` is NULL: set both", s->program, s->limit_count);
    if (s->flags & ~WEFT_SPAWN_FLAGS)
        return base_fail(-EINVAL, "weft_spawn() of '%s': `flags` has unknown flags (%#x): leave them out", s->program,
                         s->flags & ~WEFT_SPAWN_FLAGS);
    if (s->zero)
        return base_fail(-EINVAL, "weft_spawn() of '%s': the field `zero` must be 0", s->program);
    if (s->time_limit_ns < 0)
        return base_fail(-EINVAL, "weft_spawn() of '%s': the time limit is negative (%lld ns); 0 means no limit", s->program,
                         (long long)s->time_limit_ns);
    for (uint32_t i = 0; s->env && s->env[i]; i++)
        if (!s->env[i][0] || s->env[i][0] == '=')
            return base_fail(-EINVAL, "weft_spawn() of '%s': the environment's entry '%s' has no name: write NAME=VALUE", s->program,
                             s->env[i]);
    return 0;
}

int gateway_block_write(const weft_spawn_spec *spec, weft_request *r, uint8_t **data)
{
    uint32_t argc, envc;
    int rc = check_spec(spec);
    if (rc)
        return rc;
    const char *directory = spec->directory ? spec->directory : "";
    uint64_t limits = spec->limit_count * sizeof(weft_process_limit);
    uint64_t bytes =
        limits + strlen(spec->program) + strlen(directory) + 2 + texts_bytes(spec->argv, &argc) + texts_bytes(spec->env, &envc);
    if (bytes > WEFT_REQUEST_DATA_MAX)
        return base_fail(
            -E2BIG,
            "weft_spawn() of '%s': its arguments and environment have %llu bytes, but at most %u are possible: pass large data in a file",
            spec->program, (unsigned long long)bytes, WEFT_REQUEST_DATA_MAX);
    uint8_t *at = malloc(bytes);
    if (!at)
        return base_fail(-ENOMEM, "no memory for the arguments of '%s'" BASE_MEMORY_HINT, spec->program);
    *data = at;
    if (limits)
        memcpy(at, spec->limits, limits);
    at = put_text(put_text(at + limits, spec->program), directory);
    for (uint32_t i = 0; i < argc; i++)
        at = put_text(at, spec->argv[i]);
    for (uint32_t i = 0; i < envc; i++)
        at = put_text(at, spec->env[i]);
    r->flags = spec->flags;
    r->data_bytes = bytes;
    r->arg[0] = argc | (uint64_t)envc << 32;
    r->arg[1] = spec->limit_count;
    r->arg[2] = (uint64_t)spec->time_limit_ns;
    r->arg[3] = spec->stdin_data;
    r->arg[4] = spec->stdin_bytes;
    r->arg[5] = spec->stdout_ring;
    r->arg[6] = spec->stderr_ring;
    r->arg[12] = spec->terminal_rows | (uint64_t)spec->terminal_columns << 16;
    return 0;
}
