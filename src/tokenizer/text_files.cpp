#include "tokenizer/text_files.h"

#include "io/generation_config.h"

namespace quads {

void save_text_files(const Tokenizer& tokenizer, const std::vector<int32_t>& stop_tokens,
                     const ModelConfig& config, const std::filesystem::path& directory) {
  tokenizer.save(directory);
  save_generation_config({.eos_token_ids = stop_tokens, .pad_token_id = config.pad_token_id},
                         directory);
}

}  // namespace quads
