// Contract of the matrix-product kernels: one core, BF16 x BF16 -> FP32, with a decoder per weight
// format in front of it.
//
// Order of accumulation, the same on every instruction set and for every shape (it is what AMX's
// tdpbf16ps does): K is cut into tiles of 32; per tile one chain of FP32 fused multiply-adds from 0
// over the even elements and one over the odd ones; then C += (even + odd). With residual
// compensation, tile t of q1 is followed by tile t of q2 when t < residual_tiles. So an element of
// the result depends on its row of x and its row of W alone.
#pragma once

#include <cstdint>

#include "numerics/bf16.h"

namespace quads::kernels {

enum class WeightFormat : uint8_t { kBf16, kFp8, kNvfp4 };

/// NVFP4 tiles are decoded to value * 2^-112 (what a shift turns an FP16 into when it is
/// reinterpreted as BF16: the cheapest decoder), so activations for such weights are stored
/// times 2^56, and the product is multiplied by 2^56 at the end. All three are exact. FP8 tiles are
/// decoded to the very value: there the block's exponent has to be added anyway.
inline constexpr float kQuantisedActivationScale = 0x1p56F;
/// The factor that activations for weights of `format` carry.
constexpr float activation_scale(WeightFormat format) {
  return format == WeightFormat::kNvfp4 ? kQuantisedActivationScale : 1.0F;
}

/// The weight W [n, k] of a linear layer y = x W^T, in tiles of 16 n x 32 k ordered
/// [n_tiles][k_tiles]. n is padded with zero rows to a multiple of 16; k must be a multiple of 32.
struct PackedMatrix {
  WeightFormat format = WeightFormat::kBf16;
  int64_t n = 0;
  int64_t k = 0;
  /// BF16: 1024 B a tile, [16 k-pairs][16 n][2]. FP8: 512 B, the same order. NVFP4: 256 B,
  /// [4 groups of 4 k-pairs][16 n][2] words of 16 bits, nibble i of a word being pair i of the
  /// group. 64-byte aligned.
  uint8_t* tiles = nullptr;
  /// NVFP4: E4M3 block scales [n_tiles][k_tiles][2 halves of 16 k][16 n]. FP8: int8 exponent of the
  /// tile's 128 x 128 block scale (-100..120), [n_tiles][k_tiles]. BF16: null.
  uint8_t* scales = nullptr;
  /// Applied to the FP32 sums: NVFP4's global scale (any float), 1 otherwise. The kernels multiply
  /// by alpha * activation_scale(format).
  float alpha = 1.0F;

  int64_t n_tiles() const { return (n + 15) / 16; }
  int64_t k_tiles() const { return k / 32; }
};

/// Bytes of the two buffers.
int64_t packed_tile_bytes(WeightFormat format, int64_t n, int64_t k);
int64_t packed_scale_bytes(WeightFormat format, int64_t n, int64_t k);

/// y[m, n_begin:n_end] = alpha' * (x W^T + x2 W[:, :32 * residual_tiles]^T), for m rows.
struct GemmArgs {
  const PackedMatrix* weight;
  const Bf16* x;  // [m, k], row stride ldx; any alignment
  int64_t ldx;
  const Bf16* x2;  // [m, 32 * residual_tiles], row stride ldx2; null without compensation
  int64_t ldx2;
  int64_t residual_tiles;
  float* y;  // element (0, n_begin) of the output; row stride ldy
  int64_t ldy;
  int64_t m;
  int64_t n_begin, n_end;  // n_begin is a multiple of 16; n_end too unless it is n
};

/// dw[n, k] += scale * dy[m, n]^T x[m, k], FP32 accumulators. The order over m is fixed (rows in
/// order, chunked by shape only); the bits may differ between instruction sets.
struct GemmDwArgs {
  const Bf16* dy;  // row stride lddy
  int64_t lddy;
  const Bf16* x;  // row stride ldx
  int64_t ldx;
  int64_t m, n, k;  // any m >= 0; n, k multiples of 16
  float scale;
  float* dw;  // row stride lddw
  int64_t lddw;
};

/// Quantise (where the format asks for it) and pack rows n_begin..n_end (multiples of 16 unless n)
/// into the buffers of `out`; its other fields, alpha included, are the caller's to set. `w` must
/// be finite (see amax), and so must the dequantised values (numerics: require_fits_bf16). Error on
/// shapes, ranges, scales or positions that do not fit.
struct PackArgs {
  const Bf16* w;  // [n, k] row-major, row stride ldw
  int64_t ldw;
  /// NVFP4: the global scale, a power of two or not. FP8: unused, block scales are found here, so
  /// n_begin must be a multiple of 128 and k blocks start at 0.
  float global_scale;
  /// [k / 16]: the position that each 16-channel block takes along K; null for identity.
  const int32_t* block_position;
  PackedMatrix* out;
  int64_t n_begin, n_end;
};

struct AmaxResult {
  float amax;          // over the finite elements
  int64_t non_finite;  // index of the first NaN or Inf, -1 if none
};

struct GemmKernels {
  void (*gemm)(const GemmArgs&);
  void (*accumulate_dw)(const GemmDwArgs&);
  void (*pack)(const PackArgs&);
  /// amax over `count` BF16 values.
  AmaxResult (*amax)(const Bf16* x, int64_t count);
};

/// Pack W^T of a row-major BF16 W [n, k] as BF16 (a matrix [k, n]; n a multiple of 32): the operand
/// of dX = dY W. Rows k_begin..k_end of the result.
void pack_transposed_bf16(const Bf16* w, int64_t n, int64_t k, int64_t ldw, PackedMatrix* out,
                          int64_t k_begin, int64_t k_end);

/// Packs NVFP4 weights that are quantised already into rows of `out`, as they are: `codes`
/// [n, k / 2], two a byte, the even one in the low nibble, and E4M3 `block_scales` [n, k / 16], as
/// checkpoints have them. `out`'s alpha is the caller's to set; `block_position` as for pack. Error
/// on a range or positions that do not fit.
struct PackStoredArgs {
  const uint8_t* codes;
  const uint8_t* block_scales;
  const int32_t* block_position;
  PackedMatrix* out;
  int64_t n_begin, n_end;
};
void pack_stored_nvfp4(const PackStoredArgs& args);

/// The inverse of packing: row-major dequantised values [n, k] in the natural order of K, times
/// alpha; exact in BF16 when alpha is a power of two. `block_position` as given to pack.
void unpack(const PackedMatrix& packed, const int32_t* block_position, Bf16* out, int64_t ldo);

}  // namespace quads::kernels
