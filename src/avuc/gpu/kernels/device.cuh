// The GPU instructions that the kernels use. The tests compile the kernels for a CPU with other definitions of them
// (AVUC_EMULATED). So a kernel uses nothing else of CUDA: no headers, no static __shared__.
#pragma once

#ifdef AVUC_EMULATED
#include "emulator.h"
#else

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;

#define AVUC_DEVICE __device__ __forceinline__
#define AVUC_GLOBAL __global__
#define AVUC_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define AVUC_KERNEL(name)  // follows each kernel; the emulator finds kernels by it
#define AVUC_UNROLL _Pragma("unroll")

AVUC_DEVICE int thread() { return threadIdx.x; }
AVUC_DEVICE int threads() { return blockDim.x; }
AVUC_DEVICE int lane() { return threadIdx.x & 31; }
AVUC_DEVICE int block_x() { return blockIdx.x; }
AVUC_DEVICE int block_y() { return blockIdx.y; }
AVUC_DEVICE int block_z() { return blockIdx.z; }
AVUC_DEVICE int blocks_x() { return gridDim.x; }
AVUC_DEVICE int blocks_y() { return gridDim.y; }
AVUC_DEVICE int blocks_z() { return gridDim.z; }

// Returns the dynamic shared memory of the block, aligned to 16 bytes.
AVUC_DEVICE unsigned char* shared_memory() {
  extern __shared__ uint4 avuc_shared[];
  return reinterpret_cast<unsigned char*>(avuc_shared);
}

AVUC_DEVICE void barrier() { __syncthreads(); }
AVUC_DEVICE void warp_barrier() { __syncwarp(); }
AVUC_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

AVUC_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Returns two bf16 in a word, `low` in the lower half, rounded to nearest even.
AVUC_DEVICE uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
AVUC_DEVICE float low_bf16(uint32_t packed) { return __uint_as_float(packed << 16); }
AVUC_DEVICE float high_bf16(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

// Load matrices of 8 rows of 16 bytes from shared memory. Lane l passes the address of row l % 8 of matrix l / 8 (x2:
// lanes 0-15). From each matrix it gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4; with _trans, of column l /
// 4.
AVUC_DEVICE void ldmatrix_x4(uint32_t r[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
AVUC_DEVICE void ldmatrix_x4_trans(uint32_t r[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
AVUC_DEVICE void ldmatrix_x2(uint32_t r[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
AVUC_DEVICE void ldmatrix_x2_trans(uint32_t r[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}

// c (16×8, float32) += a (16×16, bf16, by rows) · b (16×8, bf16, by columns). With g = lane / 4 and t = lane % 4:
//   a: words (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8), each with the next column
//   b: words (2t, g) (2t + 8, g), each with the next row        c: (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
AVUC_DEVICE void mma_16816(float c[4], const uint32_t a[4], const uint32_t b[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Starts a copy of 16 bytes from global to shared memory. This thread may read them after copy_async_wait, other
// threads after a barrier as well.
AVUC_DEVICE void copy_async16(void* destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(destination)), "l"(source) : "memory");
}
AVUC_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last N committed groups of this thread have arrived.
template <int N>
AVUC_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
