/* SPDX-License-Identifier: MIT
 *
 * weft_out_write(): passes what a kernel writes to the code that collects its output.
 */
#include "kernel/kernel.h"

int weft_out_write(weft_out *out, const void *bytes, size_t len)
{
    return len ? out->write(out->arg, bytes, len) : 0;
}
