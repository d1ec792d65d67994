// Random problems for the CUDA kernels and what the scalar reference makes of them, on the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/cuda/experts/activation_image.h"
#include "kernels/cuda/experts/weight_format.h"
#include "numerics/bf16.h"
#include "numerics/fp8.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::cuda {

/// Any codes; scales around 1, some of them 0, subnormal or large; g = 2^-8 .. 2^-10.
Nvfp4Matrix random_weight(int64_t rows, int64_t k, uint64_t seed);

/// Any codes; scales 2^-12 .. 2^-9, one of them 2^-100.
Fp8Matrix random_fp8_weight(int64_t rows, int64_t k, uint64_t seed);

/// Values that BF16 holds exactly.
std::vector<Bf16> as_bf16(const std::vector<float>& values);

/// The FP16 bits of a value that FP16 holds exactly; fails on any other.
uint16_t exact_fp16(double value);
double fp16_value(uint32_t bits);

/// A permutation of 0 .. blocks - 1.
std::vector<int32_t> shuffled_positions(int64_t blocks, uint64_t seed);

/// A token's activations [k], a function of its id: a bell curve with a few loud channels.
std::vector<Bf16> token_row(int64_t token, int64_t k);

/// Rows sorted by expert.
struct Routing {
  int experts = 0;
  std::vector<int32_t> offsets;      // [experts + 1]
  std::vector<int64_t> tokens;       // [rows]: the token of each sorted row
  std::vector<int32_t> sorted_rows;  // [tokens, top_k]: where each choice went
  std::vector<int32_t> choices;      // [tokens, top_k]: experts

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
};

/// `expert_of(token, j)`: the token's j-th choice; the token is its id.
Routing route_tokens(std::span<const int64_t> tokens, int top_k, int experts,
                     const std::function<int(int64_t, int)>& expert_of);

/// Different experts for the choices of a token, by a hash.
int hashed_expert(int64_t token, int choice, int experts);

/// How activations are compensated. `positions` empty: natural order; `channels` empty: all.
struct Compensation {
  std::vector<int32_t> positions;
  int residual_blocks = 0;
  std::vector<uint8_t> channels;
  bool scale_floor = false;

  bool selects(int64_t channel) const;
};

/// q1 and q2 [k] of one row by numerics, in the natural order, and their global scale.
struct Operands {
  std::vector<float> q1, q2;
  float g = 1.0F;
};
Operands reference_operands(std::span<const Bf16> x, const Compensation& compensation);

/// The images of sorted rows; what no row owns keeps the bits `poison`. Under kNvfp4Fp16 the one of
/// (q1 + q2) / g; an empty q2.
struct Images {
  std::vector<uint16_t> q1, q2;
};
Images reference_images(const std::vector<Operands>& rows, std::span<const ImageRow> places,
                        int64_t padded_rows, int64_t k, const Compensation& compensation,
                        uint16_t poison, WeightFormat format = WeightFormat::kNvfp4);

/// Where each sorted row goes.
std::vector<ImageRow> reference_places(std::span<const int32_t> offsets);
/// Where each choice of a routing goes; nowhere if its sorted row is none of the experts'.
std::vector<ImageRow> places_of_choices(const Routing& routing);

/// y [rows, n] = g W (q1 + q2) in FP64 and, for its bound, the sum of the terms' magnitudes.
struct Product {
  std::vector<double> y, magnitude;
};
Product reference_product(const std::vector<Nvfp4Matrix>& weights, const Routing& routing,
                          const std::vector<Operands>& rows);

}  // namespace quads::kernels::cuda
