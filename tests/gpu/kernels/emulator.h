// device.cuh for a CPU: one block at a time, its threads as fibers that yield at barriers and warp instructions.
// Strict where a GPU is silent: misaligned or outlying shared addresses, warps that diverge around a collective
// instruction and writes past the shared memory end the program with a message; asynchronous copies arrive only at
// their wait; and the order in which threads run is chosen from outside, so that a missing barrier shows.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>
#include <setjmp.h>
#include <ucontext.h>

#define AVUC_DEVICE static inline
#define AVUC_GLOBAL
#define AVUC_BOUNDS(threads, blocks)
#define AVUC_UNROLL

struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline uint32_t __float_as_uint(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
static inline float __uint_as_float(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
static inline float fmaxf(float a, float b) { return a < b ? b : a; }
static inline float fminf(float a, float b) { return b < a ? b : a; }
template <class T> static inline T __ldg(const T* pointer) { return *pointer; }

namespace emulator {

struct Copy { void* to; const void* from; };
struct Barrier { int arrived = 0; unsigned generation = 0; };
struct Warp {
  Barrier barrier;
  const void* rows[2][32];
  uint32_t a[2][32][4], b[2][32][2];
  float values[2][32];
};
struct Fiber {
  ucontext_t context;  // where it begins
  jmp_buf here;        // where it goes on: unlike swapcontext, this needs no system call
  bool begun = false;
  std::unique_ptr<char[]> stack;
  bool done = false;
  unsigned collective = 0;  // how many warp instructions it has taken: which of two slots is in use
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};

constexpr size_t STACK = 256 * 1024, GUARD = 4096;
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static Barrier block_barrier;
static std::unique_ptr<unsigned char[]> shared_storage;
static unsigned char* shared_start;
static size_t shared_bytes;
static jmp_buf scheduler;
static int current, live, grid[3], place[3];
static unsigned long progress;
static void (*body)();

[[noreturn]] static inline void fail(const char* what) {
  fprintf(stderr, "emulated kernel: %s (block %d %d %d, thread %d)\n", what, place[0], place[1], place[2], current);
  abort();
}
[[gnu::noinline]] static void yield() {
  if (!_setjmp(fibers[current].here)) _longjmp(scheduler, 1);
}
[[gnu::noinline]] static void resume(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.begun) _longjmp(fiber.here, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}
static inline void wait(Barrier& barrier, int expected) {
  unsigned generation = barrier.generation;
  if (++barrier.arrived == expected) {
    barrier.arrived = 0, ++barrier.generation, ++progress;
  } else {
    while (barrier.generation == generation) yield();
  }
}
static inline Warp& warp() { return warps[current / 32]; }
static inline void warp_wait() { wait(warp().barrier, 32); }
static inline int next_slot() { return fibers[current].collective++ & 1; }

static void entry() {
  body();
  Fiber& fiber = fibers[current];
  if (!fiber.open.empty() || !fiber.groups.empty()) fail("ends with copies that were not waited for");
  fiber.done = true, --live, ++progress;
  yield();
}

// order: 0 threads from first to last, 1 from last to first, else in a shuffled order of that seed
static void run_block(int threads, int order) {
  fibers.clear(), fibers.resize(threads);
  warps.assign(threads / 32, Warp());
  block_barrier = Barrier();
  live = threads, progress = 0;
  std::vector<int> turn(threads);
  for (int i = 0; i < threads; ++i) turn[i] = order == 1 ? threads - 1 - i : i;
  if (order > 1) {
    uint64_t state = order;
    for (int i = threads - 1; i > 0; --i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      std::swap(turn[i], turn[(state >> 33) % (i + 1)]);
    }
  }
  for (Fiber& fiber : fibers) {
    fiber.stack.reset(new char[STACK]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
  }
  while (live > 0) {
    unsigned long before = progress;
    for (int index : turn) {
      if (fibers[index].done) continue;
      current = index;
      resume(fibers[index]);
    }
    if (live > 0 && progress == before) fail("threads wait for others that never come (diverged, or ended early)");
  }
}

static void prepare_shared(size_t bytes) {
  shared_bytes = bytes;
  shared_storage.reset(new unsigned char[bytes + 2 * GUARD]);
  auto address = reinterpret_cast<uintptr_t>(shared_storage.get());
  shared_start = reinterpret_cast<unsigned char*>((address + 127) / 128 * 128);
}
static void fill_shared() {  // what is never written reads as NaN
  memset(shared_start, 0xff, shared_bytes + GUARD / 2);
}
static void check_shared() {
  for (size_t i = 0; i < GUARD / 2; ++i)
    if (shared_start[shared_bytes + i] != 0xff) fail("has written past its shared memory");
}
static inline const uint16_t* checked_row(const void* row) {
  auto* byte = static_cast<const unsigned char*>(row);
  if (byte < shared_start || byte + 16 > shared_start + shared_bytes) fail("ldmatrix outside the shared memory");
  if (reinterpret_cast<uintptr_t>(row) % 16) fail("ldmatrix of a row that is not aligned to 16 bytes");
  return static_cast<const uint16_t*>(row);
}
static inline void matrices(uint32_t* result, int count, const void* row, bool transposed) {
  Warp& w = warp();
  int slot = next_slot(), l = current % 32;
  w.rows[slot][l] = row;
  warp_wait();
  for (int m = 0; m < count; ++m) {
    uint32_t low, high;
    if (transposed) {
      low = checked_row(w.rows[slot][8 * m + 2 * (l % 4)])[l / 4];
      high = checked_row(w.rows[slot][8 * m + 2 * (l % 4) + 1])[l / 4];
    } else {
      const uint16_t* from = checked_row(w.rows[slot][8 * m + l / 4]);
      low = from[2 * (l % 4)], high = from[2 * (l % 4) + 1];
    }
    result[m] = low | high << 16;
  }
  warp_wait();  // a lane that runs ahead may write what others still read
}

template <class... A, size_t... I>
static void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_cv_t<A>*>(arguments[I])...);
}
template <class... A>
static void launch(void (*kernel)(A...), void** arguments, const int* dims, int threads, int shared, int order) {
  static void (*chosen)(A...);
  static void** given;
  chosen = kernel, given = arguments;
  if (threads % 32) { fprintf(stderr, "emulated kernel: %d threads are no whole warps\n", threads); abort(); }
  body = [] { call(chosen, given, std::index_sequence_for<A...>()); };
  for (int i = 0; i < 3; ++i) grid[i] = dims[i];
  prepare_shared(shared);
  for (place[2] = 0; place[2] < grid[2]; ++place[2])
    for (place[1] = 0; place[1] < grid[1]; ++place[1])
      for (place[0] = 0; place[0] < grid[0]; ++place[0]) {
        fill_shared();
        run_block(threads, order);
        check_shared();
      }
}

}  // namespace emulator

#define AVUC_KERNEL(name)                                                                                 \
  extern "C" void name##_emulated(void** arguments, const int* dims, int threads, int shared, int order) { \
    emulator::launch(name, arguments, dims, threads, shared, order);                                      \
  }

static inline int thread() { return emulator::current; }
static inline int threads() { return static_cast<int>(emulator::fibers.size()); }
static inline int lane() { return emulator::current % 32; }
static inline int block_x() { return emulator::place[0]; }
static inline int block_y() { return emulator::place[1]; }
static inline int block_z() { return emulator::place[2]; }
static inline int blocks_x() { return emulator::grid[0]; }
static inline int blocks_y() { return emulator::grid[1]; }
static inline int blocks_z() { return emulator::grid[2]; }
static inline unsigned char* shared_memory() { return emulator::shared_start; }
static inline void barrier() { emulator::wait(emulator::block_barrier, threads()); }
static inline void warp_barrier() { emulator::warp_wait(); }

static inline float shuffle_xor(float value, int mask) {
  emulator::Warp& w = emulator::warp();
  int slot = emulator::next_slot();
  w.values[slot][lane()] = value;
  emulator::warp_wait();
  float found = w.values[slot][lane() ^ mask];
  emulator::warp_wait();
  return found;
}

static inline uint32_t bf16_bits(float value) {
  uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // NaN
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
static inline uint32_t pack_bf16(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
static inline float low_bf16(uint32_t packed) { return __uint_as_float(packed << 16); }
static inline float high_bf16(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

static inline void ldmatrix_x4(uint32_t r[4], const void* row) { emulator::matrices(r, 4, row, false); }
static inline void ldmatrix_x4_trans(uint32_t r[4], const void* row) { emulator::matrices(r, 4, row, true); }
static inline void ldmatrix_x2(uint32_t r[2], const void* row) { emulator::matrices(r, 2, row, false); }
static inline void ldmatrix_x2_trans(uint32_t r[2], const void* row) { emulator::matrices(r, 2, row, true); }

static inline void mma_16816(float c[4], const uint32_t a[4], const uint32_t b[2]) {
  emulator::Warp& w = emulator::warp();
  int slot = emulator::next_slot(), l = lane(), g = l / 4, t = l % 4;
  memcpy(w.a[slot][l], a, 16);
  memcpy(w.b[slot][l], b, 8);
  emulator::warp_wait();
  for (int i = 0; i < 4; ++i) {
    int row = g + 8 * (i / 2), column = 2 * t + i % 2;
    float sum = c[i];
    for (int k = 0; k < 16; ++k) {
      uint32_t left = w.a[slot][(row % 8) * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)];
      uint32_t right = w.b[slot][column * 4 + k % 8 / 2][k / 8];
      sum += (k % 2 ? high_bf16(left) : low_bf16(left)) * (k % 2 ? high_bf16(right) : low_bf16(right));
    }
    c[i] = sum;
  }
  emulator::warp_wait();
}

static inline void copy_async16(void* destination, const void* source) {
  auto* byte = static_cast<unsigned char*>(destination);
  if (byte < emulator::shared_start || byte + 16 > emulator::shared_start + emulator::shared_bytes)
    emulator::fail("copy_async16 outside the shared memory");
  if (reinterpret_cast<uintptr_t>(destination) % 16 || reinterpret_cast<uintptr_t>(source) % 16)
    emulator::fail("copy_async16 between places that are not aligned to 16 bytes");
  emulator::fibers[emulator::current].open.push_back({destination, source});
}
static inline void copy_async_commit() {
  emulator::Fiber& fiber = emulator::fibers[emulator::current];
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}
template <int N>
static inline void copy_async_wait() {
  auto& groups = emulator::fibers[emulator::current].groups;
  while (groups.size() > N) {
    for (const emulator::Copy& copy : groups.front()) memcpy(copy.to, copy.from, 16);
    groups.pop_front();
  }
}
