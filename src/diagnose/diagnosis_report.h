// A diagnosis as text and JSON.
#pragma once

#include <string>

#include "diagnose/diagnosis.h"

namespace quads {

/// Tables: the parts of each pair's gap, and the relative errors by layer and projection.
std::string diagnosis_tables(const Diagnosis& diagnosis);

/// {"pairs": [{"rollout", "trainer", "tokens", "dominant", "parts": {"delta_act": {"max", "mean",
/// "p99", "bias", "kl_k3", "share"}, ..., "gap": {...}}}], "projections": [{"layer", "projection",
/// "relative_error": {"w4a16", "nvfp4", "nvfp4-rac50"}}]}, indented.
std::string diagnosis_json(const Diagnosis& diagnosis);

/// One JSON object a pair and sample: rollout, trainer, index, sample, response_tokens, logprobs
/// (the rollout's), delta_act, delta_weight, delta_num, gap: a value a token.
void write_token_deltas(const std::string& path, const Diagnosis& diagnosis);

}  // namespace quads
