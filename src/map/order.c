/* SPDX-License-Identifier: MIT
 *
 * Serializes and parses the order: a head, then zero-terminated strings. First come the strings of the kernel (its name, then its file and
 * the GPU, if there are any), or the words of the command. Then come the names of the inputs, then map_order.serve.
 */
#include "map/order.h"

#include <stdlib.h>
#include <string.h>

#include "map/map.h"

struct head {
    char magic[8];
    uint32_t bytes;                                                /* length of all strings behind this head */
    uint32_t slots, retries, inputs, names, argc, literal, kernel; /* literal: 0 or 1; kernel: number of strings for the kernel, 0 to 2 */
    int64_t timeout_ns, lease_ns;
    uint64_t given, tallies;
    uint32_t gpu, served; /* gpu: 0 or 1 */
};
static const char order_magic[8] = {'w', 'e', 'f', 't', 'm', 'a', 'p', '3'};

static void put(char **at, const char *text)
{
    size_t n = strlen(text) + 1;
    memcpy(*at, text, n);
    *at += n;
}

int map_order_write(const struct map_order *o, void **out, size_t *len)
{
    uint64_t bytes = (o->kernel ? strlen(o->kernel) + 1 : 0) + (o->kernel && o->kernel_file ? strlen(o->kernel_file) + 1 : 0) +
                     (o->kernel && o->gpu ? strlen(o->gpu) + 1 : 0);
    for (uint32_t i = 0; i < o->argc; i++)
        bytes += strlen(o->argv[i]) + 1;
    for (uint32_t i = 0; i < o->names; i++)
        bytes += strlen(o->name[i]) + 1;
    for (uint32_t i = 0; i < o->served; i++)
        bytes += strlen(o->serve[i]) + 1;
    if (bytes > MAP_ORDER_MAX - sizeof(struct head))
        return base_fail(-E2BIG,
                         "the command and the names of the files have %llu bytes, too many for nodes on other hosts: name fewer files",
                         (unsigned long long)bytes);
    struct head h = {.bytes = (uint32_t)bytes,
                     .slots = o->slots,
                     .retries = o->retries,
                     .inputs = o->inputs,
                     .names = o->names,
                     .argc = o->argc,
                     .literal = o->literal,
                     .kernel = !o->kernel       ? 0
                               : o->kernel_file ? 2
                                                : 1,
                     .timeout_ns = o->timeout_ns,
                     .lease_ns = o->lease_ns,
                     .given = o->given,
                     .tallies = o->tallies,
                     .gpu = o->kernel && o->gpu,
                     .served = o->served};
    memcpy(h.magic, order_magic, sizeof h.magic);
    *len = sizeof h + bytes;
    char *at = *out = malloc(*len);
    if (!at)
        return base_fail(-ENOMEM, "no memory for the description of the job" BASE_MEMORY_HINT);
    memcpy(at, &h, sizeof h);
    at += sizeof h;
    if (o->kernel)
        put(&at, o->kernel);
    if (o->kernel && o->kernel_file)
        put(&at, o->kernel_file);
    if (h.gpu)
        put(&at, o->gpu);
    for (uint32_t i = 0; i < o->argc; i++)
        put(&at, o->argv[i]);
    for (uint32_t i = 0; i < o->names; i++)
        put(&at, o->name[i]);
    for (uint32_t i = 0; i < o->served; i++)
        put(&at, o->serve[i]);
    return 0;
}

static char *order_take(char *at, char **list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        list[i] = at;
        at += strlen(at) + 1;
    }
    return at;
}

int map_order_read(struct map_order *o, char *bytes, size_t len)
{
    struct head h;
    *o = (struct map_order){0};
    if (len < sizeof h)
        return base_fail(-EPROTO, "the description of the job from node 0 has only %zu bytes; run the same version of weft on all hosts",
                         len);
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, order_magic, sizeof h.magic) != 0)
        return base_fail(-EPROTO,
                         "the description of the job from node 0 is of another version; run the same version of weft on all hosts");
    uint64_t strings = 0;
    char *text = bytes + sizeof h;
    for (size_t i = 0; i < len - sizeof h; i++)
        strings += text[i] == '\0';
    if (h.bytes != len - sizeof h || strings != (uint64_t)h.kernel + h.gpu + h.argc + h.names + h.served ||
        (h.bytes && text[h.bytes - 1] != '\0') || h.kernel > 2 || h.gpu > (h.kernel != 0) || (h.served && h.served != h.inputs) ||
        h.literal > 1 || (h.kernel ? h.argc != 0 : h.argc == 0) || h.slots > MAP_SLOTS_MAX || h.inputs == 0 ||
        (h.names && h.names != h.inputs) || h.timeout_ns < 0 || h.lease_ns <= 0)
        return base_fail(-EPROTO, "the description of the job from node 0 is invalid; run the same version of weft on all hosts");
    o->argv = calloc((size_t)h.argc + 1, sizeof *o->argv);
    o->name = h.names ? calloc(h.names, sizeof *o->name) : NULL;
    o->serve = h.served ? calloc(h.served, sizeof *o->serve) : NULL;
    if (!o->argv || (h.names && !o->name) || (h.served && !o->serve)) {
        map_order_free(o);
        return base_fail(-ENOMEM, "no memory for the description of the job from node 0" BASE_MEMORY_HINT);
    }
    char *kernel[2] = {NULL, NULL}, *gpu = NULL;
    text = order_take(text, kernel, h.kernel);
    text = order_take(text, &gpu, h.gpu);
    text = order_take(text, o->argv, h.argc);
    text = order_take(text, o->name, h.names);
    order_take(text, o->serve, h.served);
    o->kernel = kernel[0];
    o->kernel_file = kernel[1];
    o->gpu = gpu;
    o->slots = h.slots;
    o->retries = h.retries;
    o->inputs = h.inputs;
    o->names = h.names;
    o->served = h.served;
    o->argc = h.argc;
    o->literal = h.literal;
    o->timeout_ns = h.timeout_ns;
    o->lease_ns = h.lease_ns;
    o->given = h.given;
    o->tallies = h.tallies;
    return 0;
}

void map_order_free(struct map_order *o)
{
    free(o->argv);
    free(o->name);
    free(o->serve);
    *o = (struct map_order){0};
}
