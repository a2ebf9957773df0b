/* SPDX-License-Identifier: MIT
 *
 * Implements gpus.h by setting CUDA_VISIBLE_DEVICES, which CUDA's runtime obeys in every program.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli/gpus.h"

#define GPUS_MOST 64u

/* List the names of this machine's GPUs, in the form of CUDA_VISIBLE_DEVICES. The names point into `text`. */
static uint32_t gpus_find(char *text, size_t room, const char *names[GPUS_MOST])
{
    const char *set = getenv("CUDA_VISIBLE_DEVICES");
    size_t len = 0;
    if (set) {
        len = (size_t)snprintf(text, room, "%s", set);
    } else {
        DIR *dev = opendir("/dev");
        uint32_t count = 0;
        for (struct dirent *e; dev && (e = readdir(dev));)
            count += strncmp(e->d_name, "nvidia", 6) == 0 && isdigit((unsigned char)e->d_name[6]);
        if (dev)
            closedir(dev);
        text[0] = '\0';
        for (uint32_t i = 0; i < count && i < GPUS_MOST && len < room; i++)
            len += (size_t)snprintf(text + len, room - len, "%s%u", i ? "," : "", i);
    }
    uint32_t n = 0;
    char *rest = len < room ? text : NULL;
    for (char *name; rest && n < GPUS_MOST && (name = strsep(&rest, ","));)
        if (name[0])
            names[n++] = name;
    return n;
}

int gpus_give(uint32_t each, uint32_t place, char out[GPUS_ROOM])
{
    char text[4096];
    const char *names[GPUS_MOST];
    uint32_t n = gpus_find(text, sizeof text, names);
    if (n == 0)
        return base_fail(
            -ENODEV, "--gpus %u: this machine has no NVIDIA GPU that nodes may use (/dev/nvidia0, CUDA_VISIBLE_DEVICES); leave out --gpus",
            each);
    if (each > n)
        return base_fail(-ENODEV, "--gpus %u: this machine has only %u GPU%s that nodes may use; give a smaller number, or see `weft gpus`",
                         each, n, n == 1 ? "" : "s");
    size_t len = (size_t)snprintf(out, GPUS_ROOM, "%s", GPUS_VISIBLE);
    for (uint32_t i = 0; i < each && len < GPUS_ROOM; i++)
        len += (size_t)snprintf(out + len, GPUS_ROOM - len, "%s%s", i ? "," : "", names[((uint64_t)place * each + i) % n]);
    return len < GPUS_ROOM ? 0
                           : base_fail(-ENODEV, "--gpus %u: the names of the GPUs are too long to pass on; give a smaller number", each);
}

int gpus_give_asked(const char *asked, char out[GPUS_ROOM])
{
    unsigned each, place;
    char end;
    if (sscanf(asked, "%4u:%4u%c", &each, &place, &end) != 2 || each == 0)
        return base_fail(-EINVAL, "the launcher sent an invalid assignment of GPUs; run the same version of weft on all hosts");
    return gpus_give(each, place, out);
}
