// The forward pass of a CIFAR ResNet (widths 16, 32, 64; option A; 32×32 images; batch normalisation folded). Each
// block computes one image with one weight sample. Activations stay in shared memory. Products are bf16, sums are
// float32.
//
// Shared memory has two planes: `x` is the input of a residual block, `mid` is between its two convolutions. The second
// convolution adds `x` to its sums and overwrites it. A plane is [W + 2][W + 2][C] bf16 with a border of zeros. The
// 16-byte units of a pixel are permuted by its column, so that 8 neighbouring pixels use all 32 memory banks.
//
// A warp computes pieces: ROWS tiles of 16 pixels × 16 output channels, one below the other. It loads each input row,
// shifted by dx, once and uses it for up to three output rows: 10 loads for 48 products.
//
// Cost of one 16→16 layer of stage 1 in clocks of a multiprocessor, for 8 pieces with 3 shifts each: 1152 mma of 2
// clocks are 2304. At the same time, shared memory needs 960 for 240 ldmatrix of 4 clocks, and 512 for 256 stores (and
// 256 loads of the residual). Stages 2 and 3 have as many products; their pieces have 10 loads for 48 products and 6
// loads for 24. Weights are read from L2 in the order of the fragments, two shifts before they are used: 0.5 MB per
// image of ResNet-20.
#include "device.cuh"

#ifndef WARPS
#define WARPS 4
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 3
#endif
#define THREADS (WARPS * 32)

AVUC_DEVICE int warp() { return thread() / 32; }
// pack_bf16 after relu; NaN stays NaN
AVUC_DEVICE uint32_t pack_relu(float low, float high) {
#ifdef AVUC_EMULATED
  return pack_bf16(low < 0 ? 0 : low, high < 0 ? 0 : high);
#else
  uint32_t packed;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}
template <class T>
AVUC_DEVICE T& at(unsigned char* memory, int offset) {
  return *reinterpret_cast<T*>(memory + offset);
}

template <int C, int W>
struct Plane {
  static constexpr int UNITS = C / 8, PIXEL = 2 * C, ROW = (W + 2) * PIXEL, BYTES = (W + 2) * ROW;
};
// Returns the offset of a 16-byte unit of a pixel. y and x include the border.
template <class P>
AVUC_DEVICE int unit(int y, int x, int u) {
  return y * P::ROW + x * P::PIXEL + 16 * (u ^ (x * P::UNITS / 8 % P::UNITS));
}

// The image has four channels per pixel (the last is zero) and 36 columns. A row of a fragment is 4 neighbouring
// pixels.
constexpr int IMAGE_ROW = 36 * 8, IMAGE_BYTES = 34 * IMAGE_ROW;
constexpr int PLANE_BYTES = Plane<16, 32>::BYTES;

// The pieces of a layer. A tile of 16 pixels is half a row, a row, or rows y and y + 4 of an 8×8 image.
template <int COUT, int W>
struct Pieces {
  static constexpr int ACROSS = W == 32 ? 2 : 1, APART = W == 8 ? 4 : 0, DOWN = W == 8 ? 4 : W, PAIRS = COUT / 16;
  static constexpr int SHARE = ACROSS * PAIRS * DOWN / WARPS;
  static constexpr int ROWS = SHARE > 8 ? (DOWN < 8 ? DOWN : 8) : SHARE > DOWN ? DOWN : SHARE;
  static constexpr int COUNT = ACROSS * PAIRS * DOWN / ROWS;
  static_assert(COUNT % WARPS == 0 && DOWN % ROWS == 0, "warps share a layer evenly");
  int pair, left, top;
};
template <class P>
AVUC_DEVICE P piece_of(int index) {
  return {index % P::PAIRS, index / P::PAIRS % P::ACROSS * 16, index / P::PAIRS / P::ACROSS * P::ROWS};
}

using Ring = uint32_t[3][3][4];  // B operands of 16 output channels: [shift][dy][two of each 8 channels]

AVUC_DEVICE void load_weights(uint32_t (&w)[3][4], const uint4* from) {
  AVUC_UNROLL for (int dy = 0; dy < 3; ++dy) {
    uint4 four = from[32 * dy + lane()];
    w[dy][0] = four.x, w[dy][1] = four.y, w[dy][2] = four.z, w[dy][3] = four.w;
  }
}
// Loads the weights of the first two steps, or of all steps if there are at most three.
template <int STEPS>
AVUC_DEVICE void first_weights(Ring& w, const uint4* weights) {
  AVUC_UNROLL for (int s = 0; s < (STEPS > 3 ? 2 : STEPS); ++s) load_weights(w[s], weights + 96 * s);
}

// Adds the convolution over all steps to `sum`. A step is 16 input channels at one shift dx. `load(step - dx, dx, r,
// a)` loads its input row r into `a`.
template <int STEPS, int ROWS, int STRIDE, class Load>
AVUC_DEVICE void accumulate(float (&sum)[ROWS][2][4], Ring& w, const uint4* weights, Load load) {
  constexpr int INPUTS = STRIDE * (ROWS - 1) + 3, SHIFTS = STEPS < 3 ? STEPS : 3;
#pragma unroll 1
  for (int first = 0; first < STEPS; first += SHIFTS) {
    AVUC_UNROLL for (int shift = 0; shift < SHIFTS; ++shift) {
      const int ahead = first + shift + 2;
      if (STEPS > 3 && ahead < STEPS) load_weights(w[(shift + 2) % 3], weights + 96 * ahead);
      uint32_t a[2][4];
      load(first, shift, 0, a[0]);
      AVUC_UNROLL for (int r = 0; r < INPUTS; ++r) {
        if (r + 1 < INPUTS) load(first, shift, r + 1, a[(r + 1) % 2]);
        AVUC_UNROLL for (int dy = 0; dy < 3; ++dy) {
          const int row = (r - dy) / STRIDE;
          if (r < dy || (r - dy) % STRIDE || row >= ROWS) continue;
          AVUC_UNROLL for (int n = 0; n < 2; ++n) mma_16816(sum[row][n], a[r % 2], w[shift][dy] + 2 * n);
        }
      }
    }
  }
}

template <int ROWS>
AVUC_DEVICE void begin_with(float (&sum)[ROWS][2][4], const float* bias, int pair) {
  AVUC_UNROLL for (int n = 0; n < 2; ++n) {
    const float2 two = *reinterpret_cast<const float2*>(bias + 16 * pair + 8 * n + 2 * (lane() % 4));
    AVUC_UNROLL for (int row = 0; row < ROWS; ++row) {
      sum[row][n][0] = sum[row][n][2] = two.x;
      sum[row][n][1] = sum[row][n][3] = two.y;
    }
  }
}

template <class Out, class Piece, int ROWS>
AVUC_DEVICE void store(float (&sum)[ROWS][2][4], unsigned char* out, const Piece& piece, bool residual) {
  AVUC_UNROLL for (int n = 0; n < 2; ++n) {
    AVUC_UNROLL for (int half = 0; half < 2; ++half) {
      const int x = piece.left + lane() / 4 + (Piece::APART ? 0 : 8 * half), y = piece.top + Piece::APART * half;
      const int start = unit<Out>(y + 1, x + 1, 2 * piece.pair + n) + 4 * (lane() % 4);
      AVUC_UNROLL for (int row = 0; row < ROWS; ++row) {
        uint32_t& two = at<uint32_t>(out, start + row * Out::ROW);
        float low = sum[row][n][2 * half], high = sum[row][n][2 * half + 1];
        if (residual) low += low_bf16(two), high += high_bf16(two);
        two = pack_relu(low, high);
      }
    }
  }
}

template <int CIN, int COUT, int W, int STRIDE>
AVUC_DEVICE void convolution(unsigned char* in, unsigned char* out, const uint4* weights, const float* bias,
                             bool residual) {
  using In = Plane<CIN, W * STRIDE>;
  using Piece = Pieces<COUT, W>;
  constexpr int STEPS = 3 * CIN / 16;
  Ring w;
#pragma unroll 1
  for (int index = warp(); index < Piece::COUNT; index += WARPS) {
    const Piece piece = piece_of<Piece>(index);
    const uint4* here = weights + piece.pair * STEPS * 96;
    // in stage 1 all pieces of a warp have the same weights, which stay in registers
    if (STEPS > 3 || Piece::PAIRS > 1 || index < WARPS) first_weights<STEPS>(w, here);
    const int m = lane() % 16, x = piece.left + (Piece::APART ? m % 8 : m), y = piece.top + m / 8 * Piece::APART;
    int start[3];
    AVUC_UNROLL for (int dx = 0; dx < 3; ++dx) start[dx] = unit<In>(STRIDE * y, STRIDE * x + dx, lane() / 16);
    float sum[Piece::ROWS][2][4];
    begin_with(sum, bias, piece.pair);
    accumulate<STEPS, Piece::ROWS, STRIDE>(sum, w, here, [&](int first, int dx, int r, uint32_t* a) {
      // the next 16 channels are 32 bytes further and permuted like the first 16
      ldmatrix_x4(a, in + (start[dx] ^ first / 3 * 32) + r * In::ROW);
    });
    store<Plane<COUT, W>>(sum, out, piece, residual);
  }
}

AVUC_DEVICE void first_convolution(unsigned char* image, unsigned char* out, const uint4* weights, const float* bias) {
  using Piece = Pieces<16, 32>;
  Ring w;
  first_weights<1>(w, weights);
#pragma unroll 1
  for (int index = warp(); index < Piece::COUNT; index += WARPS) {
    const Piece piece = piece_of<Piece>(index);
    const int start = piece.top * IMAGE_ROW + (piece.left + lane() / 4) * 8 + lane() % 4 * 4;
    float sum[Piece::ROWS][2][4];
    begin_with(sum, bias, 0);
    accumulate<1, Piece::ROWS, 1>(sum, w, weights, [&](int, int, int r, uint32_t* a) {
      AVUC_UNROLL for (int i = 0; i < 4; ++i)  // the next 8 pixels, the next 2 pixels (8 products), both
        a[i] = at<uint32_t>(image, start + r * IMAGE_ROW + i % 2 * 64 + i / 2 * 16);
    });
    store<Plane<16, 32>>(sum, out, piece, false);
  }
}

template <int W>
AVUC_DEVICE bool in_border(int pixel) {
  const int y = pixel / (W + 2), x = pixel % (W + 2);
  return y == 0 || y == W + 1 || x == 0 || x == W + 1;
}

template <int C, int W>
AVUC_DEVICE void clear_border(unsigned char* plane) {
  constexpr int UNITS = Plane<C, W>::UNITS;
  for (int i = thread(); i < Plane<C, W>::BYTES / 16; i += THREADS)
    if (in_border<W>(i / UNITS)) at<uint4>(plane, 16 * i) = make_uint4(0, 0, 0, 0);
}

struct Scale { float by[3], plus[3]; };

// Reads an image: (3, 32, 32) float32 if `floats`, else (32, 32, 3) uint8.
AVUC_DEVICE void read_image(unsigned char* image, const unsigned char* from, bool floats, const Scale& scale) {
  for (int i = thread(); i < IMAGE_BYTES / 8; i += THREADS) {
    const int y = i / 36 - 1, x = i % 36 - 1;
    float v[3] = {0, 0, 0};  // the border is zero after the scaling
    if (y >= 0 && y < 32 && x >= 0 && x < 32) {
      AVUC_UNROLL for (int c = 0; c < 3; ++c) {
        const float raw = floats ? reinterpret_cast<const float*>(from)[c * 1024 + y * 32 + x]
                                 : static_cast<float>(from[(y * 32 + x) * 3 + c]);
        v[c] = raw * scale.by[c] + scale.plus[c];
      }
    }
    at<uint2>(image, 8 * i) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], 0));
  }
}

struct Weights {
  const uint4* products;  // fragments of the next convolution
  const float* bias;
};
template <int CIN, int COUT>
AVUC_DEVICE void advance(Weights& weights) {
  weights.products += CIN * COUT * 9 / 8, weights.bias += COUT;
}

// Computes the second convolution of a block and all following blocks of the stage: x -> mid -> x.
template <int C, int W>
AVUC_DEVICE void residual_blocks(unsigned char* x, unsigned char* mid, Weights& weights, int convolutions) {
#pragma unroll 1
  for (int left = convolutions; left > 0; --left) {
    const bool second = left % 2;
    convolution<C, C, W, 1>(second ? mid : x, second ? x : mid, weights.products, weights.bias, second);
    advance<C, C>(weights);
    barrier();
  }
}

// Computes the first convolution of a stage that halves the image, x -> mid, and overwrites x with the shortcut: every
// second pixel, with zeros in the first and the last quarter of the new channels.
template <int C, int W>
AVUC_DEVICE void halve(unsigned char* x, unsigned char* mid, Weights& weights) {
  using In = Plane<C / 2, 2 * W>;
  using Out = Plane<C, W>;
  constexpr int COUNT = Out::BYTES / 16, EACH = (COUNT + THREADS - 1) / THREADS, BEFORE = Out::UNITS / 4;
  clear_border<C, W>(mid);
  convolution<C / 2, C, W, 2>(x, mid, weights.products, weights.bias, false);
  advance<C / 2, C>(weights);
  uint4 kept[EACH];
  AVUC_UNROLL for (int i = 0; i < EACH; ++i) {
    const int pixel = (thread() + i * THREADS) / Out::UNITS, u = (thread() + i * THREADS) % Out::UNITS - BEFORE;
    kept[i] = make_uint4(0, 0, 0, 0);
    if (pixel < COUNT / Out::UNITS && !in_border<W>(pixel) && u >= 0 && u < In::UNITS)
      kept[i] = at<uint4>(x, unit<In>(2 * (pixel / (W + 2)) - 1, 2 * (pixel % (W + 2)) - 1, u));
  }
  barrier();
  AVUC_UNROLL for (int i = 0; i < EACH; ++i) {
    const int pixel = (thread() + i * THREADS) / Out::UNITS, u = (thread() + i * THREADS) % Out::UNITS;
    if (pixel < COUNT / Out::UNITS) at<uint4>(x, unit<Out>(pixel / (W + 2), pixel % (W + 2), u)) = kept[i];
  }
  barrier();
}

// Computes the mean over the pixels, then the linear layer: weight (classes, 64), bias (classes).
AVUC_DEVICE void classify(unsigned char* x, unsigned char* scratch, const float* linear, int classes, float* logits) {
  using In = Plane<64, 8>;
  float2* part = reinterpret_cast<float2*>(scratch);
  float low = 0, high = 0;
  for (int pixel = warp(); pixel < 64; pixel += WARPS) {
    const uint32_t two = at<uint32_t>(x, unit<In>(pixel / 8 + 1, pixel % 8 + 1, lane() / 4) + lane() % 4 * 4);
    low += low_bf16(two), high += high_bf16(two);
  }
  part[thread()] = make_float2(low, high);
  barrier();
  float* mean = reinterpret_cast<float*>(scratch + 8 * THREADS);
  if (thread() < 64) {
    float sum = 0;
    for (int i = 0; i < WARPS; ++i) sum += reinterpret_cast<float*>(scratch)[64 * i + thread()];
    mean[thread()] = sum / 64;
  }
  barrier();
  for (int k = thread(); k < classes; k += THREADS) {
    float sum = linear[64 * classes + k];
    const float4* weight = reinterpret_cast<const float4*>(linear + 64 * k);
    AVUC_UNROLL for (int c = 0; c < 16; ++c) {
      const float4 w = weight[c], m = reinterpret_cast<float4*>(mean)[c];
      sum += w.x * m.x + w.y * m.y + w.z * m.z + w.w * m.w;
    }
    logits[k] = sum;
  }
}

extern "C" AVUC_GLOBAL void AVUC_BOUNDS(THREADS, BLOCKS_PER_SM)
    resnet_forward(const unsigned char* images, int floats, const uint32_t* packed, int words, int products, int blocks,
                   int classes, float* logits, float by0, float by1, float by2, float plus0, float plus1, float plus2) {
  unsigned char *x = shared_memory(), *mid = x + PLANE_BYTES;
  const long long image = block_x(), draw = block_y();
  packed += draw * words;
  Weights weights{reinterpret_cast<const uint4*>(packed), reinterpret_cast<const float*>(packed + products)};
  const Scale scale{{by0, by1, by2}, {plus0, plus1, plus2}};

  clear_border<16, 32>(x);
  read_image(mid, images + image * (floats ? 4 * 3072 : 3072), floats, scale);
  barrier();
  first_convolution(mid, x, weights.products, weights.bias);
  weights.products += 96, weights.bias += 16;
  barrier();
  clear_border<16, 32>(mid);
  residual_blocks<16, 32>(x, mid, weights, 2 * blocks);
  halve<32, 16>(x, mid, weights);
  residual_blocks<32, 16>(x, mid, weights, 2 * blocks - 1);
  halve<64, 8>(x, mid, weights);
  residual_blocks<64, 8>(x, mid, weights, 2 * blocks - 1);
  classify(x, mid, weights.bias, classes, logits + (draw * blocks_x() + image) * classes);
}
AVUC_KERNEL(resnet_forward)
