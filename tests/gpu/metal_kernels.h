/* SPDX-License-Identifier: MIT
 *
 * The arguments of the kernels in Metal's language (metal_kernels.metal). The test of their rings calls these kernels as C functions.
 */
#ifndef METAL_KERNELS_H
#define METAL_KERNELS_H

#if !defined(__METAL_VERSION__)
#include <stdint.h>
#endif

#define METAL_OPS   8
#define METAL_WORDS 64

struct metal_op { /* a weft_device_op: both are checked to be alike */
    uint64_t ticket;
    uint32_t ring;
    int32_t status;
    uint64_t value;
};
struct metal_argument {
    uint64_t mine, there, counter; /* addresses of this block's words here and at the other node, and of a word that all blocks share */
    struct metal_op op[METAL_OPS];
    int result, posted; /* of the kernel; how many requests found room */
};

/* Of the kernels that use services: addresses in this node's pool, and what is kept from one kernel to the next. */
struct metal_service {
    uint64_t record, texts, text_bytes, in, out, word, path, path_bytes, host, host_bytes;
    uint64_t handle[3], done, file[6];
    int step, result;
    uint32_t server, port;
};
#define METAL_BYTES 6000u
#define METAL_ENDED 1000 /* the last step */

#endif
