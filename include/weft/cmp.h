/* SPDX-License-Identifier: MIT
 *
 * The comparisons of weft_wait_until() (weft/fabric.h) and weft_device_wait_until() (weft/device.h). A header of its own, because programs
 * in Metal's language include no other header of the processor's side.
 */
#ifndef WEFT_CMP_H
#define WEFT_CMP_H

typedef enum weft_cmp { WEFT_EQ, WEFT_NE, WEFT_LT, WEFT_LE, WEFT_GT, WEFT_GE } weft_cmp;

#endif
