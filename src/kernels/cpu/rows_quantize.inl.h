// Rows of BF16 activations -> operands of a product: NVFP4 with residual compensation, FP8, BF16.
//
// Codes are never formed: the rounded value itself is what the product needs. Rounding to a format
// with few significand bits adds and subtracts a magic number that leaves just those bits, which
// rounds to nearest even like the hardware's adder. All of it is exact or rounded once on the way
// to the grid, so the bits are those of numerics/nvfp4.h, rac.h and fp8.h.
#pragma once

#include "kernels/cpu/rows_elementwise.inl.h"

namespace quads::kernels::QUADS_ISA {

constexpr int64_t kNvfp4BlockSize = 16;  // an NVFP4 block along K
constexpr int64_t kFp8GroupBlocks = 8;   // 128 channels
constexpr uint32_t kBf16Infinity = 0x7F80;

/// The largest magnitude of n values, a multiple of 16, as BF16 bits: kBf16Infinity or more means a
/// NaN or an Inf.
static inline uint32_t amax_bits(const Bf16* x, int64_t n) {
  const H16 magnitude = splat_half(0x7FFF);
  H16 largest = splat_half(0);
  for (int64_t i = 0; i < n; i += 16) largest = max(largest, load_halves(x + i) & magnitude);
  return largest_lane(largest);
}

static inline float float_of_bits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, sizeof(f));
  return f;
}
static inline float float_of_bf16_bits(uint32_t u) { return float_of_bits(u << 16); }

/// numerics' smallest_power_of_two_scale: the smallest s = 2^i with max_value * s >= amax, i >=
/// -100; 1 for amax 0. max_value is given as BF16 bits, in which 2688 and 448 are exact.
static inline float power_of_two_scale(uint32_t amax, uint32_t max_value) {
  if (amax == 0) return 1.0F;
  const int up = (amax & 0x7FU) > (max_value & 0x7FU) ? 1 : 0;
  const int exponent = static_cast<int>(amax >> 7) - static_cast<int>(max_value >> 7) + up;
  return float_of_bits(static_cast<uint32_t>((exponent < -100 ? -100 : exponent) + 127) << 23);
}
constexpr uint32_t kNvfp4MaxBits = 0x4528;  // 2688
constexpr uint32_t kE4m3MaxBits = 0x43E0;   // 448

/// Rounds x to nearest even with `bits_behind` bits behind the leading one, but never finer than
/// smallest_power / 2^bits_behind; `smallest_power` is a power of two. A zero keeps the sign of x.
template <int bits_behind>
static inline F16 round_to_bits(F16 x, float smallest_power) {
  const F16 power = max(from_bits(bits(x) & splat_int(0x7F800000)), splat(smallest_power));
  const F16 magic = power * splat(0x1.8p23F / static_cast<float>(1 << bits_behind));
  const F16 rounded = (x + magic) - magic;
  return from_bits(bits(rounded) | (bits(x) & splat_int(INT32_MIN)));
}
static inline F16 round_e4m3(F16 x) { return round_to_bits<3>(x, 0x1p-6F); }

static inline int64_t block_position(const QuantizeSpec& spec, int64_t block) {
  return spec.block_position == nullptr ? block : spec.block_position[block];
}

/// The scales of 16 blocks, one a lane.
struct BlockScales {
  alignas(64) float scale[16];       // e4m3 * g, 0 for blocks that quantise to zero
  alignas(64) float out_scale[16];   // the same times the factor on outputs
  alignas(64) float reciprocal[16];  // 1 / scale, rounded; 0 where scale is
  alignas(64) int32_t sign[16];      // sign bit; 0 where scale is, as all zeros are positive then
};

/// `floors`: lower bounds of the E4M3 scales. Returns these.
static inline F16 block_scales(F16 amax, F16 floors, F16 g, float out_scale, BlockScales* out) {
  const F16 e4m3 = max(round_e4m3(amax / (splat(6.0F) * g)), floors);
  const F16 scale = e4m3 * g;
  const Mask16 none = equal(scale, zero());
  store(out->scale, scale);
  store(out->out_scale, scale * splat(out_scale));
  store(out->reciprocal, select(none, zero(), splat(1.0F) / scale));
  store_int(out->sign, select(none, splat_int(0), splat_int(INT32_MIN)));
  return e4m3;
}

/// The E2M1 values nearest to x / scale of block `lane`. x times the rounded reciprocal is off by
/// 2^-23 at most, which matters at ties only: x has 8 significand bits and the scale 4, so whatever
/// is not a tie is further than 2^-13 from one. At ties the product is exact or a little above (so
/// for all 8 x 7 pairs of scale and boundary); cutting the last 8 bits gives the tie back.
static inline F16 round_e2m1(F16 x, const BlockScales& scales, int64_t lane) {
  const I16 y = bits(x * splat(scales.reciprocal[lane])) & splat_int(0x7FFFFF00);
  const F16 power = max(from_bits(y & splat_int(0x7F800000)), splat(1.0F));
  const F16 magic = power * splat(0x1p22F);  // leaves one bit behind the leading one
  const F16 rounded = min((from_bits(y) + magic) - magic, splat(6.0F));
  return from_bits(bits(rounded) | (bits(x) & splat_int(scales.sign[lane])));
}

/// The least scale of the residual's block for the scale s1 of its first pass (the rule
/// rac-scale-floor), 0 where s1 is.
static inline F16 residual_floors(F16 s1) {
  const F16 floor =
      max(from_bits(bits(s1) & splat_int(0x7F800000)) * splat(0.125F), splat(0x1p-9F));
  return select(less(zero(), s1), floor, zero());
}

constexpr int64_t kChunkBlocks = 16;      // blocks along K that are done together
constexpr int64_t kBatchRows = 64;        // a residual is below 2^25 units: int32 holds 64
constexpr int64_t kBatchElements = 8192;  // 16 KiB of x, which is read twice

/// Finite rows of x, their outputs, and what is known of each row.
struct Nvfp4Batch {
  const Bf16* x;
  int64_t ldx;
  int64_t rows;
  Bf16* q1;
  int64_t ld1;
  Bf16* q2;
  int64_t ld2;
  float g[kBatchRows];
  float inverse_unit[kBatchRows];  // 2^16 / g; 0 for rows that do not count
};

/// What is known of a chunk, the blocks first .. first + blocks.
struct Nvfp4Chunk {
  int64_t first;
  int64_t blocks;
  int64_t position[kChunkBlocks];
  bool compensated[kChunkBlocks];
  H16 mask[kChunkBlocks];  // of the compensated channels
  float out_scale;
  bool scale_floor;
};

static inline Nvfp4Chunk make_chunk(const QuantizeSpec& spec, int64_t first) {
  Nvfp4Chunk chunk;
  chunk.first = first;
  chunk.blocks = lanes_from(spec.k / kNvfp4BlockSize, first);
  chunk.out_scale = spec.out_scale;
  chunk.scale_floor = spec.scale_floor;
  for (int64_t b = 0; b < chunk.blocks; ++b) {
    chunk.position[b] = block_position(spec, first + b);
    chunk.compensated[b] = chunk.position[b] < 2 * spec.residual_tiles;
    chunk.mask[b] = splat_half(chunk.compensated[b] ? 0xFFFF : 0);
    if (chunk.compensated[b] && spec.channel_mask != nullptr) {
      chunk.mask[b] = lanes_of_bytes(spec.channel_mask + (first + b) * kNvfp4BlockSize);
    }
  }
  return chunk;
}

/// The rows row0 .. row0 + rows of a chunk, at most 16 blocks in all: a lane of the scales each.
/// `units` [blocks][16] += the residual's units.
template <bool with_q2, bool with_stats>
static inline void quantize_group(const Nvfp4Batch& batch, const Nvfp4Chunk& chunk, int64_t row0,
                                  int64_t rows, int32_t* units) {
  const int64_t blocks = chunk.blocks, ldx = batch.ldx, ld1 = batch.ld1;
  const Bf16* x = batch.x + row0 * ldx + chunk.first * kNvfp4BlockSize;
  Bf16* q1 = batch.q1 + row0 * ld1;
  const H16 magnitude = splat_half(0x7FFF);
  alignas(64) float g[16];
  alignas(32) Bf16 amax[16];
  store(g, splat(1.0F));
  store_halves(amax, splat_half(0));
  for (int64_t r = 0, lane = 0; r < rows; ++r) {
    for (int64_t b = 0; b < blocks; ++b, ++lane) {
      const H16 values = load_halves(x + r * ldx + b * kNvfp4BlockSize);
      amax[lane].bits = largest_lane(values & magnitude);
      g[lane] = batch.g[row0 + r];
    }
  }
  BlockScales scales;
  const F16 e4m3 = block_scales(load_bf16(amax), zero(), load(g), chunk.out_scale, &scales);
  alignas(64) Bf16 residual[16 * kNvfp4BlockSize];
  for (int64_t r = 0, lane = 0; r < rows; ++r) {
    const Bf16* row = x + r * ldx;
    Bf16* out = q1 + r * ld1;
    const F16 inverse_unit = splat(batch.inverse_unit[row0 + r]);
    for (int64_t b = 0; b < blocks; ++b, ++lane) {
      const F16 values = load_bf16(row + b * kNvfp4BlockSize);
      const F16 q = round_e2m1(values, scales, lane);
      store_upper_halves(out + chunk.position[b] * kNvfp4BlockSize,
                         bits(q * splat(scales.out_scale[lane])));
      if constexpr (!with_q2 && !with_stats) continue;
      const F16 left = values - q * splat(scales.scale[lane]);
      if constexpr (with_stats) {
        int32_t* sums = units + b * kNvfp4BlockSize;
        store_int(sums, load_int(sums) + to_int(abs(left) * inverse_unit));
      }
      if constexpr (with_q2) {
        const H16 selected = upper_halves(bits(left)) & chunk.mask[b];
        store_halves(residual + lane * kNvfp4BlockSize, selected);
        amax[lane].bits = largest_lane(selected & magnitude);
      }
    }
  }
  if constexpr (!with_q2) return;
  const F16 floors = chunk.scale_floor ? residual_floors(e4m3) : zero();
  block_scales(load_bf16(amax), floors, load(g), chunk.out_scale, &scales);
  for (int64_t r = 0, lane = 0; r < rows; ++r) {
    Bf16* q2 = batch.q2 + (row0 + r) * batch.ld2;
    for (int64_t b = 0; b < blocks; ++b, ++lane) {
      if (!chunk.compensated[b]) continue;
      const F16 q = round_e2m1(load_bf16(residual + lane * kNvfp4BlockSize), scales, lane);
      store_upper_halves(q2 + chunk.position[b] * kNvfp4BlockSize,
                         bits(q * splat(scales.out_scale[lane])));
    }
  }
}

template <bool with_q2, bool with_stats>
static void quantize_batch_with(const Nvfp4Batch& batch, const QuantizeSpec& spec, int64_t* stats) {
  for (int64_t first = 0; first < spec.k / kNvfp4BlockSize; first += kChunkBlocks) {
    const Nvfp4Chunk chunk = make_chunk(spec, first);
    alignas(64) int32_t units[kChunkBlocks * kNvfp4BlockSize];
    if constexpr (with_stats)
      std::memset(units, 0, chunk.blocks * kNvfp4BlockSize * sizeof(int32_t));
    const int64_t group = kChunkBlocks / chunk.blocks;
    for (int64_t row = 0; row < batch.rows; row += group) {
      const int64_t rows = batch.rows - row < group ? batch.rows - row : group;
      quantize_group<with_q2, with_stats>(batch, chunk, row, rows, units);
    }
    if constexpr (with_stats) {
      int64_t* sums = stats + first * kNvfp4BlockSize;
      for (int64_t i = 0; i < chunk.blocks * kNvfp4BlockSize; ++i) sums[i] += units[i];
    }
  }
}

static void quantize_batch(const Nvfp4Batch& batch, const QuantizeSpec& spec, int64_t* stats) {
  if (spec.residual_tiles > 0 && stats != nullptr)
    return quantize_batch_with<true, true>(batch, spec, stats);
  if (spec.residual_tiles > 0) return quantize_batch_with<true, false>(batch, spec, stats);
  if (stats != nullptr) return quantize_batch_with<false, true>(batch, spec, stats);
  quantize_batch_with<false, false>(batch, spec, stats);
}

static void quantize_row_fp8(const Bf16* x, const QuantizeSpec& spec, Bf16* q1) {
  const int64_t num_blocks = spec.k / kNvfp4BlockSize;
  for (int64_t first = 0; first < num_blocks; first += kFp8GroupBlocks) {
    const int64_t end = first + kFp8GroupBlocks < num_blocks ? first + kFp8GroupBlocks : num_blocks;
    const float scale = power_of_two_scale(
        amax_bits(x + first * kNvfp4BlockSize, (end - first) * kNvfp4BlockSize), kE4m3MaxBits);
    for (int64_t b = first; b < end; ++b) {
      const F16 q = round_e4m3(load_bf16(x + b * kNvfp4BlockSize) * splat(1.0F / scale));
      store_upper_halves(q1 + block_position(spec, b) * kNvfp4BlockSize,
                         bits(q * splat(scale * spec.out_scale)));
    }
  }
}

static void copy_row_bf16(const Bf16* x, const QuantizeSpec& spec, Bf16* q1) {
  for (int64_t b = 0; b < spec.k / kNvfp4BlockSize; ++b) {
    Bf16* out = q1 + block_position(spec, b) * kNvfp4BlockSize;
    if (spec.out_scale == 1.0F) {
      std::memcpy(out, x + b * kNvfp4BlockSize, kNvfp4BlockSize * sizeof(Bf16));
    } else {
      store_upper_halves(out, bits(load_bf16(x + b * kNvfp4BlockSize) * splat(spec.out_scale)));
    }
  }
}

// A value that overflows on its way (amax within 1 % of BF16's maximum, or an out_scale too large
// for it) counts as not finite: it left an Inf or NaN in the row's output.
static int64_t quantize_rows(const Bf16* x, int64_t ldx, int64_t rows, const QuantizeSpec& spec,
                             Bf16* q1, int64_t ld1, Bf16* q2, int64_t ld2, int64_t* stats,
                             const uint8_t* counted) {
  constexpr int64_t kShortRow = kBatchElements / kBatchRows;
  const int64_t fitting = kBatchElements / (spec.k < kShortRow ? kShortRow : spec.k);
  const int64_t step = fitting < 1 ? 1 : fitting;
  for (int64_t row = 0; row < rows; row += step) {
    Nvfp4Batch batch;
    batch.x = x + row * ldx;
    batch.ldx = ldx;
    batch.q1 = q1 + row * ld1;
    batch.ld1 = ld1;
    batch.q2 = q2 + row * ld2;
    batch.ld2 = ld2;
    const int64_t wanted = rows - row < step ? rows - row : step;
    bool counts = false;
    float largest = 0.0F;
    for (batch.rows = 0; batch.rows < wanted; ++batch.rows) {
      const int64_t r = batch.rows;
      const uint32_t amax = amax_bits(batch.x + r * ldx, spec.k);
      if (amax >= kBf16Infinity) break;
      const bool counted_row = stats != nullptr && (counted == nullptr || counted[row + r] != 0);
      counts = counts || counted_row;
      batch.g[r] = power_of_two_scale(amax, kNvfp4MaxBits);
      batch.inverse_unit[r] = counted_row ? 65536.0F / batch.g[r] : 0.0F;
      const float value = float_of_bf16_bits(amax);
      largest = value > largest ? value : largest;
    }
    switch (spec.format) {
      case ActivationFormat::kBf16:
        for (int64_t r = 0; r < batch.rows; ++r) {
          copy_row_bf16(batch.x + r * ldx, spec, batch.q1 + r * ld1);
        }
        break;
      case ActivationFormat::kFp8:
        for (int64_t r = 0; r < batch.rows; ++r) {
          quantize_row_fp8(batch.x + r * ldx, spec, batch.q1 + r * ld1);
        }
        break;
      case ActivationFormat::kNvfp4:
        quantize_batch(batch, spec, counts ? stats : nullptr);
        break;
    }
    if (largest * spec.out_scale >= 0x1p126F) {
      for (int64_t r = 0; r < batch.rows; ++r) {
        if (amax_bits(batch.q1 + r * ld1, spec.k) >= kBf16Infinity) return row + r;
      }
    }
    if (batch.rows < wanted) return row + batch.rows;
  }
  return -1;
}

static void operand_values(const Bf16* q1, int64_t ld1, const Bf16* q2, int64_t ld2, int64_t rows,
                           const QuantizeSpec& spec, Bf16* out, int64_t ldo) {
  for (int64_t b = 0; b < spec.k / kNvfp4BlockSize; ++b) {
    const int64_t from = block_position(spec, b) * kNvfp4BlockSize, to = b * kNvfp4BlockSize;
    if (from < 32 * spec.residual_tiles) {
      for (int64_t r = 0; r < rows; ++r) {
        store_bf16(out + r * ldo + to,
                   load_bf16(q1 + r * ld1 + from) + load_bf16(q2 + r * ld2 + from));
      }
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        store_halves(out + r * ldo + to, load_halves(q1 + r * ld1 + from));
      }
    }
  }
}

}  // namespace quads::kernels::QUADS_ISA
