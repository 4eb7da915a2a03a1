// 3×3 convolutions of several models: forward pass, input gradient and weight gradient. Padding is 1, stride is 1 or 2,
// memory is channels last. Products are bf16 on tensor cores, sums are float32. block_y is the number of the model.
//
// All three passes go down the rows of the images. A row of 16 pixels is read from shared memory three times, once for
// each column of the filter, because each read is used for all three rows of the filter. A simple loop would read it
// nine times. A strip is 16 neighbouring output pixels; if rows have only 8 pixels, a strip covers two images. A warp
// computes one unit at a time: ROWS output rows of a strip, for a slice of the channels.
//
// Required macros: SIDE (height and width of x), C_IN, C_OUT, STRIDE, PASS, WEIGHT_FLOAT (1: weights are float32, 0:
// bf16).
// Macros for tuning: WARPS per block, IMAGES that a block reads at once, BUFFERS for them, MIN_BLOCKS per
// multiprocessor, TILES of 8 channels per warp (forward and input gradient), SPLIT (weight gradient: number of blocks
// that share C_OUT).
#include "device.cuh"

#ifndef SUMS  // 1: the forward pass also computes the sums of y and y² for batch normalisation
#define SUMS 0
#endif
#define FORWARD 0
#define INPUT_GRADIENT 1
#define WEIGHT_GRADIENT 2

#if WEIGHT_FLOAT
typedef float weight_t;
AVUC_DEVICE float value(const weight_t* w) { return *w; }
AVUC_DEVICE void put(weight_t* w, float v) { *w = v; }
#else
typedef uint16_t weight_t;
AVUC_DEVICE float value(const weight_t* w) { return __uint_as_float(static_cast<uint32_t>(*w) << 16); }
AVUC_DEVICE void put(weight_t* w, float v) { *w = static_cast<uint16_t>(pack_bf16(v, 0.0f)); }
#endif

constexpr int THREADS = 32 * WARPS;
constexpr int OUT = SIDE / STRIDE;  // height and width of y
constexpr int ROWS = 8;
// With three input channels, a pixel in shared memory stores one row of its 3×3 window: 9 numbers, then 7 zeros.
constexpr bool COLOURS = C_IN == 3;
constexpr int X_CHANNELS = COLOURS ? 16 : C_IN;
[[maybe_unused]] constexpr int COLUMNS = COLOURS ? 1 : 3;

// An image in shared memory is [row][column][channel]. A column of zeros before, between and after the rows is the
// padding; neighbouring rows share it. The 16-byte parts of a pixel are permuted, so that 8 neighbouring pixels are in
// different memory banks.
template <int WIDTH, int C>
struct Tile {
  static constexpr int PARTS = C / 8, PIXEL = 2 * C, ROW = (WIDTH + 1) * PIXEL, BYTES = WIDTH * ROW + PIXEL;
  static constexpr int SHIFT = C == 16 ? 2 : C == 32 ? 1 : 0;
};
// Returns the offset of a part in its row. `column` is from -1 to WIDTH. Part + 2k is at place ^ 32k.
template <int WIDTH, int C>
AVUC_DEVICE int place(int column, int part) {
  using T = Tile<WIDTH, C>;
  return (column + 1) * T::PIXEL + 16 * (part ^ ((column >> T::SHIFT) & (T::PARTS - 1)));
}
AVUC_DEVICE void clear16(unsigned char* to) { *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0); }

template <int WIDTH, int C>
AVUC_DEVICE void clear_padding(unsigned char* tile, unsigned count) {
  using T = Tile<WIDTH, C>;
  constexpr unsigned EACH = (WIDTH + 1) * T::PARTS;
  for (unsigned i = thread(); i < count * EACH; i += THREADS)
    clear16(tile + i / EACH * T::BYTES + i % EACH / T::PARTS * T::ROW + 16 * (i % T::PARTS));
}

// Loads channels [0, C) of an image whose pixels have PITCH channels. If the image is not there, writes zeros.
template <int WIDTH, int C, int PITCH>
AVUC_DEVICE void load(unsigned char* tile, const uint16_t* image, bool there) {
  using T = Tile<WIDTH, C>;
  constexpr unsigned ACROSS = WIDTH * T::PARTS, DOWN = THREADS / ACROSS;  // each thread has one column and part
  static_assert(THREADS % ACROSS == 0 && WIDTH % DOWN == 0, "the threads must cover whole rows");
  const unsigned row = thread() / ACROSS, column = thread() % ACROSS / T::PARTS, part = thread() % T::PARTS;
  unsigned char* to = tile + row * T::ROW + place<WIDTH, C>(column, part);
  const uint16_t* from = image + (row * WIDTH + column) * PITCH + 8 * part;
  if (there) {
    AVUC_UNROLL
    for (int i = 0; i < WIDTH / DOWN; ++i) copy_async16(to + i * DOWN * T::ROW, from + i * DOWN * WIDTH * PITCH);
  } else {
    AVUC_UNROLL
    for (int i = 0; i < WIDTH / DOWN; ++i) clear16(to + i * DOWN * T::ROW);
  }
}

template <int WIDTH>
AVUC_DEVICE void load_colours(unsigned char* tile, const uint16_t* image, bool there) {
  constexpr unsigned DOWN = THREADS / WIDTH;
  static_assert(WIDTH % DOWN == 0, "the threads must cover whole rows");
  const unsigned column = thread() % WIDTH;
  unsigned char* to = tile + thread() / WIDTH * Tile<WIDTH, 16>::ROW;
  const uint16_t* from = image + 3 * thread() - 3;
  AVUC_UNROLL
  for (int i = 0; i < WIDTH / DOWN; ++i) {
    uint32_t found[9];
    AVUC_UNROLL
    for (int k = 0; k < 9; ++k) {
      const bool inside = k < 3 ? column > 0 : k < 6 || column < WIDTH - 1;
      found[k] = there && inside ? from[i * DOWN * WIDTH * 3 + k] : 0;
    }
    unsigned char* row = to + i * DOWN * Tile<WIDTH, 16>::ROW;
    *reinterpret_cast<uint4*>(row + place<WIDTH, 16>(column, 0)) = make_uint4(
        found[0] | found[1] << 16, found[2] | found[3] << 16, found[4] | found[5] << 16, found[6] | found[7] << 16);
    *reinterpret_cast<uint4*>(row + place<WIDTH, 16>(column, 1)) = make_uint4(found[8], 0, 0, 0);
  }
}

AVUC_DEVICE void load_x(unsigned char* tile, const uint16_t* image, bool there) {
  if constexpr (COLOURS) {
    load_colours<SIDE>(tile, image, there);
  } else {
    load<SIDE, X_CHANNELS, C_IN>(tile, image, there);
  }
}

// The position of a unit in a group of images whose output rows have WIDTH pixels.
template <int WIDTH>
struct Strips {
  static constexpr int SPAN = WIDTH < 16 ? 16 / WIDTH : 1;  // images in a strip
  static constexpr int ACROSS = WIDTH < 16 ? 1 : WIDTH / 16, DOWN = WIDTH / ROWS;
  static constexpr int UNITS = IMAGES / SPAN * ACROSS * DOWN;
  static_assert(IMAGES % SPAN == 0, "IMAGES must fill the strips");
  int image, left, top;
};
template <int WIDTH>
AVUC_DEVICE Strips<WIDTH> unit_at(unsigned unit) {
  constexpr unsigned SPAN = Strips<WIDTH>::SPAN, ACROSS = Strips<WIDTH>::ACROSS, DOWN = Strips<WIDTH>::DOWN;
  const unsigned image = unit / (ACROSS * DOWN) * SPAN, left = unit / DOWN % ACROSS * 16, top = unit % DOWN * ROWS;
  return {static_cast<int>(image), static_cast<int>(left), static_cast<int>(top)};
}

// For each channel of a thread: the sum of the numbers it has written, and the sum of their squares.
struct Moments {
  float sums[2][TILES][2];
};

template <bool SUMMED>
AVUC_DEVICE void write_slice(uint16_t* to, const float numbers[TILES][4], int half, Moments& moments) {
  uint32_t words[TILES];
  AVUC_UNROLL
  for (int t = 0; t < TILES; ++t) {
    words[t] = pack_bf16(numbers[t][2 * half], numbers[t][2 * half + 1]);
    if constexpr (SUMMED) {  // of the rounded numbers, so that their normalised mean is zero
      const float low = low_bf16(words[t]), high = high_bf16(words[t]);
      moments.sums[0][t][0] += low, moments.sums[1][t][0] += low * low;
      moments.sums[0][t][1] += high, moments.sums[1][t][1] += high * high;
    }
  }
  if constexpr (TILES == 2) {
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
    *reinterpret_cast<uint32_t*>(to) = words[0];
  }
}
AVUC_DEVICE void clear(float sums[TILES][4]) {
  AVUC_UNROLL
  for (int t = 0; t < TILES; ++t) sums[t][0] = sums[t][1] = sums[t][2] = sums[t][3] = 0.0f;
}

#if PASS != WEIGHT_GRADIENT

// The right operand of the products for every filter position. It stays in registers while the block runs. Column n of
// tile t is a channel of the result; its rows are the channels that are summed over. TURNED exchanges the two, for the
// input gradient. With two tiles, columns are ordered so that the four results of a thread for a pixel are neighbours
// in memory.
template <int KSTEPS, int FILTER_COLUMNS>
struct Filter {
  uint32_t words[3][FILTER_COLUMNS][KSTEPS][TILES][2];
};
AVUC_DEVICE uint32_t weight_pair(const weight_t* first, int next) { return pack_bf16(value(first), value(first + next)); }

template <int MADE, int REDUCED, bool TURNED, bool MIRRORED, int KSTEPS, int FILTER_COLUMNS>
AVUC_DEVICE void load_filter(Filter<KSTEPS, FILTER_COLUMNS>& filter, const weight_t* weight, int slice) {
  const int n = lane() / 4, k = 2 * (lane() % 4);
  const int channel = slice * 8 * TILES + (TILES == 2 ? 4 * (n / 2) + n % 2 : n);
  constexpr int ALONG = TURNED ? 1 : 9 * REDUCED, NEXT = TURNED ? 9 * MADE : 1;  // distances between channels
  const weight_t* from = weight + channel * ALONG + k * NEXT;
  AVUC_UNROLL
  for (int dy = 0; dy < 3; ++dy)
    AVUC_UNROLL
    for (int dx = 0; dx < FILTER_COLUMNS; ++dx)
      AVUC_UNROLL
      for (int step = 0; step < KSTEPS; ++step)
        AVUC_UNROLL
        for (int t = 0; t < TILES; ++t)
          AVUC_UNROLL
          for (int half = 0; half < 2; ++half) {
            uint32_t& word = filter.words[dy][dx][step][t][half];
            if constexpr (COLOURS) {  // 9 weights: one row of the window
              const weight_t* at = from + 2 * t * ALONG + 9 * dy + 8 * half;
              word = half == 0 ? weight_pair(at, 1) : k == 0 ? pack_bf16(value(at), 0.0f) : 0;
            } else {
              const int tap = MIRRORED ? 8 - 3 * dy - dx : 3 * dy + dx;
              word = weight_pair(from + 2 * t * ALONG + tap * (TURNED ? MADE : REDUCED) + (16 * step + 8 * half) * NEXT, NEXT);
            }
          }
}

// Correlation with stride STEP: the forward pass, and the input gradient for stride 1.
template <int WIDTH, int REDUCED, int MADE, int STEP, int FILTER_COLUMNS, bool SUMMED>
AVUC_DEVICE void correlate(const unsigned char* tiles, const Filter<REDUCED / 16, FILTER_COLUMNS>& filter, uint16_t* y,
                           int images, unsigned unit, unsigned slice, Moments& moments) {
  using T = Tile<WIDTH, REDUCED>;
  constexpr int MADE_WIDTH = WIDTH / STEP, LAST = STEP * (ROWS - 1) + 2, RING = STEP == 1 ? 3 : 2;
  const Strips<MADE_WIDTH> at = unit_at<MADE_WIDTH>(unit);
  if (at.image >= images) return;
  const int span = Strips<MADE_WIDTH>::SPAN, pixel = lane() % 16;
  int from[FILTER_COLUMNS];
  AVUC_UNROLL
  for (int dx = 0; dx < FILTER_COLUMNS; ++dx) {
    int column = STEP * (at.left + pixel % MADE_WIDTH) + (FILTER_COLUMNS == 3 ? dx - 1 : 0);
    from[dx] = (at.image + (span == 2 ? pixel / 8 : 0)) * T::BYTES + STEP * at.top * T::ROW +
               place<WIDTH, REDUCED>(column, lane() / 16);
  }
  // a thread writes pixels lane / 4 and lane / 4 + 8 of each row
  const int second = span == 2 ? MADE_WIDTH * MADE_WIDTH * MADE : 8 * MADE;
  uint16_t* to = y + static_cast<size_t>((at.image * MADE_WIDTH + at.top) * MADE_WIDTH + at.left + lane() / 4) * MADE +
                 slice * 8 * TILES + 2 * TILES * (lane() % 4);
  const bool second_there = span == 1 || at.image + 1 < images;

  float sums[RING][TILES][4];
  AVUC_UNROLL
  for (int r = 0; r < RING; ++r) clear(sums[r]);
  AVUC_UNROLL
  for (int j = 0; j <= LAST; ++j) {  // row STEP · top − 1 + j of the tile
    bool inside = true;
    if (j == 0) inside = at.top > 0;
    if (STEP == 1 && j == LAST) inside = at.top + ROWS < MADE_WIDTH;
    if (inside) {
      AVUC_UNROLL
      for (int step = 0; step < REDUCED / 16; ++step)
        AVUC_UNROLL
        for (int dx = 0; dx < FILTER_COLUMNS; ++dx) {
          uint32_t a[4];
          ldmatrix_x4(a, tiles + ((from[dx] ^ (32 * step)) + (j - 1) * T::ROW));
          AVUC_UNROLL
          for (int dy = 0; dy < 3; ++dy) {
            const int t = j - dy;
            if (t >= 0 && t % STEP == 0 && t / STEP < ROWS)
              AVUC_UNROLL
              for (int n = 0; n < TILES; ++n) mma_16816(sums[t / STEP % RING][n], a, filter.words[dy][dx][step][n]);
          }
        }
    }
    if (j >= 2 && (j - 2) % STEP == 0) {  // this row of y is complete
      const int r = (j - 2) / STEP;
      uint16_t* row = to + r * MADE_WIDTH * MADE;
      write_slice<SUMMED>(row, sums[r % RING], 0, moments);
      if (second_there) write_slice<SUMMED>(row + second, sums[r % RING], 1, moments);
      clear(sums[r % RING]);
    }
  }
}

// The input gradient for stride 2. Output row 2s is the product of filter row 1 with gradient row s. Output row 2s + 1
// is the sum of filter row 2 with gradient row s and filter row 0 with gradient row s + 1. The same holds for columns.
// So each gradient row contributes to three output rows, each with even and odd columns.
template <int WIDTH, int REDUCED, int MADE>
AVUC_DEVICE void spread(const unsigned char* tiles, const Filter<REDUCED / 16, 3>& filter, uint16_t* x, int images,
                        unsigned unit, unsigned slice, Moments& unused) {
  using T = Tile<WIDTH, REDUCED>;
  constexpr int MADE_WIDTH = 2 * WIDTH;
  const Strips<WIDTH> at = unit_at<WIDTH>(unit);
  if (at.image >= images) return;
  const int span = Strips<WIDTH>::SPAN, pixel = lane() % 16;
  int from[2];
  AVUC_UNROLL
  for (int shift = 0; shift < 2; ++shift)
    from[shift] = (at.image + (span == 2 ? pixel / 8 : 0)) * T::BYTES + at.top * T::ROW +
                  place<WIDTH, REDUCED>(at.left + pixel % WIDTH + shift, lane() / 16);
  const int second = span == 2 ? MADE_WIDTH * MADE_WIDTH * MADE : 16 * MADE;
  uint16_t* to = x + static_cast<size_t>((at.image * MADE_WIDTH + 2 * at.top) * MADE_WIDTH + 2 * (at.left + lane() / 4)) * MADE +
                 slice * 8 * TILES + 2 * TILES * (lane() % 4);
  const bool second_there = span == 1 || at.image + 1 < images;

  float even[2][TILES][4], odd[2][2][TILES][4];  // [even or odd column], [row % 2][even or odd column]
  AVUC_UNROLL
  for (int kind = 0; kind < 2; ++kind) clear(even[kind]), clear(odd[0][kind]), clear(odd[1][kind]);
  AVUC_UNROLL
  for (int j = 0; j <= ROWS; ++j) {  // gradient row top + j
    if (j < ROWS || at.top + ROWS < WIDTH) {
      AVUC_UNROLL
      for (int step = 0; step < REDUCED / 16; ++step)
        AVUC_UNROLL
        for (int dx = 2; dx >= 0; dx -= 2) {
          uint32_t a[4];
          ldmatrix_x4(a, tiles + ((from[dx == 0] ^ (32 * step)) + j * T::ROW));
          AVUC_UNROLL
          for (int n = 0; n < TILES; ++n) {
            if (j < ROWS) {
              mma_16816(even[1][n], a, filter.words[1][dx][step][n]);
              mma_16816(odd[j % 2][1][n], a, filter.words[2][dx][step][n]);
            }
            if (j > 0) mma_16816(odd[(j + 1) % 2][1][n], a, filter.words[0][dx][step][n]);
            if (dx == 2) {  // the middle column of the filter uses the same pixels
              if (j < ROWS) {
                mma_16816(even[0][n], a, filter.words[1][1][step][n]);
                mma_16816(odd[j % 2][0][n], a, filter.words[2][1][step][n]);
              }
              if (j > 0) mma_16816(odd[(j + 1) % 2][0][n], a, filter.words[0][1][step][n]);
            }
          }
        }
    }
    AVUC_UNROLL
    for (int kind = 0; kind < 2; ++kind) {
      if (j > 0) {
        uint16_t* row = to + ((2 * j - 1) * MADE_WIDTH + kind) * MADE;
        write_slice<false>(row, odd[(j + 1) % 2][kind], 0, unused);
        if (second_there) write_slice<false>(row + second, odd[(j + 1) % 2][kind], 1, unused);
        clear(odd[(j + 1) % 2][kind]);
      }
      if (j < ROWS) {
        uint16_t* row = to + (2 * j * MADE_WIDTH + kind) * MADE;
        write_slice<false>(row, even[kind], 0, unused);
        if (second_there) write_slice<false>(row + second, even[kind], 1, unused);
        clear(even[kind]);
      }
    }
  }
}
#endif

// Calls `use(buffer, first image)` for each group of IMAGES images. `bring(buffer, first image)` starts the copies of a
// group. `prepare()` runs while the first group is copied. With two buffers, the next group is copied during `use`.
template <int BYTES, class Bring, class Prepare, class Use>
AVUC_DEVICE void each_group(unsigned char* memory, int images, Bring bring, Prepare prepare, Use use) {
  const int groups = (images + IMAGES - 1) / IMAGES;
  int turn = 0;
  bring(memory, block_x() * IMAGES);
  copy_async_commit();
  prepare();
  for (int group = block_x(); group < groups; group += blocks_x()) {
    const int next = group + blocks_x();
    if (BUFFERS == 2) {
      if (next < groups) bring(memory + (turn ^ 1) * BYTES, next * IMAGES);
      copy_async_commit();
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    barrier();
    use(memory + turn * BYTES, group * IMAGES);
    barrier();
    if (BUFFERS == 2) {
      turn ^= 1;
    } else {
      if (next < groups) bring(memory, next * IMAGES);
      copy_async_commit();
    }
  }
  copy_async_wait<0>();
}

#if PASS == FORWARD
// Writes the sums of the block to `out` [sum or sum of squares][channel]. The order of additions is always the same.
AVUC_DEVICE void meet(float* memory, const Moments& moments, float* out, unsigned warp) {
  constexpr unsigned SLICE = 8 * TILES, SLICES = C_OUT / SLICE;
  AVUC_UNROLL
  for (int kind = 0; kind < 2; ++kind)
    AVUC_UNROLL
    for (int t = 0; t < TILES; ++t)
      AVUC_UNROLL
      for (int i = 0; i < 2; ++i) {
        float sum = moments.sums[kind][t][i];
        AVUC_UNROLL
        for (int other = 4; other < 32; other *= 2) sum += shuffle_xor(sum, other);
        if (lane() < 4) memory[(warp * 2 + kind) * SLICE + 2 * TILES * lane() + 2 * t + i] = sum;
      }
  barrier();
  for (unsigned i = thread(); i < 2 * C_OUT; i += THREADS) {
    const unsigned kind = i / C_OUT, slice = i % C_OUT / SLICE, channel = i % SLICE;
    float sum = 0.0f;
    for (unsigned w = slice; w < WARPS; w += SLICES) sum += memory[(w * 2 + kind) * SLICE + channel];
    out[i] = sum;
  }
}

// With SUMS, each block writes Σ y and Σ y² of its images to `partials` (models, blocks_x, 2, C_OUT).
extern "C" AVUC_GLOBAL AVUC_BOUNDS(THREADS, MIN_BLOCKS) void forward(const uint16_t* x, const weight_t* weight,
                                                                    uint16_t* y, float* partials, int images) {
  using T = Tile<SIDE, X_CHANNELS>;
  constexpr int SLICES = C_OUT / (8 * TILES);
  static_assert(WARPS % SLICES == 0, "every part of the work needs a warp for each slice of channels");
  unsigned char* memory = shared_memory();
  const unsigned warp = thread() / 32u, slice = warp % SLICES, part = warp / SLICES;
  x += static_cast<size_t>(block_y()) * images * SIDE * SIDE * C_IN;
  y += static_cast<size_t>(block_y()) * images * OUT * OUT * C_OUT;
  weight += static_cast<size_t>(block_y()) * C_OUT * 9 * C_IN;
  clear_padding<SIDE, X_CHANNELS>(memory, BUFFERS * IMAGES);
  Filter<X_CHANNELS / 16, COLUMNS> filter;
  Moments moments = {};
  each_group<IMAGES * T::BYTES>(
      memory, images,
      [&](unsigned char* buffer, int first) {
        for (int i = 0; i < IMAGES; ++i)
          load_x(buffer + i * T::BYTES, x + static_cast<size_t>(first + i) * SIDE * SIDE * C_IN, first + i < images);
      },
      [&] { load_filter<C_OUT, C_IN, false, false>(filter, weight, slice); },
      [&](const unsigned char* buffer, int first) {
        uint16_t* to = y + static_cast<size_t>(first) * OUT * OUT * C_OUT;
        for (unsigned unit = part; unit < Strips<OUT>::UNITS; unit += WARPS / SLICES)
          correlate<SIDE, X_CHANNELS, C_OUT, STRIDE, COLUMNS, SUMS>(buffer, filter, to, images - first, unit, slice, moments);
      });
  if constexpr (SUMS) {
    partials += (block_y() * blocks_x() + block_x()) * 2 * C_OUT;
    meet(reinterpret_cast<float*>(memory), moments, partials, warp);
  }
}
AVUC_KERNEL(forward)
#endif

#if PASS == INPUT_GRADIENT
extern "C" AVUC_GLOBAL AVUC_BOUNDS(THREADS, MIN_BLOCKS) void input_gradient(const uint16_t* grad, const weight_t* weight,
                                                                           uint16_t* x, int images) {
  using T = Tile<OUT, C_OUT>;
  constexpr int SLICES = C_IN / (8 * TILES);
  static_assert(WARPS % SLICES == 0, "every part of the work needs a warp for each slice of channels");
  unsigned char* memory = shared_memory();
  const unsigned warp = thread() / 32u, slice = warp % SLICES, part = warp / SLICES;
  x += static_cast<size_t>(block_y()) * images * SIDE * SIDE * C_IN;
  grad += static_cast<size_t>(block_y()) * images * OUT * OUT * C_OUT;
  weight += static_cast<size_t>(block_y()) * C_OUT * 9 * C_IN;
  clear_padding<OUT, C_OUT>(memory, BUFFERS * IMAGES);
  Filter<C_OUT / 16, 3> filter;
  Moments unused;
  each_group<IMAGES * T::BYTES>(
      memory, images,
      [&](unsigned char* buffer, int first) {
        for (int i = 0; i < IMAGES; ++i)
          load<OUT, C_OUT, C_OUT>(buffer + i * T::BYTES, grad + static_cast<size_t>(first + i) * OUT * OUT * C_OUT,
                                  first + i < images);
      },
      [&] { load_filter<C_IN, C_OUT, true, STRIDE == 1>(filter, weight, slice); },
      [&](const unsigned char* buffer, int first) {
        uint16_t* to = x + static_cast<size_t>(first) * SIDE * SIDE * C_IN;
        for (unsigned unit = part; unit < Strips<OUT>::UNITS; unit += WARPS / SLICES) {
          if constexpr (STRIDE == 1) {
            correlate<OUT, C_OUT, C_IN, 1, 3, false>(buffer, filter, to, images - first, unit, slice, unused);
          } else {
            spread<OUT, C_OUT, C_IN>(buffer, filter, to, images - first, unit, slice, unused);
          }
        }
      });
}
AVUC_KERNEL(input_gradient)
#endif

#if PASS == WEIGHT_GRADIENT
constexpr int D_CHANNELS = C_OUT / SPLIT;  // channels of the gradient that a block reads

// Adds the products of one unit's pixels to a warp's sums: 16 output × 16 input channels for every filter position.
AVUC_DEVICE void add_products(float sums[3][COLUMNS][2][4], const unsigned char* xs, const unsigned char* grads,
                              int unit, int out_tile, int in_tile) {
  using X = Tile<SIDE, X_CHANNELS>;
  using D = Tile<OUT, D_CHANNELS>;
  constexpr int LAST = STRIDE * (ROWS - 1) + 2, RING = STRIDE == 1 ? 3 : 2;
  const Strips<OUT> at = unit_at<OUT>(unit);
  const int span = Strips<OUT>::SPAN, pixel = lane() % 16, turned = lane() % 8 + lane() / 16 * 8;
  int from[COLUMNS];
  AVUC_UNROLL
  for (int dx = 0; dx < COLUMNS; ++dx) {
    int column = STRIDE * (at.left + pixel % OUT) + (COLUMNS == 3 ? dx - 1 : 0);
    from[dx] = (at.image + (span == 2 ? pixel / 8 : 0)) * X::BYTES + STRIDE * at.top * X::ROW +
               place<SIDE, X_CHANNELS>(column, 2 * in_tile + lane() / 16);
  }
  const unsigned char* grad_row = grads + (at.image + (span == 2 ? turned / 8 : 0)) * D::BYTES + at.top * D::ROW +
                                  place<OUT, D_CHANNELS>(at.left + turned % OUT, 2 * out_tile + lane() / 8 % 2);
  uint32_t d[RING][4];
  AVUC_UNROLL
  for (int j = 0; j <= LAST; ++j) {  // row STRIDE · top − 1 + j of x
    if (j % STRIDE == 0 && j / STRIDE < ROWS)
      ldmatrix_x4_trans(d[j / STRIDE % RING], grad_row + j / STRIDE * D::ROW);
    bool inside = true;
    if (j == 0) inside = at.top > 0;
    if (STRIDE == 1 && j == LAST) inside = at.top + ROWS < OUT;
    if (inside) {
      AVUC_UNROLL
      for (int dx = 0; dx < COLUMNS; ++dx) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, xs + (from[dx] + (j - 1) * X::ROW));
        AVUC_UNROLL
        for (int dy = 0; dy < 3; ++dy) {
          const int t = j - dy;
          if (t >= 0 && t % STRIDE == 0 && t / STRIDE < ROWS) {
            mma_16816(sums[dy][dx][0], d[t / STRIDE % RING], b);
            mma_16816(sums[dy][dx][1], d[t / STRIDE % RING], b + 2);
          }
        }
      }
    }
  }
}

// Each block writes its sums to `partials` (models, blocks_x, C_OUT, 3, 3, C_IN). block_z selects a part of C_OUT.
extern "C" AVUC_GLOBAL AVUC_BOUNDS(THREADS, MIN_BLOCKS) void weight_gradient(const uint16_t* grad, const uint16_t* x,
                                                                            float* partials, int images) {
  using X = Tile<SIDE, X_CHANNELS>;
  using D = Tile<OUT, D_CHANNELS>;
  constexpr int IN_TILES = X_CHANNELS / 16, SHARES = IN_TILES * (D_CHANNELS / 16), PARTS = WARPS / SHARES;
  constexpr int NUMBERS = 3 * COLUMNS * 2 * 4;
  static_assert(WARPS % SHARES == 0 && (PARTS & (PARTS - 1)) == 0, "warps must halve down to one for each share");
  unsigned char* memory = shared_memory();
  const unsigned warp = thread() / 32u, share = warp % SHARES, part = warp / SHARES;
  const unsigned out_tile = share / IN_TILES, in_tile = share % IN_TILES;
  x += static_cast<size_t>(block_y()) * images * SIDE * SIDE * C_IN;
  grad += static_cast<size_t>(block_y()) * images * OUT * OUT * C_OUT + block_z() * D_CHANNELS;
  partials += static_cast<size_t>(block_y() * blocks_x() + block_x()) * C_OUT * 9 * C_IN;
  constexpr int BYTES = IMAGES * (X::BYTES + D::BYTES);
  for (int i = 0; i < BUFFERS; ++i) clear_padding<SIDE, X_CHANNELS>(memory + i * BYTES, IMAGES);
  float sums[3][COLUMNS][2][4];
  float* flat = &sums[0][0][0][0];
  AVUC_UNROLL
  for (int i = 0; i < NUMBERS; ++i) flat[i] = 0.0f;
  each_group<BYTES>(
      memory, images,
      [&](unsigned char* buffer, int first) {
        for (int i = 0; i < IMAGES; ++i) {
          const size_t image = first + i;
          load_x(buffer + i * X::BYTES, x + image * SIDE * SIDE * C_IN, first + i < images);
          load<OUT, D_CHANNELS, C_OUT>(buffer + IMAGES * X::BYTES + i * D::BYTES, grad + image * OUT * OUT * C_OUT,
                                       first + i < images);
        }
      },
      [] {},
      [&](const unsigned char* buffer, int) {
        for (unsigned unit = part; unit < Strips<OUT>::UNITS; unit += PARTS)
          add_products(sums, buffer, buffer + IMAGES * X::BYTES, unit, out_tile, in_tile);
      });
  barrier();
  float* meeting = reinterpret_cast<float*>(memory) + lane();
  AVUC_UNROLL
  for (unsigned half = PARTS / 2; half >= 1; half /= 2) {  // always in the same order
    if (part >= half && part < 2 * half)
      AVUC_UNROLL
      for (int i = 0; i < NUMBERS; ++i) meeting[(((part - half) * SHARES + share) * NUMBERS + i) * 32] = flat[i];
    barrier();
    if (part < half)
      AVUC_UNROLL
      for (int i = 0; i < NUMBERS; ++i) flat[i] += meeting[((part * SHARES + share) * NUMBERS + i) * 32];
    barrier();
  }
  if (part > 0) return;
  AVUC_UNROLL
  for (int dy = 0; dy < 3; ++dy)
    AVUC_UNROLL
    for (int dx = 0; dx < COLUMNS; ++dx)
      AVUC_UNROLL
      for (int n = 0; n < 2; ++n)
        AVUC_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int out = block_z() * D_CHANNELS + 16 * out_tile + 8 * half + lane() / 4, in = 8 * n + 2 * (lane() % 4);
          const float low = sums[dy][dx][n][2 * half], high = sums[dy][dx][n][2 * half + 1];
          if constexpr (COLOURS) {
            if (in < 9) partials[out * 27 + dy * 9 + in] = low;
            if (in < 8) partials[out * 27 + dy * 9 + in + 1] = high;
          } else {
            float* to = partials + (out * 9 + dy * 3 + dx) * C_IN + 16 * in_tile + in;
            *reinterpret_cast<float2*>(to) = make_float2(low, high);
          }
        }
}
AVUC_KERNEL(weight_gradient)

// Writes the sum of each model's partials to `weight` (models, C_OUT, 3, 3, C_IN), always added in the same order. A
// lane computes four weights.
extern "C" AVUC_GLOBAL void add_partials(const float* partials, weight_t* weight, int count) {
  constexpr int SIZE = C_OUT * 9 * C_IN;
  float4* memory = reinterpret_cast<float4*>(shared_memory());
  const int warp = thread() / 32, warps = threads() / 32, first = 4 * (block_x() * 32 + lane());
  partials += static_cast<size_t>(block_y()) * count * SIZE + first;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (first < SIZE)
    for (int i = warp; i < count; i += warps) {
      const float4 more = *reinterpret_cast<const float4*>(partials + static_cast<size_t>(i) * SIZE);
      sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
  memory[thread()] = sum;
  barrier();
  if (warp > 0 || first >= SIZE) return;
  for (int i = 1; i < warps; ++i) {
    const float4 more = memory[32 * i + lane()];
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  weight_t* to = weight + static_cast<size_t>(block_y()) * SIZE + first;
  put(to, sum.x), put(to + 1, sum.y), put(to + 2, sum.z), put(to + 3, sum.w);
}
AVUC_KERNEL(add_partials)
#endif
