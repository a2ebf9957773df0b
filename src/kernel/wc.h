/* SPDX-License-Identifier: MIT
 *
 * The result of kernel wc for a piece, shared by wc.c and the GPU's kernel (gpu/span_kernels.h). Must also compile as CUDA.
 */
#ifndef WEFT_KERNEL_WC_H
#define WEFT_KERNEL_WC_H

#include "weft/device_memory.h"

#ifndef WEFT_WC_PRINTABLE
#define WEFT_WC_PRINTABLE 0
#endif

/* The result of a piece. A word may cross the border of two pieces, so the runs at both ends are recorded separately (wc.c says what runs
 * and marks are). */
struct kernel_wc_piece {
    uint64_t lines, bytes;
    uint64_t ended; /* words that end at white space in this piece */
    uint8_t start;  /* the piece is the first of its input */
    uint8_t space;  /* the piece contains white space */
    uint8_t head;   /* the run at the start of the piece contains a mark */
    uint8_t tail;   /* the run at the end of the piece contains a mark */
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
