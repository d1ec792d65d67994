// FP8 and BF16 weights to fragments and back, on the CPU.
#include "kernels/cuda/experts/fragment_plain.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cuda/experts/paired_rows.h"
#include "numerics/e4m3.h"

namespace quads::kernels::cuda {
namespace {

// Where element (row, channel) lies.
struct ElementPlace {
  int64_t slice;  // in order of memory
  int k16;        // in the stage
  int thread;
  int reg;   // of the operand: bit 0 rows g + 8, bit 1 channels 8..15
  int half;  // of the register
};

ElementPlace place_of(int64_t row, int64_t channel, int stages) {
  ElementPlace place;
  const auto r = static_cast<int>(row % 16);
  const auto c = static_cast<int>(channel % 16);
  place.slice = (row / kTileRows * stages + channel / kStageK) * 4 + row % kTileRows / 16;
  place.k16 = static_cast<int>(channel % kStageK / 16);
  place.thread = r % 8 * 4 + c % 8 / 2;
  place.reg = r / 8 + c / 8 * 2;
  place.half = c % 2;
  return place;
}

int64_t bf16_offset(const ElementPlace& at) {
  return at.slice * kBf16SliceBytes + at.k16 * 512 + at.thread * 16 + at.reg * 4 + at.half * 2;
}

int64_t fp8_offset(const ElementPlace& at) {
  const int high = at.reg % 2 == 0 ? 1 : 0;
  return at.slice * kFp8SliceBytes + at.k16 / 2 * 512 + at.thread * 16 + at.k16 % 2 * 8 +
         at.reg / 2 * 4 + at.half * 2 + high;
}
// Of the eight rows of which `place` is one; the same pair again 8 bytes behind.
int64_t fp8_scale_offset(int64_t place, int64_t stage, int stages) {
  const ElementPlace at = place_of(place, stage * kStageK, stages);
  return at.slice * kFp8SliceBytes + 16 * kStageK + at.reg % 2 * 4;
}

// The row of W that fragments have at `place`.
int64_t row_at(int64_t place, int64_t rows, bool paired) {
  return paired ? paired_row(place, rows) : place;
}

void require_shape(int64_t rows, int64_t k, size_t bytes, WeightFormat format) {
  require(rows >= 0 && rows % kTileRows == 0 && k >= 0,
          "fragments of a weight [{}, {}]: rows must be a multiple of 64", rows, k);
  require(static_cast<int64_t>(bytes) == fragment_bytes(rows, k, format),
          "fragments of a weight [{}, {}] are {} bytes, not {}", rows, k,
          fragment_bytes(rows, k, format), bytes);
}

int64_t scales_in(int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

}  // namespace

void pack_fp8_fragments(const Fp8Matrix& w, std::span<uint8_t> out, bool paired) {
  require_shape(w.rows, w.k, out.size(), WeightFormat::kFp8);
  const auto codes = static_cast<int64_t>(w.codes.size());
  const auto scales = static_cast<int64_t>(w.scales.size());
  require(w.block_rows == kFp8Block, "FP8 weights in blocks of {} rows; fragments need {}",
          w.block_rows, kFp8Block);
  require(codes == w.rows * w.k && scales == scales_in(w.rows) * scales_in(w.k),
          "{} codes and {} scales do not make [{}, {}] in blocks of 128 x 128", codes, scales,
          w.rows, w.k);
  for (const float s : w.scales) {
    require(s >= 0x1p-100F && s <= kMaxFp8FragmentScale && is_power_of_two(s),
            "FP8 scale {}: it must be a power of two, 2^-100 .. 2^15", s);
  }
  std::ranges::fill(out, uint8_t{0});
  const int stages = stages_of(w.k);
  for (int64_t place = 0; place < w.rows; ++place) {
    const int64_t row = row_at(place, w.rows, paired);
    for (int64_t channel = 0; channel < w.k; ++channel) {
      const uint8_t code = w.codes[row * w.k + channel];
      require(!e4m3_is_nan(code), "FP8 weight: row {}, column {} is a NaN", row, channel);
      out[fp8_offset(place_of(place, channel, stages))] = code;
    }
  }
  for (int64_t place = 0; place < w.rows; place += 8) {
    const int64_t block = row_at(place, w.rows, paired) / kFp8Block;
    for (int64_t stage = 0; stage < stages; ++stage) {
      const float scale = w.scales[block * scales_in(w.k) + stage] * kFp8ScaleFactor;
      const uint16_t bits = to_bf16(scale).bits;
      uint8_t* at = &out[fp8_scale_offset(place, stage, stages)];
      for (const int i : {0, 2, 8, 10}) std::memcpy(at + i, &bits, 2);
    }
  }
}

void pack_bf16_fragments(std::span<const Bf16> w, int64_t rows, int64_t k, std::span<uint8_t> out,
                         bool paired) {
  require_shape(rows, k, out.size(), WeightFormat::kBf16);
  require(static_cast<int64_t>(w.size()) == rows * k, "{} values do not make [{}, {}]", w.size(),
          rows, k);
  std::ranges::fill(out, uint8_t{0});
  const int stages = stages_of(k);
  for (int64_t place = 0; place < rows; ++place) {
    const int64_t row = row_at(place, rows, paired);
    for (int64_t channel = 0; channel < k; ++channel) {
      std::memcpy(&out[bf16_offset(place_of(place, channel, stages))], &w[row * k + channel], 2);
    }
  }
}

Fp8Matrix unpack_fp8_fragments(std::span<const uint8_t> packed, int64_t rows, int64_t k,
                               bool paired) {
  require_shape(rows, k, packed.size(), WeightFormat::kFp8);
  Fp8Matrix w{rows, k, kFp8Block, std::vector<uint8_t>(rows * k),
              std::vector<float>(scales_in(rows) * scales_in(k))};
  const int stages = stages_of(k);
  for (int64_t place = 0; place < rows; ++place) {
    const int64_t row = row_at(place, rows, paired);
    for (int64_t channel = 0; channel < k; ++channel) {
      w.codes[row * k + channel] = packed[fp8_offset(place_of(place, channel, stages))];
    }
  }
  for (int64_t place = 0; place < rows; place += 8) {
    const int64_t block = row_at(place, rows, paired) / kFp8Block;
    for (int64_t stage = 0; stage < stages; ++stage) {
      Bf16 scale;
      std::memcpy(&scale, &packed[fp8_scale_offset(place, stage, stages)], 2);
      w.scales[block * scales_in(k) + stage] = to_float(scale) / kFp8ScaleFactor;
    }
  }
  return w;
}

std::vector<Bf16> unpack_bf16_fragments(std::span<const uint8_t> packed, int64_t rows, int64_t k,
                                        bool paired) {
  require_shape(rows, k, packed.size(), WeightFormat::kBf16);
  std::vector<Bf16> w(rows * k);
  const int stages = stages_of(k);
  for (int64_t place = 0; place < rows; ++place) {
    const int64_t row = row_at(place, rows, paired);
    for (int64_t channel = 0; channel < k; ++channel) {
      std::memcpy(&w[row * k + channel], &packed[bf16_offset(place_of(place, channel, stages))], 2);
    }
  }
  return w;
}

}  // namespace quads::kernels::cuda
