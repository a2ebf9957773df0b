/* SPDX-License-Identifier: MIT
 *
 * weft_out_write(): passes the output of a kernel to the code that runs the kernel.
 */
#include "kernel/kernel.h"

int weft_out_write(weft_out *out, const void *bytes, size_t len)
{
    return len ? out->write(out->arg, bytes, len) : 0;
}
