/* SPDX-License-Identifier: MIT
 *
 * Lists the GPUs of all back ends, and finds a GPU by its name.
 */
#include "gpu/gpu.h"

#include <stdio.h>

static const struct gpu_backend *const backends[] = {&gpu_cuda, &gpu_metal, &gpu_unusable, &gpu_host}; /* best first */

void gpu_name_of(const struct gpu_backend *b, uint32_t index, char *out, size_t room)
{
    if (b == &gpu_host)
        snprintf(out, room, "%s", b->name);
    else if (!out[0])
        snprintf(out, room, "%s:%u", b->name, index);
}

/* Finds the GPU with that number, counted over all back ends. Returns NULL if there is no such GPU. */
static const struct gpu_backend *gpu_find(uint32_t number, uint32_t *index, weft_gpu_info *info)
{
    for (size_t k = 0; k < sizeof backends / sizeof *backends; k++)
        for (uint32_t i = 0;; i++) {
            *info = (weft_gpu_info){0};
            if (!backends[k]->look(i, info))
                break;
            gpu_name_of(backends[k], i, info->name, sizeof info->name);
            if (number-- == 0) {
                *index = i;
                return backends[k];
            }
        }
    return NULL;
}

int weft_gpu_look(uint32_t index, weft_gpu_info *out, size_t bytes)
{
    weft_gpu_info info;
    uint32_t i;
    if (!gpu_find(index, &i, &info))
        return base_fail(-ENOENT, "there is no GPU number %u: `weft gpus` lists them", index);
    base_give_struct(out, bytes, &info, sizeof info);
    return 0;
}

int gpu_choose(const char *name, const struct gpu_backend **backend, uint32_t *index)
{
    weft_gpu_info info;
    char all[256] = "";
    size_t len = 0;
    for (uint32_t n = 0; (*backend = gpu_find(n, index, &info)); n++) {
        if (name ? !strcmp(name, info.name) : info.usable)
            return info.usable
                       ? 0
                       : base_fail(-ENODEV, "GPU %s is not usable: %s%s%s", info.name, info.why, info.remedy[0] ? "; " : "", info.remedy);
        if (len < sizeof all)
            len += (size_t)snprintf(all + len, sizeof all - len, "%s%s", len ? ", " : "", info.name);
    }
    for (size_t k = 0; k < sizeof backends / sizeof *backends; k++)
        if (backends[k]->why && !strncmp(name, backends[k]->name, strlen(backends[k]->name)) && !backends[k]->look(0, &info))
            return base_fail(-ENODEV, "GPU %s cannot be used: %s", name, backends[k]->why());
    return base_fail(-ENODEV, "there is no GPU %s; there are: %s", name, all);
}
