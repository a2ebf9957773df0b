/* SPDX-License-Identifier: MIT
 *
 * Passes on a kernel's output.
 */
#include "kernel/kernel.h"

int weft_out_write(weft_out *out, const void *bytes, size_t len)
{
    return len ? out->write(out->arg, bytes, len) : 0;
}
