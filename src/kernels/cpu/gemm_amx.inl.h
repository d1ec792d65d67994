// The matrix products on AMX tiles; everything else of this instruction set is AVX-512's.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/isa_tables.h"

namespace quads::kernels::amx {
namespace {  // internal: a copy compiled for this instruction set must never serve another

constexpr int64_t kTileK = 32;
constexpr int64_t kTileN = 16;
constexpr int64_t kTileElements = kTileK * kTileN;

// Products of few rows: 1 x 4 tiles of C (0-3), three of B in turn (4-6), one of A (7).
// Others: 2 x 2 of C (0, 1 above 2, 3), two of B (4, 5), two of A (6, 7).
constexpr int64_t kFewRows = 16;
constexpr int64_t kStripTiles = 16;  // tiles along K decoded at a time: 32 KiB for a strip of 32 n
constexpr int64_t kStripN = 2 * kTileN;
constexpr int64_t kBlockStrips = 8;  // strips that share a block of x in L2
constexpr int64_t kBlockRows = 512;
constexpr int64_t kBlockC = 4 * kTileN * kTileN;  // floats of a packed 32 x 32 block of C

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// Tiles 0-3 and 7 with `rows` rows.
inline void configure_few_rows(int64_t rows) {
  TileConfig config;
  for (int tile : {0, 1, 2, 3, 7}) config.rows[tile] = static_cast<uint8_t>(rows);
  tile_configure(config);
}
/// Tiles of the upper 16 rows with `upper` rows, those of the lower with `lower`; both 1..16.
inline void configure_blocks(int64_t upper, int64_t lower) {
  TileConfig config;
  for (int tile : {0, 1, 6}) config.rows[tile] = static_cast<uint8_t>(upper);
  for (int tile : {2, 3, 7}) config.rows[tile] = static_cast<uint8_t>(lower);
  tile_configure(config);
}

/// Decodes a packed tile to BF16 [16 k-pairs][16 n][2], as the format's comments in gemm_kernels.h
/// say: BF16 and FP8 to the value, NVFP4 to value * 2^-112.
class Decoder {
 public:
  Decoder() {
    // FP16 of 256 times the sixteen codes, twice: the permutation reads five bits of the index.
    alignas(64) static const uint16_t kCodes[32] = {
        0x0000, 0x5800, 0x5C00, 0x5E00, 0x6000, 0x6200, 0x6400, 0x6600, 0x8000, 0xD800, 0xDC00,
        0xDE00, 0xE000, 0xE200, 0xE400, 0xE600, 0x0000, 0x5800, 0x5C00, 0x5E00, 0x6000, 0x6200,
        0x6400, 0x6600, 0x8000, 0xD800, 0xDC00, 0xDE00, 0xE000, 0xE200, 0xE400, 0xE600};
    codes_ = _mm512_load_si512(kCodes);
    alignas(64) uint8_t twice[64];
    for (int i = 0; i < 64; ++i) twice[i] = static_cast<uint8_t>(i / 4);
    twice_ = _mm512_load_si512(twice);
  }

  void decode(const PackedMatrix& weight, int64_t index, uint16_t* out) const {
    switch (weight.format) {
      case WeightFormat::kBf16:
        std::memcpy(out, weight.tiles + index * 1024, 1024);
        return;
      case WeightFormat::kFp8:
        decode_fp8(weight.tiles + index * 512, static_cast<int8_t>(weight.scales[index]), out);
        return;
      case WeightFormat::kNvfp4:
        decode_nvfp4(weight.tiles + index * 256, weight.scales + index * 32, out);
        return;
    }
  }

 private:
  /// FP16 to BF16 of the value times 2^-112: the sign stays, exponent and mantissa move down.
  static __m512i shift_to_bf16(__m512i halves) {
    return _mm512_and_si512(_mm512_srai_epi16(halves, 3),
                            _mm512_set1_epi16(static_cast<int16_t>(0x8FFF)));
  }

  void decode_nvfp4(const uint8_t* tile, const uint8_t* scales, uint16_t* out) const {
    for (int half = 0; half < 2; ++half) {
      // As FP16 the scale's code times 128 is value * 2^-8, which the codes' 256 makes up for.
      const __m512i bytes = _mm512_castsi128_si512(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 16 * half)));
      const __m512i lanes = _mm512_maskz_permutexvar_epi8(0x5555555555555555, twice_, bytes);
      const __m512h scale = _mm512_castsi512_ph(_mm512_slli_epi16(lanes, 7));
      for (int group = 2 * half; group < 2 * half + 2; ++group) {
        __m512i words = _mm512_loadu_si512(tile + group * 64);
        for (int i = 0; i < 4; ++i) {
          const __m512h code = _mm512_castsi512_ph(_mm512_permutexvar_epi16(words, codes_));
          const __m512i value = _mm512_castph_si512(_mm512_mul_ph(code, scale));
          _mm512_store_si512(out + (group * 4 + i) * 32, shift_to_bf16(value));
          words = _mm512_srli_epi16(words, 4);
        }
      }
    }
  }

  static void decode_fp8(const uint8_t* tile, int exponent, uint16_t* out) {
    const __m512i magnitude = _mm512_set1_epi16(0x3F80);
    const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
    const __m512h unbias = _mm512_castsi512_ph(_mm512_set1_epi16(0x5C00));  // 256
    const __m512i shift = _mm512_set1_epi16(static_cast<int16_t>((exponent + 112) * 128));
    for (int pair = 0; pair < 16; ++pair) {
      const __m512i wide = _mm512_cvtepu8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + pair * 32)));
      // As FP16 these bits are value * 2^-8; the product makes subnormal codes normal.
      const __m512i halves =
          _mm512_or_si512(_mm512_and_si512(_mm512_slli_epi16(wide, 7), magnitude),
                          _mm512_and_si512(_mm512_slli_epi16(wide, 8), sign));
      const __m512i value =
          shift_to_bf16(_mm512_castph_si512(_mm512_mul_ph(_mm512_castsi512_ph(halves), unbias)));
      const __mmask32 not_zero = _mm512_test_epi16_mask(wide, _mm512_set1_epi16(0x7F));
      _mm512_store_si512(out + pair * 32, _mm512_mask_add_epi16(value, not_zero, value, shift));
    }
  }

  __m512i codes_;
  __m512i twice_;  // byte i / 4: each scale for the even and the odd element of its n
};

/// y[valid] = c * factor.
inline void store_scaled(float* y, const float* c, __m512 factor, int64_t valid) {
  const auto lanes = static_cast<__mmask16>((1U << valid) - 1U);
  _mm512_mask_storeu_ps(y, lanes, _mm512_mul_ps(_mm512_load_ps(c), factor));
}

/// Up to 16 rows times `tiles_n` (1..4) n-tiles from column n0.
template <int tiles_n>
void few_rows_panel(const GemmArgs& args, const Decoder& decoder, int64_t n0, __m512 factor) {
  const PackedMatrix& weight = *args.weight;
  const int64_t k_tiles = weight.k_tiles();
  const int64_t first = n0 / kTileN * k_tiles;
  const bool direct = weight.format == WeightFormat::kBf16;
  const int64_t ldx = args.ldx * 2;
  const int64_t ldx2 = args.ldx2 * 2;
  // Four tiles in turn, so that a tile is not overwritten right after it was loaded.
  alignas(64) uint16_t buffer[4][tiles_n * kTileElements];
  tile_zero<0>();
  if constexpr (tiles_n > 1) tile_zero<1>();
  if constexpr (tiles_n > 2) tile_zero<2>();
  if constexpr (tiles_n > 3) tile_zero<3>();
  for (int64_t t = 0; t < k_tiles; ++t) {
    const uint16_t* b[tiles_n];
    for (int j = 0; j < tiles_n; ++j) {
      const int64_t index = first + j * k_tiles + t;
      if (direct) {
        b[j] = reinterpret_cast<const uint16_t*>(weight.tiles) + index * kTileElements;
        for (int line = 0; line < 16; ++line) {
          _mm_prefetch(reinterpret_cast<const char*>(b[j] + 4 * kTileElements + line * 32),
                       _MM_HINT_T0);
        }
      } else {
        uint16_t* to = buffer[t % 4] + j * kTileElements;
        decoder.decode(weight, index, to);
        b[j] = to;
      }
    }
    tile_load<7>(args.x + t * kTileK, ldx);
    tile_load<4>(b[0], 64);
    tile_multiply<0, 7, 4>();
    if constexpr (tiles_n > 1) {
      tile_load<5>(b[1], 64);
      tile_multiply<1, 7, 5>();
    }
    if constexpr (tiles_n > 2) {
      tile_load<6>(b[2], 64);
      tile_multiply<2, 7, 6>();
    }
    if constexpr (tiles_n > 3) {
      tile_load<6>(b[3], 64);
      tile_multiply<3, 7, 6>();
    }
    if (t >= args.residual_tiles) continue;
    tile_load<7>(args.x2 + t * kTileK, ldx2);
    tile_multiply<0, 7, 4>();
    if constexpr (tiles_n > 1) tile_multiply<1, 7, 5>();
    if constexpr (tiles_n > 3) {  // tile 6 holds the last of the four: use it before it is replaced
      tile_multiply<3, 7, 6>();
      tile_load<6>(b[2], 64);
    }
    if constexpr (tiles_n > 2) tile_multiply<2, 7, 6>();
  }
  alignas(64) float c[tiles_n][kTileN * kTileN];
  tile_store<0>(c[0], 64);
  if constexpr (tiles_n > 1) tile_store<1>(c[1], 64);
  if constexpr (tiles_n > 2) tile_store<2>(c[2], 64);
  if constexpr (tiles_n > 3) tile_store<3>(c[3], 64);
  float* y = args.y + (n0 - args.n_begin);
  for (int64_t r = 0; r < args.m; ++r) {
    for (int j = 0; j < tiles_n; ++j) {
      store_scaled(y + r * args.ldy + j * kTileN, c[j] + r * kTileN, factor,
                   smaller(kTileN, args.n_end - n0 - j * kTileN));
    }
  }
}

inline void gemm_few_rows(const GemmArgs& args, const Decoder& decoder, __m512 factor) {
  configure_few_rows(args.m);
  for (int64_t n0 = args.n_begin; n0 < args.n_end; n0 += 4 * kTileN) {
    switch (smaller(4, (args.n_end - n0 + kTileN - 1) / kTileN)) {
      case 1:
        few_rows_panel<1>(args, decoder, n0, factor);
        break;
      case 2:
        few_rows_panel<2>(args, decoder, n0, factor);
        break;
      case 3:
        few_rows_panel<3>(args, decoder, n0, factor);
        break;
      default:
        few_rows_panel<4>(args, decoder, n0, factor);
        break;
    }
  }
}

/// The operands of a 32 x (16 * tiles_n) block of C over a run of K tiles. Row strides in bytes.
struct Block {
  const Bf16* upper;  // x, first 16 rows
  const Bf16* lower;  // the next 16; anything readable if there are none
  int64_t ldx;
  int64_t step;        // elements of x from one tile along K to the next
  const Bf16* upper2;  // the same of x2
  const Bf16* lower2;
  int64_t ldx2;
  const uint16_t* b[2];  // BF16 tiles, one after the other along K
  int64_t tiles;
  int64_t residual_tiles;
};

template <int tiles_n>
inline void multiply_block(const Block& block, bool first, float* c) {
  if (first) {
    tile_zero<0>();
    tile_zero<2>();
    if constexpr (tiles_n > 1) {
      tile_zero<1>();
      tile_zero<3>();
    }
  } else {
    tile_load<0>(c, 64);
    tile_load<2>(c + 512, 64);
    if constexpr (tiles_n > 1) {
      tile_load<1>(c + 256, 64);
      tile_load<3>(c + 768, 64);
    }
  }
  for (int64_t t = 0; t < block.tiles; ++t) {
    tile_load<4>(block.b[0] + t * kTileElements, 64);
    tile_load<6>(block.upper + t * block.step, block.ldx);
    if constexpr (tiles_n > 1) tile_load<5>(block.b[1] + t * kTileElements, 64);
    tile_multiply<0, 6, 4>();
    tile_load<7>(block.lower + t * block.step, block.ldx);
    if constexpr (tiles_n > 1) tile_multiply<1, 6, 5>();
    tile_multiply<2, 7, 4>();
    if constexpr (tiles_n > 1) tile_multiply<3, 7, 5>();
    if (t >= block.residual_tiles) continue;
    tile_load<6>(block.upper2 + t * kTileK, block.ldx2);
    tile_multiply<0, 6, 4>();
    tile_load<7>(block.lower2 + t * kTileK, block.ldx2);
    if constexpr (tiles_n > 1) tile_multiply<1, 6, 5>();
    tile_multiply<2, 7, 4>();
    if constexpr (tiles_n > 1) tile_multiply<3, 7, 5>();
  }
  tile_store<0>(c, 64);
  tile_store<2>(c + 512, 64);
  if constexpr (tiles_n > 1) {
    tile_store<1>(c + 256, 64);
    tile_store<3>(c + 768, 64);
  }
}

/// Rows m0 .. m0 + rows (at most kBlockRows) times the strips from n0 on, at most kBlockStrips.
inline void gemm_block(const GemmArgs& args, const Decoder& decoder, int64_t m0, int64_t rows,
                       int64_t n0, __m512 factor, float* c) {
  const PackedMatrix& weight = *args.weight;
  const int64_t k_tiles = weight.k_tiles();
  const int64_t n1 = smaller(args.n_end, n0 + kBlockStrips * kStripN);
  const int64_t row_blocks = (rows + 31) / 32;
  alignas(64) uint16_t buffer[2][kStripTiles * kTileElements];
  for (int64_t t0 = 0; t0 < k_tiles; t0 += kStripTiles) {
    const int64_t tiles = smaller(kStripTiles, k_tiles - t0);
    const bool last = t0 + tiles == k_tiles;
    for (int64_t n = n0; n < n1; n += kStripN) {
      const int tiles_n = n1 - n > kTileN ? 2 : 1;
      Block block = {};
      for (int j = 0; j < tiles_n; ++j) {
        const int64_t index = (n / kTileN + j) * k_tiles + t0;
        if (weight.format == WeightFormat::kBf16) {
          block.b[j] = reinterpret_cast<const uint16_t*>(weight.tiles) + index * kTileElements;
          continue;
        }
        for (int64_t t = 0; t < tiles; ++t) {
          decoder.decode(weight, index + t, buffer[j] + t * kTileElements);
        }
        block.b[j] = buffer[j];
      }
      block.ldx = args.ldx * 2;
      block.step = kTileK;
      block.ldx2 = args.ldx2 * 2;
      block.tiles = tiles;
      block.residual_tiles = args.residual_tiles - t0;
      for (int64_t i = 0; i < row_blocks; ++i) {
        const int64_t row = m0 + i * 32;
        const int64_t left = smaller(32, rows - i * 32);
        const int64_t below = left > 16 ? 16 : 0;  // without lower rows the upper ones stand in
        if (left < 32) configure_blocks(smaller(16, left), left > 16 ? left - 16 : 1);
        block.upper = args.x + row * args.ldx + t0 * kTileK;
        block.lower = block.upper + below * args.ldx;
        if (block.residual_tiles > 0) {
          block.upper2 = args.x2 + row * args.ldx2 + t0 * kTileK;
          block.lower2 = block.upper2 + below * args.ldx2;
        }
        float* cb = c + ((n - n0) / kStripN * (kBlockRows / 32) + i) * kBlockC;
        if (tiles_n == 2) {
          multiply_block<2>(block, t0 == 0, cb);
        } else {
          multiply_block<1>(block, t0 == 0, cb);
        }
        if (left < 32) configure_blocks(16, 16);
        if (!last) continue;
        float* y = args.y + row * args.ldy + (n - args.n_begin);
        for (int64_t r = 0; r < left; ++r) {
          const float* from = cb + r / 16 * 512 + r % 16 * 16;
          for (int j = 0; j < tiles_n; ++j) {
            store_scaled(y + r * args.ldy + j * kTileN, from + j * 256, factor,
                         smaller(kTileN, n1 - n - j * kTileN));
          }
        }
      }
    }
  }
}

inline void gemm(const GemmArgs& args) {
  if (args.m == 0) return;
  const Decoder decoder;
  const __m512 factor = _mm512_set1_ps(args.weight->alpha * activation_scale(args.weight->format));
  if (args.m <= kFewRows) {
    gemm_few_rows(args, decoder, factor);
  } else {
    alignas(64) float c[kBlockStrips * (kBlockRows / 32) * kBlockC];  // 512 KiB, touched as needed
    configure_blocks(16, 16);
    for (int64_t m0 = 0; m0 < args.m; m0 += kBlockRows) {
      const int64_t rows = smaller(kBlockRows, args.m - m0);
      for (int64_t n0 = args.n_begin; n0 < args.n_end; n0 += kBlockStrips * kStripN) {
        gemm_block(args, decoder, m0, rows, n0, factor, c);
      }
    }
  }
  tile_release();
}

constexpr int64_t kDwChunk = 256;   // rows of dy and x summed before they are added to dw
constexpr int64_t kDwPanelN = 256;  // columns of dy transposed at a time
constexpr int64_t kDwTiles = kDwChunk / kTileK;

/// Sixteen columns of two rows, interleaved: lane i = (even[i], odd[i]). A null row is zero.
inline __m512i interleave(const Bf16* even, const Bf16* odd) {
  const auto widen = [](const Bf16* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  const __m512i low = even != nullptr ? widen(even) : _mm512_setzero_si512();
  const __m512i high = odd != nullptr ? widen(odd) : _mm512_setzero_si512();
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/// The pairs of 32 rows of a matrix with m rows, 16 columns: out[pair], zero beyond row m.
inline void load_pairs(const Bf16* x, int64_t ldx, int64_t row, int64_t m, __m512i* out) {
  for (int64_t pair = 0; pair < 16; ++pair) {
    const int64_t even = row + 2 * pair;
    out[pair] = interleave(even < m ? x + even * ldx : nullptr,
                           even + 1 < m ? x + (even + 1) * ldx : nullptr);
  }
}

/// 16 x 16 transposition of 32-bit lanes, in place.
inline void transpose_16x16(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xDD);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xDD);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xDD);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xDD);
  }
}

/// A tile of A: 16 columns of dy as rows, the pairs of 32 rows along them.
inline void pack_dy_tile(const Bf16* dy, int64_t lddy, int64_t row, int64_t m, uint16_t* out) {
  __m512i pairs[16];
  load_pairs(dy, lddy, row, m, pairs);
  transpose_16x16(pairs);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(out + i * 32, pairs[i]);
}
/// A tile of B: the pairs of 32 rows of x as rows, 16 columns along them.
inline void pack_x_tile(const Bf16* x, int64_t ldx, int64_t row, int64_t m, uint16_t* out) {
  __m512i pairs[16];
  load_pairs(x, ldx, row, m, pairs);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(out + i * 32, pairs[i]);
}

/// dw[rows, columns] += scale * c; both 16 or 32, c packed as multiply_block leaves it.
inline void add_block(const float* c, int64_t rows, int64_t columns, __m512 scale, float* dw,
                      int64_t lddw) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns / 16; ++j) {
      float* to = dw + r * lddw + j * 16;
      const __m512 sum = _mm512_load_ps(c + r / 16 * 512 + j * 256 + r % 16 * 16);
      _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_mul_ps(sum, scale)));
    }
  }
}

inline void accumulate_dw(const GemmDwArgs& args) {
  alignas(64) uint16_t a[kDwPanelN / kTileN][kDwTiles * kTileElements];
  alignas(64) uint16_t b[2][kDwTiles * kTileElements];
  alignas(64) float c[kBlockC];
  const __m512 scale = _mm512_set1_ps(args.scale);
  configure_blocks(16, 16);
  for (int64_t m0 = 0; m0 < args.m; m0 += kDwChunk) {
    const int64_t m1 = smaller(args.m, m0 + kDwChunk);
    const int64_t tiles = (m1 - m0 + kTileK - 1) / kTileK;
    for (int64_t n0 = 0; n0 < args.n; n0 += kDwPanelN) {
      const int64_t n1 = smaller(args.n, n0 + kDwPanelN);
      for (int64_t n = n0; n < n1; n += kTileN) {
        for (int64_t t = 0; t < tiles; ++t) {
          pack_dy_tile(args.dy + n, args.lddy, m0 + t * kTileK, m1,
                       a[(n - n0) / kTileN] + t * kTileElements);
        }
      }
      for (int64_t k = 0; k < args.k; k += 2 * kTileN) {
        const int64_t columns = smaller(2 * kTileN, args.k - k);
        for (int64_t j = 0; j < columns / kTileN; ++j) {
          for (int64_t t = 0; t < tiles; ++t) {
            pack_x_tile(args.x + k + j * kTileN, args.ldx, m0 + t * kTileK, m1,
                        b[j] + t * kTileElements);
          }
        }
        for (int64_t n = n0; n < n1; n += 2 * kTileN) {
          const int64_t rows = smaller(2 * kTileN, n1 - n);
          Block block = {};
          block.upper = reinterpret_cast<const Bf16*>(a[(n - n0) / kTileN]);
          block.lower =
              rows > kTileN ? reinterpret_cast<const Bf16*>(a[(n - n0) / kTileN + 1]) : block.upper;
          block.ldx = 64;
          block.step = kTileElements;
          block.b[0] = b[0];
          block.b[1] = b[1];
          block.tiles = tiles;
          if (columns > kTileN) {
            multiply_block<2>(block, true, c);
          } else {
            multiply_block<1>(block, true, c);
          }
          add_block(c, rows, columns, scale, args.dw + n * args.lddw + k, args.lddw);
        }
      }
    }
  }
  tile_release();
}

}  // namespace

GemmKernels gemm_kernels() {
  GemmKernels kernels = avx512::gemm_kernels();
  kernels.gemm = gemm;
  kernels.accumulate_dw = accumulate_dw;
  return kernels;
}

}  // namespace quads::kernels::amx
