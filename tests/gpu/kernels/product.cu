// c (16 m × 8 n) = a bᵀ (+ what shuffles bring), one warp for each block: every primitive once
#include "device.cuh"

extern "C" AVUC_GLOBAL void product(const uint16_t* a, const uint16_t* b, float* c, int k, float scale) {
  unsigned char* memory = shared_memory();
  const int pitch = 2 * k + 16;
  const uint16_t* from = a + block_x() * 16 * k;
  for (int i = thread(); i < 16 * k / 8; i += threads()) {
    int row = i / (k / 8), part = i % (k / 8);
    copy_async16(memory + row * pitch + 16 * part, from + row * k + 8 * part);
  }
  copy_async_commit();
  unsigned char* right = memory + 16 * pitch;
  for (int i = thread(); i < 8 * k / 8; i += threads()) {
    int row = i / (k / 8), part = i % (k / 8);
    copy_async16(right + row * pitch + 16 * part, b + row * k + 8 * part);
  }
  copy_async_commit();
  copy_async_wait<0>();
  barrier();
  float sums[4] = {0, 0, 0, 0};
  for (int start = 0; start < k; start += 16) {
    uint32_t left_words[4], right_words[2];
    ldmatrix_x4(left_words, memory + (lane() % 16) * pitch + 2 * start + 16 * (lane() / 16));
    ldmatrix_x2(right_words, right + (lane() % 8) * pitch + 2 * start + 16 * (lane() / 8 % 2));
    mma_16816(sums, left_words, right_words);
  }
  float* to = c + block_x() * 16 * 8;
  int g = lane() / 4, t = lane() % 4;
  for (int i = 0; i < 4; ++i) to[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = scale * sums[i];
}
AVUC_KERNEL(product)

extern "C" AVUC_GLOBAL void turned(const uint16_t* a, uint32_t* out, float* swapped) {
  unsigned char* memory = shared_memory();
  for (int i = thread(); i < 256; i += threads()) reinterpret_cast<uint16_t*>(memory)[i] = a[i];
  barrier();
  uint32_t words[4];
  ldmatrix_x4_trans(words, memory + 32 * (lane() % 8) + 16 * (lane() / 8 % 2) + 256 * (lane() / 16));
  for (int i = 0; i < 4; ++i) out[4 * thread() + i] = words[i];
  swapped[thread()] = shuffle_xor(static_cast<float>(thread()), 5);
}
AVUC_KERNEL(turned)

extern "C" AVUC_GLOBAL void unguarded(float* out) {  // lacks a barrier between writing and reading
  float* memory = reinterpret_cast<float*>(shared_memory());
  memory[thread()] = static_cast<float>(thread());
  out[thread()] = memory[(thread() + 32) % threads()];
}
AVUC_KERNEL(unguarded)
