/* SPDX-License-Identifier: MIT
 *
 * The built-in kernels, by name.
 */
#include "kernel/kernel.h"

#include <string.h>

/* A table of values, not of pointers, is what the API promises; so it is filled at the first call. The values are
 * the same whoever writes them, but two writers would still be a race: hence the lock. */
const weft_kernel *weft_kernels(size_t *count)
{
    static const weft_kernel *const all[] = {&kernel_wc, &kernel_histogram, &kernel_xxh64, &kernel_grep};
    static weft_kernel table[sizeof all / sizeof all[0]];
    static base_spin lock;
    base_spin_lock(&lock);
    if (!table[0].name)
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            table[i] = *all[i];
    base_spin_unlock(&lock);
    *count = sizeof all / sizeof all[0];
    return table;
}

const weft_kernel *kernel_find(const char *name, size_t name_len)
{
    size_t count;
    const weft_kernel *table = weft_kernels(&count);
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == name_len && memcmp(table[i].name, name, name_len) == 0)
            return &table[i];
    return NULL;
}
