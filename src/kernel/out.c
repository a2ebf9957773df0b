/* SPDX-License-Identifier: MIT
 *
 * Where a kernel's output goes.
 */
#include "kernel/kernel.h"

int weft_out_write(weft_out *out, const void *bytes, size_t len)
{
    return len ? out->write(out->arg, bytes, len) : 0;
}
