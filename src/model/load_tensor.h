// One tensor of a file into the parameters.
#pragma once

#include <string_view>

#include "io/safetensors.h"
#include "model/tensor_map.h"

namespace quads {

/// Copies a tensor, BF16, F16 or F32 (rounded to BF16), to its place. Error naming it if the model
/// has none of that name and shape, or if a value is not finite in BF16.
void load_tensor(const TensorView& view, TensorMap& map, Parameters& parameters);

/// Error unless `head` is the embedding: what a file with tied embeddings may store besides.
void require_tied(const TensorView& head, const Parameters& parameters);

/// Error naming tensor, row and column unless `x` is finite, in BF16 too; `index` is its place in a
/// tensor whose last extent is `cols`.
void require_finite(float x, std::string_view tensor, int64_t index, int64_t cols);

}  // namespace quads
