/* SPDX-License-Identifier: MIT
 *
 * Used instead of the compiled span_kernels.cu if nvcc was not found when weft was built.
 */
#include "gpu/gpu.h"

const void *const gpu_span_image = NULL;
