// Crop, flip and AugMix of a batch in one launch. Each block computes one image, which stays in shared memory. Only the
// operations that were drawn are computed. avuc/data/augmix.py has the same mathematics in torch, and explains it.
#include "device.cuh"

#ifdef AVUC_EMULATED
extern "C" float cosf(float), sinf(float), logf(float), floorf(float);
static inline void count_one(int* counter) { ++*counter; }
#else
AVUC_DEVICE void count_one(int* counter) { atomicAdd(counter, 1); }
#endif

// Required macros: HEIGHT, WIDTH, CHANNELS, PAD and FLIPS (2, or 1 without flips).
constexpr int PIXELS = HEIGHT * WIDTH, SIZE = PIXELS * CHANNELS, PLACES = 2 * PAD + 1;
constexpr int CHAINS = 3, DEPTH = 3, SLOTS = CHAINS * DEPTH, COLUMNS = 2 + 2 * CHAINS + 2 * SLOTS;
enum { AUTOCONTRAST, EQUALIZE, POSTERIZE, SOLARIZE, ROTATE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, OPERATIONS };

// Returns a uniform integer below `bound`. min is needed because the product may round up to `bound`.
AVUC_DEVICE int below(float uniform, int bound) { return min(static_cast<int>(uniform * bound), bound - 1); }

AVUC_DEVICE float negative_exponential(float uniform) { return fminf(logf(1 - uniform), -1e-9f); }

AVUC_DEVICE float largest(float value) {
  AVUC_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) value = fmaxf(value, shuffle_xor(value, mask));
  return value;
}

// One warp computes the lookup table of one channel from the counts of its values, eight values per lane. Counts are
// below 2^24, so they are exact in float32.
AVUC_DEVICE void table_from_counts(const int* counts, uint8_t* table, int operation) {
  int first = 8 * lane();
  int count[8], before[8], sum = 0;
  float high = -1, low = -256;  // `low` stores the negative, so that a maximum finds the lowest
  AVUC_UNROLL
  for (int i = 0; i < 8; ++i) {
    count[i] = counts[first + i];
    before[i] = sum, sum += count[i];
    if (count[i]) high = first + i, low = fmaxf(low, -static_cast<float>(first + i));
  }
  if (operation == AUTOCONTRAST) {
    int highest = static_cast<int>(largest(high)), lowest = -static_cast<int>(largest(low));
    double scale = 255.0 / (highest > lowest ? highest - lowest : 1);
    // the conditions keep the compiler from fusing product and subtraction, which would round differently
    double start = lowest * scale;
    start = start > 0 ? start : 0;
    AVUC_UNROLL
    for (int i = 0; i < 8; ++i) {
      double value = (first + i) * scale;
      value = (value > 0 ? value : 0) - start;
      int stretched = value < 0 ? 0 : value > 255 ? 255 : static_cast<int>(value);
      table[first + i] = static_cast<uint8_t>(highest > lowest ? stretched : first + i);
    }
    return;
  }
  float others = 0, total = static_cast<float>(sum);  // pixels in lanes before this one; in all lanes added so far
  AVUC_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) {
    float other = shuffle_xor(total, mask);
    if (lane() & mask) others += other;
    total += other;
  }
  float under = 0;  // pixels below the highest value that occurs
  AVUC_UNROLL
  for (int i = 0; i < 8; ++i) {
    before[i] += static_cast<int>(others);
    if (count[i]) under = fmaxf(under, static_cast<float>(before[i]));
  }
  int step = static_cast<int>(largest(under)) / 255;
  AVUC_UNROLL
  for (int i = 0; i < 8; ++i) {
    int value = step > 0 ? (step / 2 + before[i]) / step : first + i;
    table[first + i] = static_cast<uint8_t>(min(value, 255));
  }
}

AVUC_DEVICE void replace_values(const uint8_t* from, uint8_t* to, int* counts, uint8_t* table, int operation,
                                float strength) {
  if (operation == AUTOCONTRAST || operation == EQUALIZE) {
    for (int i = thread(); i < CHANNELS * 256; i += threads()) counts[i] = 0;
    barrier();
    for (int p = thread(); p < PIXELS; p += threads())
      AVUC_UNROLL
      for (int c = 0; c < CHANNELS; ++c) count_one(counts + c * 256 + from[p * CHANNELS + c]);
    barrier();
    for (int c = thread() / 32; c < CHANNELS; c += threads() / 32)
      table_from_counts(counts + c * 256, table + c * 256, operation);
  } else {
    int shift = 4 + static_cast<int>(0.4f * strength), bound = 256 - static_cast<int>(25.6f * strength);
    for (int i = thread(); i < CHANNELS * 256; i += threads()) {
      int value = i % 256;
      int changed = operation == POSTERIZE ? value >> shift << shift : value < bound ? value : 255 - value;
      table[i] = static_cast<uint8_t>(changed);
    }
  }
  barrier();
  for (int p = thread(); p < PIXELS; p += threads())
    AVUC_UNROLL
    for (int c = 0; c < CHANNELS; ++c) to[p * CHANNELS + c] = table[c * 256 + from[p * CHANNELS + c]];
}

AVUC_DEVICE void move_pixels(const uint8_t* from, uint8_t* to, int operation, float amount) {
  float angle = operation == ROTATE ? static_cast<int>(3 * amount) * 0.017453292519943295f : 0.0f;
  float cosine = cosf(angle), sine = sinf(angle);
  float b = (operation == SHEAR_X ? 0.03f * amount : 0.0f) - sine;
  float d = (operation == SHEAR_Y ? 0.03f * amount : 0.0f) + sine;
  float c = (1 - cosine) * (WIDTH / 2.0f) + sine * (HEIGHT / 2.0f);
  float f = (1 - cosine) * (HEIGHT / 2.0f) - sine * (WIDTH / 2.0f);
  if (operation == TRANSLATE_X) c += static_cast<int>(amount * static_cast<float>(WIDTH / 30.0));
  if (operation == TRANSLATE_Y) f += static_cast<int>(amount * static_cast<float>(HEIGHT / 30.0));
  for (int p = thread(); p < PIXELS; p += threads()) {
    float x = p % WIDTH + 0.5f, y = p / WIDTH + 0.5f;
    float column = cosine * x + b * y + c, row = d * x + cosine * y + f;
    bool inside = column >= 0 && column < WIDTH && row >= 0 && row < HEIGHT;
    column -= 0.5f, row -= 0.5f;
    float left = floorf(column), top = floorf(row);
    float to_right = column - left, to_bottom = row - top;
    int x0 = min(max(static_cast<int>(left), 0), WIDTH - 1), x1 = min(max(static_cast<int>(left) + 1, 0), WIDTH - 1);
    int y0 = min(max(static_cast<int>(top), 0), HEIGHT - 1), y1 = min(max(static_cast<int>(top) + 1, 0), HEIGHT - 1);
    const uint8_t *upper = from + y0 * WIDTH * CHANNELS, *lower = from + y1 * WIDTH * CHANNELS;
    AVUC_UNROLL
    for (int k = 0; k < CHANNELS; ++k) {
      float above = upper[x0 * CHANNELS + k], beneath = lower[x0 * CHANNELS + k];
      above += (upper[x1 * CHANNELS + k] - above) * to_right;
      beneath += (lower[x1 * CHANNELS + k] - beneath) * to_right;
      float value = above + (beneath - above) * to_bottom;
      to[p * CHANNELS + k] = inside ? static_cast<uint8_t>(value) : 0;
    }
  }
}

// Shared memory: mixed float[SIZE], counts int[CHANNELS·256], then as bytes: table, image and two buffers.
extern "C" AVUC_GLOBAL void AVUC_BOUNDS(256, 4)
    augmix_images(const uint8_t* images, const long long* indices, const float* drawn, uint8_t* out, float weakest,
                  float range) {
  float* mixed = reinterpret_cast<float*>(shared_memory());
  int* counts = reinterpret_cast<int*>(mixed + SIZE);
  uint8_t* table = reinterpret_cast<uint8_t*>(counts + CHANNELS * 256);
  uint8_t* image = table + CHANNELS * 256;
  const float* number = drawn + static_cast<long long>(block_x()) * COLUMNS;
  const uint8_t* source = images + indices[block_x()] * SIZE;

  int choice = below(number[0], PLACES * PLACES * FLIPS);
  int top = choice / (PLACES * FLIPS) - PAD, left = choice / FLIPS % PLACES - PAD, flipped = choice % FLIPS;
  for (int p = thread(); p < PIXELS; p += threads()) {
    int row = p / WIDTH + top, column = (flipped ? WIDTH - 1 - p % WIDTH : p % WIDTH) + left;
    bool inside = row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH;
    AVUC_UNROLL
    for (int c = 0; c < CHANNELS; ++c) {
      image[p * CHANNELS + c] = inside ? source[(row * WIDTH + column) * CHANNELS + c] : 0;
      mixed[p * CHANNELS + c] = 0;
    }
  }
  barrier();

  float share = number[1], sum = 0;
  for (int chain = 0; chain < CHAINS; ++chain) sum += negative_exponential(number[2 + chain]);
  for (int chain = 0; chain < CHAINS; ++chain) {
    const float* which = number + 2 + 2 * CHAINS + chain * DEPTH;
    const uint8_t* from = image;
    int length = 1 + below(number[2 + CHAINS + chain], DEPTH);
    for (int slot = 0; slot < length; ++slot) {
      int operation = below(which[slot], OPERATIONS);
      float twice = 2 * which[SLOTS + slot];
      float strength = weakest + (twice < 1 ? twice : twice - 1) * range;
      uint8_t* to = image + (1 + slot % 2) * SIZE;
      if (operation < ROTATE)
        replace_values(from, to, counts, table, operation, strength);
      else
        move_pixels(from, to, operation, twice < 1 ? strength : -strength);
      barrier();
      from = to;
    }
    float weight = share * negative_exponential(number[2 + chain]) / sum;
    // no barrier is needed: here and at its next write to a buffer, each thread uses only its own pixels
    for (int p = thread(); p < PIXELS; p += threads())
      AVUC_UNROLL
      for (int c = 0; c < CHANNELS; ++c) mixed[p * CHANNELS + c] += weight * from[p * CHANNELS + c];
  }

  uint8_t* result = out + static_cast<long long>(block_x()) * SIZE;
  for (int p = thread(); p < PIXELS; p += threads())
    AVUC_UNROLL
    for (int c = 0; c < CHANNELS; ++c) {
      int e = p * CHANNELS + c;
      result[e] = static_cast<uint8_t>((1 - share) * image[e] + mixed[e] + 0.5f);
    }
}
AVUC_KERNEL(augmix_images)
