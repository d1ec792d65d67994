// NVFP4 weights as a checkpoint stores them, to be multiplied with as they are.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "model/parameters.h"
#include "model/precision.h"

namespace quads {

/// A parameter [rows, cols]: value = e2m1 * e4m3 * global_scale, where the global scale is any
/// positive FP32 number and is applied to the FP32 sums of a product.
struct StoredMatrix {
  std::vector<uint8_t> codes;         // [rows, cols / 2], the even column in the low nibble
  std::vector<uint8_t> block_scales;  // [rows, cols / 16], E4M3, neither negative nor NaN
  float global_scale = 1.0F;
};

/// By index into ParameterLayout::parameters.
using StoredWeights = std::unordered_map<int64_t, StoredMatrix>;

/// Error, naming the tensor, unless `precision` multiplies with NVFP4 weights and exactly the
/// parameters that it quantises, those of `quantised` [parameters], are stored, in their sizes.
void require_stored(const StoredWeights& stored, const ParameterLayout& layout,
                    const Precision& precision, const std::vector<bool>& quantised);

}  // namespace quads
