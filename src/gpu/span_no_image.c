/* SPDX-License-Identifier: MIT
 *
 * Used instead of the compiled span_kernels.cu if neither nvcc nor a clang for GPUs was found when weft was built.
 */
#include "gpu/gpu.h"

const void *const gpu_span_image = NULL;
