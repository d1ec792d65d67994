// What a model directory holds beside its weights and config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/model_config.h"
#include "tokenizer/tokenizer.h"

namespace quads {

/// Writes the tokenizer's files and generation_config.json, in which a response ends with one of
/// `stop_tokens`.
void save_text_files(const Tokenizer& tokenizer, const std::vector<int32_t>& stop_tokens,
                     const ModelConfig& config, const std::filesystem::path& directory);

}  // namespace quads
