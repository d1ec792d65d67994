// A tensor of a file as BF16.
#pragma once

#include <string_view>

#include "io/safetensors.h"
#include "numerics/bf16.h"

namespace quads {

/// Elements [begin, begin + count) of a tensor that is BF16, F16 or F32 (rounded to BF16). Error
/// naming tensor, row and column if a value is not finite in BF16.
void read_tensor(const TensorView& view, int64_t begin, int64_t count, Bf16* out);

/// Error naming the tensor unless read_tensor reads its type.
void require_readable(const TensorView& view);

/// Error naming tensor, row and column unless `x` is finite, in BF16 too; `index` is its place in a
/// tensor whose last extent is `cols`.
void require_finite(float x, std::string_view tensor, int64_t index, int64_t cols);

}  // namespace quads
