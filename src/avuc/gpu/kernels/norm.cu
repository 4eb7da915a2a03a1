// Batch normalisation of several models at once with what surrounds it in a CIFAR ResNet (shortcut, relu), channels
// last, bf16 with float32 sums: forward in one pass over the memory, backward in two. One model is one block_y.
//
// A vector is 16 bytes, 8 channels of a pixel. A thread meets the same channels in all its vectors, so what belongs to
// a channel stays in registers. Sums come in `partials` (models, rows, 2, CHANNELS): the convolution leaves them, or the
// first pass backward, a row for each block. Every block of the pass that needs them adds those of its model, in an
// order that never changes. These passes walk down through the images: the caches still hold what came last.
//
// Defines: CHANNELS (16, 32 or 64), THREADS of a block.
#include "device.cuh"

#ifdef AVUC_EMULATED
AVUC_DEVICE float root(float v) { return __builtin_sqrtf(v); }
#else
AVUC_DEVICE float root(float v) { return sqrtf(v); }
#endif

// what is not a number stays so: fmaxf would hide it
AVUC_DEVICE float positive(float v) { return v < 0.0f ? 0.0f : v; }

constexpr int PARTS = CHANNELS / 8, WARPS = THREADS / 32;
static_assert(THREADS % 32 == 0 && THREADS >= 2 * CHANNELS, "a thread for each sum");
// 1024 threads on a multiprocessor at once, with 64 registers each
#define PASS extern "C" AVUC_GLOBAL AVUC_BOUNDS(THREADS, 1024 / THREADS) void

AVUC_DEVICE int part() { return thread() % PARTS; }

// the first vector of the model; 32 bits count those of all models
AVUC_DEVICE unsigned start_of_model(int vectors) { return block_y() * static_cast<unsigned>(vectors); }

struct Eight {  // numbers of a vector, or a constant of each of the thread's channels
  float at[8];
};
AVUC_DEVICE Eight unpacked(uint4 v) {
  return {{low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y), low_bf16(v.z), high_bf16(v.z), low_bf16(v.w),
           high_bf16(v.w)}};
}
AVUC_DEVICE uint4 packed(const Eight& e) {
  return make_uint4(pack_bf16(e.at[0], e.at[1]), pack_bf16(e.at[2], e.at[3]), pack_bf16(e.at[4], e.at[5]),
                    pack_bf16(e.at[6], e.at[7]));
}
AVUC_DEVICE Eight of_channels(const float* by_channel) {
  Eight found;
  AVUC_UNROLL
  for (int k = 0; k < 8; ++k) found.at[k] = by_channel[8 * part() + k];
  return found;
}

// Batch normalisation as x · scale + shift, of the thread's channels.
struct Line {
  Eight scale, shift;
};

// (models, 2, CHANNELS) numbers, of which `row`s and models may lie apart
struct Pairs {
  const float *first, *second;
};
AVUC_DEVICE Pairs pairs(const float* of_all, int model_stride, int row_stride) {
  const float* first = of_all + static_cast<size_t>(block_y()) * model_stride;
  return {first, first + row_stride};
}

// A thread's vectors, DEPTH of them on their way at once: `bring(i)` reads what belongs to vector i, `use(i, it, known)`
// comes later. `known = prepare()` is made while the first are on their way.
template <int DEPTH, bool DOWN, class Bring, class Prepare, class Use>
AVUC_DEVICE void walk(int vectors, Bring bring, Prepare prepare, Use use) {
  const int step = blocks_x() * THREADS, turns = (vectors + step - 1) / step;
  const int ahead = DOWN ? -step : step;
  int at = block_x() * THREADS + thread() + (DOWN ? (turns - 1) * step : 0);
  decltype(bring(0)) held[DEPTH];
  const auto there = [&](int i) { return static_cast<unsigned>(i) < static_cast<unsigned>(vectors); };
  AVUC_UNROLL
  for (int d = 0; d < DEPTH; ++d)
    if (there(at + d * ahead)) held[d] = bring(at + d * ahead);
  const auto known = prepare();
  for (int turn = 0; turn < turns; turn += DEPTH) {
    AVUC_UNROLL
    for (int d = 0; d < DEPTH; ++d)
      if (there(at + d * ahead)) use(at + d * ahead, held[d], known);
    at += DEPTH * ahead;
    AVUC_UNROLL
    for (int d = 0; d < DEPTH; ++d)
      if (there(at + d * ahead)) held[d] = bring(at + d * ahead);
  }
}

struct Nothing {};

// Two sums of each of the thread's channels.
struct Sums {
  float at[16] = {};
};
AVUC_DEVICE void add(Sums& sums, int k, float first, float second) { sums.at[k] += first, sums.at[8 + k] += second; }

// Adds up the sums of the lanes with the same channels: where two meet, each goes on with half of what they have.
// Returns the first of the sums that this lane is left with.
template <int HALF = 8, int OTHER = PARTS>
AVUC_DEVICE int meet(Sums& sums) {
  if constexpr (OTHER < 32) {
    const bool upper = lane() & OTHER;
    AVUC_UNROLL
    for (int k = 0; k < HALF; ++k) {
      const float low = sums.at[k], high = sums.at[HALF + k];
      sums.at[k] = (upper ? high : low) + shuffle_xor(upper ? low : high, OTHER);
    }
    return (upper ? HALF : 0) + meet<HALF / 2, 2 * OTHER>(sums);
  } else {
    return 0;
  }
}

// The block's sums to its row of `partials`.
AVUC_DEVICE void leave(Sums& sums, float* partials) {
  float* memory = reinterpret_cast<float*>(shared_memory());
  const int first = meet(sums);
  float* mine = memory + thread() / 32 * 2 * CHANNELS + first / 8 * CHANNELS + 8 * part() + first % 8;
  AVUC_UNROLL
  for (int k = 0; k < PARTS / 2; ++k) mine[k] = sums.at[k];
  barrier();
  if (thread() >= 2 * CHANNELS) return;
  float total = 0.0f;
  for (int w = 0; w < WARPS; ++w) total += memory[w * 2 * CHANNELS + thread()];
  partials[(static_cast<size_t>(block_y()) * blocks_x() + block_x()) * 2 * CHANNELS + thread()] = total;
}

// The sums of the model's `rows` partials: thread c < CHANNELS gets those of channel c.
AVUC_DEVICE float2 totals(const float* partials, int rows) {
  constexpr int ACROSS = CHANNELS / 2, GROUPS = THREADS / ACROSS, ROW = 2 * CHANNELS;
  float* memory = reinterpret_cast<float*>(shared_memory());
  const int group = thread() / ACROSS, column = 4 * (thread() % ACROSS);
  partials += static_cast<size_t>(block_y()) * rows * ROW;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (int row = group; row < rows; row += GROUPS) {
    const float4 more = *reinterpret_cast<const float4*>(partials + row * ROW + column);
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  *reinterpret_cast<float4*>(memory + group * ROW + column) = sum;
  barrier();
  float2 total = make_float2(0.0f, 0.0f);
  if (thread() < CHANNELS)
    for (int g = 0; g < min(rows, GROUPS); ++g)
      total.x += memory[g * ROW + thread()], total.y += memory[g * ROW + CHANNELS + thread()];
  return total;
}
// of the channels, in shared memory behind what `totals` uses
AVUC_DEVICE float* constants(int which) {
  return reinterpret_cast<float*>(shared_memory()) + 4 * THREADS + which * CHANNELS;
}

struct Images {  // their size, and that of those at the other end of a shortcut
  int height, width, other_height, other_width;
};
enum Shortcut { NONE, SAME, OTHER };  // OTHER, option A: every second pixel, zeros around the channels

struct Place {  // of a vector
  unsigned image, row, column;
};
AVUC_DEVICE Place place(unsigned vector, const Images& images) {
  const unsigned pixel = vector / PARTS, size = images.height * images.width;
  const unsigned within = pixel % size;
  return {pixel / size, within / images.width, within % images.width};
}

// forward

// out = relu(x · scale + shift + shortcut of `before`). `before` of option A has twice the pixels each way and half the
// channels, which become the middle ones.
struct Normalised {
  uint4 x, before;
};
template <Shortcut SHORTCUT>
AVUC_DEVICE void normalise(const uint4* x, const uint4* before, const float* affine, int model_stride, int row_stride,
                           const float* partials, int rows, float eps, float unbiased, uint4* out, float* moments,
                           float* kept, int vectors, const Images& images) {
  const unsigned start = start_of_model(vectors);
  const int pixels = vectors / PARTS;
  walk<SHORTCUT == NONE ? 4 : 2, true>(
      vectors,
      [&](int i) {
        Normalised found = {x[start + i], make_uint4(0, 0, 0, 0)};
        if constexpr (SHORTCUT == SAME) found.before = before[start + i];
        if constexpr (SHORTCUT == OTHER) {
          if (part() >= PARTS / 4 && part() < PARTS - PARTS / 4) {
            const Place at = place(start + i, images);
            const unsigned row = at.image * images.other_height + 2 * at.row;
            found.before = before[(row * images.other_width + 2 * at.column) * (PARTS / 2) + part() - PARTS / 4];
          }
        }
        return found;
      },
      [&] {
        const float2 total = totals(partials, rows);
        const int c = thread();
        if (c < CHANNELS) {
          const Pairs own = pairs(affine, model_stride, row_stride);
          const float mean = total.x / pixels, variance = positive(total.y / pixels - mean * mean);
          const float deviation = 1.0f / root(variance + eps), slope = own.first[c] * deviation;
          constants(0)[c] = slope, constants(1)[c] = own.second[c] - mean * slope;
          if (block_x() == 0) {
            const int to = block_y() * 2 * CHANNELS + c;
            moments[to] = mean, moments[to + CHANNELS] = variance * unbiased;
            kept[to] = mean, kept[to + CHANNELS] = deviation;
          }
        }
        barrier();
        return Line{of_channels(constants(0)), of_channels(constants(1))};
      },
      [&](int i, const Normalised& found, const Line& line) {
        Eight e = unpacked(found.x);
        const Eight b = unpacked(found.before);
        AVUC_UNROLL
        for (int k = 0; k < 8; ++k) e.at[k] = positive(e.at[k] * line.scale.at[k] + line.shift.at[k] + b.at[k]);
        out[start + i] = packed(e);
      });
}

#define NORMALISE(name, SHORTCUT)                                                                                     \
  PASS name(const uint4* x, const uint4* before, const float* affine, int model_stride, int row_stride,               \
            const float* partials, int rows, float eps, float unbiased, uint4* out, float* moments, float* kept,      \
            int vectors, int height, int width, int other_height, int other_width) {                                  \
    normalise<SHORTCUT>(x, before, affine, model_stride, row_stride, partials, rows, eps, unbiased, out, moments,     \
                        kept, vectors, {height, width, other_height, other_width});                                   \
  }                                                                                                                   \
  AVUC_KERNEL(name)
NORMALISE(normalise_none, NONE)
NORMALISE(normalise_same, SAME)
NORMALISE(normalise_other, OTHER)

// backward

// Σ given · (x − mean) from Σ given · x, while it is one thread's and small; means would fill registers all along
AVUC_DEVICE void centre(Sums& sums) {
  const Eight mean = of_channels(constants(2));
  AVUC_UNROLL
  for (int k = 0; k < 8; ++k) sums.at[8 + k] -= mean.at[k] * sums.at[k];
}

// Σ given and Σ given · (x − mean) of every channel, where given is grad where x · scale + shift > 0, else 0.
struct Gradient {
  uint4 grad, x;
};
PASS reduce(const uint4* grad, const uint4* x, const float* affine, int model_stride, int row_stride, const float* kept,
            float* partials, int vectors) {
  const unsigned start = start_of_model(vectors);
  Sums sums;
  walk<2, false>(
      vectors, [&](int i) { return Gradient{grad[start + i], x[start + i]}; },
      [&] {
        const int c = thread();
        if (c < CHANNELS) {
          const Pairs own = pairs(affine, model_stride, row_stride), known = pairs(kept, 2 * CHANNELS, CHANNELS);
          const float slope = own.first[c] * known.second[c];
          constants(0)[c] = slope, constants(1)[c] = own.second[c] - known.first[c] * slope;
          constants(2)[c] = known.first[c];
        }
        barrier();
        return Line{of_channels(constants(0)), of_channels(constants(1))};
      },
      [&](int, const Gradient& found, const Line& line) {
        const Eight g = unpacked(found.grad), e = unpacked(found.x);
        AVUC_UNROLL
        for (int k = 0; k < 8; ++k) {
          const float given = e.at[k] * line.scale.at[k] + line.shift.at[k] > 0.0f ? g.at[k] : 0.0f;
          add(sums, k, given, given * e.at[k]);
        }
      });
  centre(sums);
  leave(sums, partials);
}
AVUC_KERNEL(reduce)

// given = direct + the shortcut's gradient of `through`, where the output is positive; and its sums, as in `reduce`.
// Where `direct` is `pooled`, the gradient of an average, all pixels of an image share theirs.
// `through` of option A has every second pixel and twice the channels, of which the middle ones count.
struct Summed {
  uint4 direct, through, output, x;
};
template <Shortcut SHORTCUT>
AVUC_DEVICE void enter(const uint4* direct, int pooled, const uint4* through, const uint4* output, const uint4* x,
                       const float* kept, uint4* given, float* partials, int vectors, const Images& images) {
  const unsigned start = start_of_model(vectors), of_image = images.height * images.width * PARTS;
  Sums sums;
  walk<SHORTCUT == NONE ? 2 : 1, false>(
      vectors,
      [&](int i) {
        const uint4 zeros = make_uint4(0, 0, 0, 0);
        const unsigned at_direct = pooled ? (start + i) / of_image * PARTS + part() : start + i;
        Summed found = {direct[at_direct], zeros, output[start + i], x[start + i]};
        if constexpr (SHORTCUT == SAME) found.through = through[start + i];
        if constexpr (SHORTCUT == OTHER) {
          const Place at = place(start + i, images);
          if (at.row % 2 == 0 && at.column % 2 == 0) {
            const unsigned row = at.image * images.other_height + at.row / 2;
            found.through = through[(row * images.other_width + at.column / 2) * (2 * PARTS) + PARTS / 2 + part()];
          }
        }
        return found;
      },
      [&] {
        if (thread() < CHANNELS) constants(2)[thread()] = pairs(kept, 2 * CHANNELS, CHANNELS).first[thread()];
        barrier();
        return Nothing();
      },
      [&](int i, const Summed& found, Nothing) {
        Eight total = unpacked(found.direct);
        const Eight more = unpacked(found.through), o = unpacked(found.output);
        AVUC_UNROLL
        for (int k = 0; k < 8; ++k) total.at[k] = o.at[k] > 0.0f ? total.at[k] + more.at[k] : 0.0f;
        const uint4 rounded = packed(total);
        given[start + i] = rounded;
        const Eight g = unpacked(rounded), e = unpacked(found.x);
        AVUC_UNROLL
        for (int k = 0; k < 8; ++k) add(sums, k, g.at[k], g.at[k] * e.at[k]);
      });
  centre(sums);
  leave(sums, partials);
}

#define ENTER(name, SHORTCUT)                                                                                         \
  PASS name(const uint4* direct, int pooled, const uint4* through, const uint4* output, const uint4* x,               \
            const float* kept, uint4* given, float* partials, int vectors, int height, int width, int other_height,   \
            int other_width) {                                                                                        \
    enter<SHORTCUT>(direct, pooled, through, output, x, kept, given, partials, vectors,                               \
                    {height, width, other_height, other_width});                                                      \
  }                                                                                                                   \
  AVUC_KERNEL(name)
ENTER(enter_none, NONE)
ENTER(enter_same, SAME)
ENTER(enter_other, OTHER)

// in_x = (given − (Σ given + standard · Σ given · standard) / count) · weight · deviation, standard = (x − mean) ·
// deviation, as given · scale + x · slope + level; in_affine (models, 2, CHANNELS) = both sums, the second first.
struct Planes {
  Eight scale, shift, slope, level;
};
template <bool RELU>
AVUC_DEVICE void turn(const uint4* grad, const uint4* x, const float* affine, int model_stride, int row_stride,
                      const float* kept, const float* partials, int rows, uint4* in_x, float* in_affine, int vectors) {
  const unsigned start = start_of_model(vectors);
  const int pixels = vectors / PARTS;
  walk<2, true>(
      vectors, [&](int i) { return Gradient{grad[start + i], x[start + i]}; },
      [&] {
        const float2 total = totals(partials, rows);
        const int c = thread();
        if (c < CHANNELS) {
          const Pairs own = pairs(affine, model_stride, row_stride), known = pairs(kept, 2 * CHANNELS, CHANNELS);
          const float mean = known.first[c], deviation = known.second[c], in_weight = total.y * deviation;
          const float factor = own.first[c] * deviation, by_x = -factor * deviation * (in_weight / pixels);
          constants(0)[c] = factor, constants(1)[c] = own.second[c] - mean * factor;
          constants(2)[c] = by_x, constants(3)[c] = -factor * (total.x / pixels) - by_x * mean;
          if (block_x() == 0) {
            in_affine[block_y() * 2 * CHANNELS + c] = in_weight;
            in_affine[block_y() * 2 * CHANNELS + CHANNELS + c] = total.x;
          }
        }
        barrier();
        return Planes{of_channels(constants(0)), of_channels(constants(1)), of_channels(constants(2)),
                      of_channels(constants(3))};
      },
      [&](int i, const Gradient& found, const Planes& known) {
        const Eight g = unpacked(found.grad);
        Eight e = unpacked(found.x);
        AVUC_UNROLL
        for (int k = 0; k < 8; ++k) {
          float given = g.at[k];
          if constexpr (RELU) given = e.at[k] * known.scale.at[k] + known.shift.at[k] > 0.0f ? given : 0.0f;
          e.at[k] = given * known.scale.at[k] + (e.at[k] * known.slope.at[k] + known.level.at[k]);
        }
        in_x[start + i] = packed(e);
      });
}

#define APPLY(name, RELU)                                                                                             \
  PASS name(const uint4* grad, const uint4* x, const float* affine, int model_stride, int row_stride,                 \
            const float* kept, const float* partials, int rows, uint4* in_x, float* in_affine, int vectors) {         \
    turn<RELU>(grad, x, affine, model_stride, row_stride, kept, partials, rows, in_x, in_affine, vectors);            \
  }                                                                                                                   \
  AVUC_KERNEL(name)
APPLY(apply, false)
APPLY(apply_relu, true)
