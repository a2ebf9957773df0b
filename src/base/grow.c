/* SPDX-License-Identifier: MIT
 *
 * Copies structs of the public interface between versions of the library that have different numbers of fields.
 */
#include "base/base.h"

#include <string.h>

#define BYTES_MAX 4096u /* a larger size means that the struct was not initialised */

int base_take_struct(void *out, size_t full, const void *in, size_t least, const char *name)
{
    size_t bytes;
    memcpy(&bytes, in, sizeof bytes);
    if (bytes < least || bytes > BYTES_MAX)
        return base_fail(-EINVAL, "%s.bytes is %zu: set it to sizeof(%s)", name, bytes, name);
    for (size_t i = full; i < bytes; i++)
        if (((const uint8_t *)in)[i])
            return base_fail(
                -E2BIG,
                "%s: the program sets fields that this version of the library does not know: use a newer library, or leave these fields 0",
                name);
    memset(out, 0, full);
    memcpy(out, in, bytes < full ? bytes : full);
    memcpy(out, &full, sizeof full);
    return 0;
}

void base_give_struct(void *out, size_t bytes, const void *full, size_t full_bytes)
{
    size_t n = bytes < full_bytes ? bytes : full_bytes;
    memcpy(out, full, n);
    memset((uint8_t *)out + n, 0, bytes - n);
}
