// The NVFP4 quantiser: E2M1 codes, one E4M3 scale for 16 consecutive values along K, one FP32
// global scale above. value = e2m1 * (e4m3 * g). The scalar reference for every faster one.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "numerics/matrix.h"

namespace quads {

inline constexpr int64_t kNvfp4Block = 16;
inline constexpr float kNvfp4Max = 2688.0F;  // 6 * 448, the largest e2m1 * e4m3

/// The smallest power of two g with 2688 g >= amax, at least 2^-100; 1 when amax is 0. With it
/// every quantised value is exact in BF16. Fails on a negative or non-finite amax.
float global_scale_pow2(float amax);

/// amax / 2688, at least 2^-100; 1 when amax is 0: the global scale of other tools' checkpoints.
float global_scale_arbitrary(float amax);

/// E4M3 code of the block scale: round-to-nearest-even of block_amax / (6 g), at most 448. FP32, in
/// that order.
uint8_t block_scale(float block_amax, float g);

/// E2M1 code of x under the E4M3 scale `sf` (a code) and g; 0 when the scale is 0. A power-of-two g
/// compares |x| with boundary * sf * g, exactly; any other takes one product and one division.
uint8_t nvfp4_code(float x, uint8_t sf, float g);

/// e2m1 * (e4m3 * g), FP32.
float nvfp4_value(uint8_t code, uint8_t sf, float g);

/// Quantises one block: writes 16 codes, one a byte, and returns the block scale's code.
uint8_t quantise_block(std::span<const float, 16> x, float g, std::span<uint8_t, 16> codes);

/// Two codes a byte, the even one in the low nibble. `codes` has an even size.
std::vector<uint8_t> pack_nibbles(std::span<const uint8_t> codes);
std::vector<uint8_t> unpack_nibbles(std::span<const uint8_t> packed);

/// One quantised row, its codes not packed. Global scale, codes [k], E4M3 scales [k / 16] and the
/// dequantised values [k].
struct QuantisedRow {
  float global_scale = 1.0F;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> block_scales;
  std::vector<float> values;
};

/// Quantises a row under a given g. `tensor` and `row` are for error messages: fails when k is not
/// a multiple of 16, g is not positive and finite, a value is not finite, or a dequantised value
/// does not fit into BF16.
QuantisedRow quantise_row(std::span<const float> x, float g, std::string_view tensor,
                          int64_t row = 0);

/// The same with g from the row itself (power of two), as activations are quantised: a row's result
/// depends on that row alone.
QuantisedRow quantise_activation_row(std::span<const float> x, std::string_view tensor,
                                     int64_t row = 0);

struct Nvfp4Matrix {
  int64_t rows = 0;
  int64_t k = 0;
  float global_scale = 1.0F;
  std::vector<uint8_t> packed;        // [rows, k / 2]
  std::vector<uint8_t> block_scales;  // [rows, k / 16], E4M3
};

/// Quantises x [rows, k], k a multiple of 16, under a given g; errors as for a row. Matrices that
/// an engine fuses (gate and up) are given the g of their joint amax.
Nvfp4Matrix quantise_nvfp4(std::span<const float> x, int64_t rows, int64_t k, float g,
                           std::string_view tensor);

/// Back to FP32 [rows, k]. Fails on sizes that do not fit the shape and on a block scale that is
/// negative or NaN, as a file may hold.
std::vector<float> dequantise_nvfp4(const Nvfp4Matrix& matrix, std::string_view tensor);

/// x through quantise and dequantise with the power-of-two g of its own amax.
std::vector<float> fake_quantise_nvfp4(std::span<const float> x, int64_t rows, int64_t k,
                                       std::string_view tensor);

}  // namespace quads
