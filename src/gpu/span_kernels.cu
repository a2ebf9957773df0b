// SPDX-License-Identifier: MIT
//
// The kernels of span_kernels.h for CUDA's driver: spans.c loads what this compiles to.
#include "gpu/span_kernels.h"
