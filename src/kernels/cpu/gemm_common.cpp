// Sizes, checks and layout changes of packed weights: nothing here is worth an instruction set.
#include "kernels/cpu/gemm_common.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"

namespace quads::kernels {
namespace {

constexpr int64_t kTileN = 16;
constexpr int64_t kTileK = 32;

int64_t tile_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return 1024;
    case WeightFormat::kFp8:
      return 512;
    case WeightFormat::kNvfp4:
      return 256;
  }
  return 0;
}

int64_t scale_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return 0;
    case WeightFormat::kFp8:
      return 1;
    case WeightFormat::kNvfp4:
      return 32;
  }
  return 0;
}

int64_t tile_count(int64_t n, int64_t k) {
  require(n >= 0 && k >= 0 && k % kTileK == 0,
          "a packed weight [{}, {}]: sizes must not be negative and k a multiple of 32", n, k);
  return (n + kTileN - 1) / kTileN * (k / kTileK);
}

/// Half a tile's 16 values of row `lane`, in the packed order, without alpha.
void half_row_values(const PackedMatrix& packed, int64_t index, int64_t half, int64_t lane,
                     float* out) {
  const uint8_t* tile = packed.tiles + index * tile_bytes(packed.format);
  switch (packed.format) {
    case WeightFormat::kBf16:
      for (int64_t i = 0; i < 16; ++i) {
        Bf16 value;
        const int64_t element = ((half * 8 + i / 2) * kTileN + lane) * 2 + i % 2;
        std::memcpy(&value, tile + 2 * element, sizeof(value));
        out[i] = to_float(value);
      }
      return;
    case WeightFormat::kFp8: {
      const int exponent = static_cast<int8_t>(packed.scales[index]);
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t element = ((half * 8 + i / 2) * kTileN + lane) * 2 + i % 2;
        out[i] = std::ldexp(e4m3_decode(tile[element]), exponent);
      }
      return;
    }
    case WeightFormat::kNvfp4: {
      const float scale = e4m3_decode(packed.scales[index * 32 + half * 16 + lane]);
      for (int64_t group = 0; group < 2; ++group) {
        uint16_t words[2];  // of the even and the odd elements
        std::memcpy(words, tile + (half * 2 + group) * 64 + lane * 4, sizeof(words));
        for (int64_t i = 0; i < 8; ++i) {
          const int code = words[i % 2] >> (i / 2 * 4) & 15;
          out[group * 8 + i] = e2m1_decode(static_cast<uint8_t>(code)) * scale;
        }
      }
      return;
    }
  }
}

}  // namespace

int64_t packed_tile_bytes(WeightFormat format, int64_t n, int64_t k) {
  return tile_count(n, k) * tile_bytes(format);
}

int64_t packed_scale_bytes(WeightFormat format, int64_t n, int64_t k) {
  return tile_count(n, k) * scale_bytes(format);
}

namespace {

void check_block_positions(const int32_t* block_position, int64_t blocks) {
  for (int64_t b = 0; block_position != nullptr && b < blocks; ++b) {
    require(block_position[b] >= 0 && block_position[b] < blocks,
            "block {} of K is to take position {}; there are {}", b, block_position[b], blocks);
  }
}

}  // namespace

void check_pack_args(const PackArgs& args) {
  const PackedMatrix& out = *args.out;
  require(out.k % kTileK == 0, "packing a weight [{}, {}]: k must be a multiple of 32", out.n,
          out.k);
  const int64_t step = out.format == WeightFormat::kFp8 ? 128 : kTileN;
  require(args.n_begin >= 0 && args.n_begin <= args.n_end && args.n_end <= out.n &&
              args.n_begin % step == 0 && (args.n_end % step == 0 || args.n_end == out.n),
          "packing rows {}..{} of a weight [{}, {}]: they must be multiples of {}", args.n_begin,
          args.n_end, out.n, out.k, step);
  require(out.format != WeightFormat::kNvfp4 ||
              (std::isfinite(args.global_scale) && args.global_scale >= 0x1p-100F),
          "packing NVFP4 with the global scale {}: it must be finite and at least 2^-100",
          args.global_scale);
  require(out.format != WeightFormat::kFp8 || args.block_position == nullptr,
          "FP8 weights keep the natural order of K: their scales belong to blocks of 128");
  check_block_positions(args.block_position, out.k / 16);
}

void pack_stored_nvfp4(const PackStoredArgs& args) {
  const PackedMatrix& out = *args.out;
  require(out.format == WeightFormat::kNvfp4 && out.k % kTileK == 0 && args.n_begin >= 0 &&
              args.n_begin <= args.n_end && args.n_end <= out.n && args.n_begin % kTileN == 0 &&
              (args.n_end % kTileN == 0 || args.n_end == out.n),
          "packing rows {}..{} of stored codes [{}, {}]: NVFP4, k a multiple of 32, rows multiples "
          "of 16",
          args.n_begin, args.n_end, out.n, out.k);
  const int64_t blocks = out.k / 16;
  check_block_positions(args.block_position, blocks);
  const int64_t bytes = tile_bytes(out.format), scales = scale_bytes(out.format);
  for (int64_t n0 = args.n_begin; n0 < args.n_end; n0 += kTileN) {
    const int64_t first = n0 / kTileN * out.k_tiles();
    std::memset(out.tiles + first * bytes, 0, static_cast<size_t>(out.k_tiles() * bytes));
    std::memset(out.scales + first * scales, 0, static_cast<size_t>(out.k_tiles() * scales));
    for (int64_t n = n0; n < std::min(n0 + kTileN, args.n_end); ++n) {
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t position = args.block_position ? args.block_position[block] : block;
        const int64_t index = first + position / 2, half = position % 2, lane = n - n0;
        out.scales[index * scales + half * 16 + lane] = args.block_scales[n * blocks + block];
        const uint8_t* codes = args.codes + n * out.k / 2 + block * 8;
        for (int64_t group = 0; group < 2; ++group) {
          uint16_t words[2] = {0, 0};  // of the even and the odd elements
          for (int i = 0; i < 4; ++i) {
            const int pair = codes[group * 4 + i];
            words[0] = static_cast<uint16_t>(words[0] | (pair & 15) << (4 * i));
            words[1] = static_cast<uint16_t>(words[1] | (pair >> 4) << (4 * i));
          }
          std::memcpy(out.tiles + index * bytes + (half * 2 + group) * 64 + lane * 4, words,
                      sizeof(words));
        }
      }
    }
  }
}

void pack_transposed_bf16(const Bf16* w, int64_t n, int64_t k, int64_t ldw, PackedMatrix* out,
                          int64_t k_begin, int64_t k_end) {
  require(out->format == WeightFormat::kBf16 && out->n == k && out->k == n && n % kTileK == 0 &&
              k_begin >= 0 && k_begin <= k_end && k_end <= k && k_begin % kTileN == 0 &&
              (k_end % kTileN == 0 || k_end == k),
          "packing rows {}..{} of the transpose of [{}, {}] into [{}, {}]: BF16, n a multiple of "
          "32, rows multiples of 16",
          k_begin, k_end, n, k, out->n, out->k);
  for (int64_t k0 = k_begin; k0 < k_end; k0 += kTileN) {
    const int64_t valid = std::min(kTileN, k_end - k0);
    auto* to = reinterpret_cast<Bf16*>(out->tiles) + k0 * out->k;
    for (int64_t n0 = 0; n0 < n; n0 += 2, to += 2 * kTileN) {
      const Bf16* even = w + n0 * ldw + k0;
      const Bf16* odd = even + ldw;
      if (valid == kTileN) {
        for (int64_t i = 0; i < kTileN; ++i) {
          to[2 * i] = even[i];
          to[2 * i + 1] = odd[i];
        }
        continue;
      }
      for (int64_t i = 0; i < kTileN; ++i) {
        to[2 * i] = i < valid ? even[i] : Bf16{0};
        to[2 * i + 1] = i < valid ? odd[i] : Bf16{0};
      }
    }
  }
}

void unpack(const PackedMatrix& packed, const int32_t* block_position, Bf16* out, int64_t ldo) {
  for (int64_t n = 0; n < packed.n; ++n) {
    for (int64_t block = 0; block < packed.k / 16; ++block) {
      const int64_t position = block_position != nullptr ? block_position[block] : block;
      float values[16] = {};
      half_row_values(packed, n / kTileN * packed.k_tiles() + position / 2, position % 2,
                      n % kTileN, values);
      Bf16* to = out + n * ldo + block * 16;
      for (int64_t i = 0; i < 16; ++i) to[i] = to_bf16(values[i] * packed.alpha);
    }
  }
}

}  // namespace quads::kernels
