// Weights mean + spread · z in one pass. z are the numbers of torch.randn with a new CUDA generator of this seed, so
// they are neither written nor read. torch lets each of LANES threads compute four numbers at a time: round k of lane l
// is Philox with the counter (k, 0, l, 0), and gives the numbers l + (4 k + i) LANES, i = 0…3.
#include "device.cuh"

#ifdef AVUC_EMULATED
extern "C" float cosf(float), sinf(float), logf(float), sqrtf(float);
static inline uint32_t high_product(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<unsigned long long>(a) * b >> 32);
}
static inline void sine_cosine(float angle, float* sine, float* cosine) { *sine = sinf(angle), *cosine = cosf(angle); }
#else
AVUC_DEVICE uint32_t high_product(uint32_t a, uint32_t b) { return __umulhi(a, b); }
AVUC_DEVICE void sine_cosine(float angle, float* sine, float* cosine) { __sincosf(angle, sine, cosine); }
#endif

// Required macro: LOW, 1 for weights in bfloat16, 0 for float32.
#if LOW
typedef uint16_t Weight;
AVUC_DEVICE Weight rounded(float value) { return static_cast<uint16_t>(pack_bf16(value, 0.0f)); }
#else
typedef float Weight;
AVUC_DEVICE Weight rounded(float value) { return value; }
#endif

// Philox with ten rounds.
AVUC_DEVICE void philox(uint32_t c[4], uint32_t key_low, uint32_t key_high) {
  AVUC_UNROLL
  for (int round = 0; round < 10; ++round) {
    uint32_t high_0 = high_product(0xD2511F53u, c[0]), low_0 = 0xD2511F53u * c[0];
    uint32_t high_1 = high_product(0xCD9E8D57u, c[2]), low_1 = 0xCD9E8D57u * c[2];
    c[0] = high_1 ^ c[1] ^ key_low, c[1] = low_1;
    c[2] = high_0 ^ c[3] ^ key_high, c[3] = low_0;
    key_low += 0x9E3779B9u, key_high += 0xBB67AE85u;
  }
}

// Two normal numbers from two uniform words, by Box and Muller as in cuRAND.
AVUC_DEVICE void box_muller(uint32_t x, uint32_t y, float* z) {
  constexpr float step = 2.3283064e-10f, turn = 2.3283064e-10f * 6.2831855f;
  float radius = sqrtf(-2.0f * logf(static_cast<float>(x) * step + step / 2));
  float sine, cosine;
  sine_cosine(static_cast<float>(y) * turn + turn / 2, &sine, &cosine);
  z[0] = radius * sine, z[1] = radius * cosine;
}

// Writes weights first…stop − 1 to `out`. Block (x, y) computes 256 lanes in round first_round + y.
extern "C" AVUC_GLOBAL void draw_weights(const float* mean, const float* spread, Weight* out, int first, int stop, int lanes,
                              int first_round, int seed_low, int seed_high) {
  int lane_number = block_x() * threads() + thread(), round = first_round + block_y();
  // fewer than 2^29 weights: no index overflows
  int start = lane_number + 4 * round * lanes;
  float m[4], s[4], z[4];
  AVUC_UNROLL
  for (int i = 0; i < 4; ++i) {
    int place = start + i * lanes;
    bool inside = place >= first && place < stop;
    m[i] = inside ? mean[place] : 0.0f, s[i] = inside ? spread[place] : 0.0f;
  }
  uint32_t c[4] = {static_cast<uint32_t>(round), 0u, static_cast<uint32_t>(lane_number), 0u};
  philox(c, static_cast<uint32_t>(seed_low), static_cast<uint32_t>(seed_high));
  box_muller(c[0], c[1], z), box_muller(c[2], c[3], z + 2);
  AVUC_UNROLL
  for (int i = 0; i < 4; ++i) {
    int place = start + i * lanes;
    if (place >= first && place < stop) out[place - first] = rounded(m[i] + s[i] * z[i]);
  }
}
AVUC_KERNEL(draw_weights)
