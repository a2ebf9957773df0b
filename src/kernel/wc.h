/* SPDX-License-Identifier: MIT
 *
 * What kernel wc knows of a piece, for all who count: wc.c, and a GPU's kernel (gpu/span_kernels.h), for which this compiles as CUDA.
 */
#ifndef WEFT_KERNEL_WC_H
#define WEFT_KERNEL_WC_H

#include "weft/device_memory.h"

#ifndef WEFT_WC_PRINTABLE
#define WEFT_WC_PRINTABLE 0
#endif

/* What one piece tells. A word may span pieces, so the ends stay open. */
struct kernel_wc_piece {
    uint64_t lines, bytes;
    uint64_t ended; /* words that a white space of this piece ends, the one it begins with included */
    uint8_t start;  /* the first piece of its input */
    uint8_t space;  /* has white space */
    uint8_t head;   /* the run at its start has a mark; without white space: the piece has */
    uint8_t tail;   /* the run at its end has a mark */
    uint8_t zero[4];
};

WEFT_DEVICE_CALL bool kernel_wc_space(uint8_t c)
{
    return c == ' ' || (uint8_t)(c - '\t') <= '\r' - '\t';
}

WEFT_DEVICE_CALL bool kernel_wc_mark(uint8_t c, bool printable)
{
    return printable ? c > ' ' && c < 0x7f : !kernel_wc_space(c);
}

#endif
