/* SPDX-License-Identifier: MIT
 *
 * Lists of zero-terminated strings in one buffer, as sent over sockets and networks.
 */
#include <string.h>

#include "base/base.h"

uint64_t base_strings_bytes(const char *const *list, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += strlen(list[i]) + 1;
    return bytes;
}

char *base_strings_put(char *at, const char *const *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        size_t n = strlen(list[i]) + 1;
        memcpy(at, list[i], n);
        at += n;
    }
    return at;
}

bool base_strings_fit(const char *at, size_t bytes, uint64_t count)
{
    uint64_t zeros = 0;
    for (size_t i = 0; i < bytes; i++)
        zeros += at[i] == '\0';
    return bytes && at[bytes - 1] == '\0' && zeros == count;
}

const char *base_strings_take(const char *at, const char **list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        list[i] = at;
        at += strlen(at) + 1;
    }
    return at;
}
