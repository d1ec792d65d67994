// A model's generation_config.json: which tokens end a response, and the sampling its makers
// advise.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace quads {

struct GenerationConfig {
  std::vector<int32_t> eos_token_ids{};
  std::optional<int32_t> bos_token_id{};
  std::optional<int32_t> pad_token_id{};
  std::optional<double> temperature{};  // > 0
  std::optional<double> top_p{};        // in (0, 1]
  std::optional<int64_t> top_k{};       // >= 0; 0 is no limit

  friend bool operator==(const GenerationConfig&, const GenerationConfig&) = default;
};

/// `directory`/generation_config.json, or nothing if there is none. Other keys of the file are
/// ignored: how to sample is said by the caller, and these are defaults only. Error for a value out
/// of range.
std::optional<GenerationConfig> load_generation_config(const std::filesystem::path& directory);

/// Writes what transformers' GenerationConfig.from_pretrained loads.
void save_generation_config(const GenerationConfig& config, const std::filesystem::path& directory);

}  // namespace quads
