// The slow, readable forward of the whole model in FP32, on plain loops: what `--precision fp32`
// runs, and what the fast blocks are held against.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/parameters.h"

namespace quads {

/// Logits [tokens, vocab_size] of one sequence from position 0: row i is the distribution of the
/// token after tokens[i]. The formulas are those of transformers' modeling files; values are kept
/// in FP32, sums are taken in double, nothing is rounded to BF16. Error on a token outside the
/// vocabulary.
std::vector<float> reference_logits(const Parameters& parameters, std::span<const int32_t> tokens);

}  // namespace quads
