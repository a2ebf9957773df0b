/* SPDX-License-Identifier: MIT
 *
 * The part of CUDA that weft's kernels and its headers for kernels use, for clang without CUDA's own headers (`-nocudainc`). nvcc has all
 * this built in, and does not use this file.
 */
#ifndef WEFT_GPU_CLANG_CUDA_H
#define WEFT_GPU_CLANG_CUDA_H

#define __global__           __attribute__((global))
#define __host__             __attribute__((host))
#define __device__           __attribute__((device))
#define __shared__           __attribute__((shared))
#define __forceinline__      __attribute__((always_inline)) inline
#define __launch_bounds__(n) __attribute__((launch_bounds(n)))
#define __grid_constant__

/* Reading a member of these variables reads a register of the GPU. */
#define CLANG_CUDA_REGISTER(member, builtin)                  \
    __declspec(property(get = get_##member)) unsigned member; \
    static __device__ __forceinline__ unsigned get_##member() \
    {                                                         \
        return builtin();                                     \
    }
#define CLANG_CUDA_REGISTERS(name, builtin)                        \
    struct clang_cuda_##name {                                     \
        CLANG_CUDA_REGISTER(x, __nvvm_read_ptx_sreg_##builtin##_x) \
        CLANG_CUDA_REGISTER(y, __nvvm_read_ptx_sreg_##builtin##_y) \
        CLANG_CUDA_REGISTER(z, __nvvm_read_ptx_sreg_##builtin##_z) \
    };                                                             \
    extern const __device__ __attribute__((weak)) clang_cuda_##name name
CLANG_CUDA_REGISTERS(threadIdx, tid);
CLANG_CUDA_REGISTERS(blockIdx, ctaid);
CLANG_CUDA_REGISTERS(blockDim, ntid);

struct __attribute__((aligned(16))) uint4 {
    unsigned x, y, z, w;
};

static __device__ __forceinline__ void __syncwarp()
{
    __nvvm_bar_warp_sync(0xffffffffu);
}
static __device__ __forceinline__ unsigned long long __shfl_sync(unsigned mask, unsigned long long v, int lane)
{
    unsigned low = (unsigned)__nvvm_shfl_sync_idx_i32(mask, (int)v, lane, 31);
    unsigned high = (unsigned)__nvvm_shfl_sync_idx_i32(mask, (int)(v >> 32), lane, 31);
    return (unsigned long long)high << 32 | low;
}
static __device__ __forceinline__ unsigned __activemask()
{
    unsigned mask;
    asm volatile("activemask.b32 %0;" : "=r"(mask));
    return mask;
}
static __device__ __forceinline__ unsigned __match_any_sync(unsigned mask, unsigned long long v)
{
    unsigned same; /* not the builtin, for which clang 14 writes an invalid instruction */
    asm volatile("match.any.sync.b64 %0, %1, %2;" : "=r"(same) : "l"(v), "r"(mask));
    return same;
}
static __device__ __forceinline__ int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static __device__ __forceinline__ int __ffs(int v)
{
    return __builtin_ffs(v);
}
static __device__ __forceinline__ void __threadfence_system()
{
    __nvvm_membar_sys();
}
static __device__ __forceinline__ void __nanosleep(unsigned ns)
{
    asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}
static __device__ __forceinline__ long long clock64()
{
    return (long long)__nvvm_read_ptx_sreg_clock64();
}
static __device__ __forceinline__ unsigned atomicAdd(unsigned *p, unsigned more)
{
    return __nvvm_atom_add_gen_i((int *)p, (int)more);
}
static __device__ __forceinline__ unsigned long long atomicAdd(unsigned long long *p, unsigned long long more)
{
    return __nvvm_atom_add_gen_ll((long long *)p, (long long)more);
}
static __device__ __forceinline__ unsigned atomicCAS(unsigned *p, unsigned expected, unsigned desired)
{
    return __nvvm_atom_cas_gen_i((int *)p, (int)expected, (int)desired);
}
static __device__ __forceinline__ unsigned long long atomicCAS(unsigned long long *p, unsigned long long expected,
                                                               unsigned long long desired)
{
    return __nvvm_atom_cas_gen_ll((long long *)p, (long long)expected, (long long)desired);
}

#endif
