// The part of config.json that says how positions are rotated (RoPE), in the spellings of
// transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/json.h"

namespace quads {

enum class RopeType : uint8_t { kDefault, kLinear, kYarn, kLlama3 };

/// theta is rope_theta, the other fields carry the names of config.json; those of other types than
/// `type` keep their defaults.
struct RopeConfig {
  double theta = 10000.0;
  RopeType type = RopeType::kDefault;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;  // yarn, llama3

  double beta_fast = 32.0, beta_slow = 1.0;  // yarn
  bool truncate = true;
  std::optional<double> attention_factor;

  double low_freq_factor = 0.0, high_freq_factor = 0.0;  // llama3

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

/// Error (with `where` in front) on values out of range.
void validate(const RopeConfig& rope, const std::string& where);

/// Reads it from config.json's object. Error if no base is given, if two places contradict each
/// other, on another type, and on a key that the type does not have with a value that is not off;
/// each names key and value. A missing original_max_position_embeddings is
/// max_position_embeddings, as in transformers 5.
RopeConfig read_rope(const Json& json, int64_t max_position_embeddings, const std::string& where);

/// Writes it into config.json's object, in both spellings.
void write_rope(const RopeConfig& rope, Json& json);

/// null, false, 0, "", [] and {} say that a feature is not used.
bool is_off(const Json& value);

}  // namespace quads
