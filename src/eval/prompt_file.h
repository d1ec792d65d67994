// Prompts from a JSON Lines file, to sample from or, with a response, to score.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "tokenizer/tokenizer.h"

namespace quads {

struct PromptLine {
  std::string where;  // "file:line", for messages
  int64_t index = 0;
  int32_t sample = 0;
  std::string prompt;  // text, if there is any
  bool from_tokens = false;
  std::vector<int32_t> tokens;
  std::optional<std::vector<int32_t>> response;
  std::optional<std::string> label;
  std::shared_ptr<const Json> metadata;  // an object for the reward; null if there is none
};

/// Every line is an object with "prompt" (text) or "prompt_tokens" (ids; they win over the text),
/// and perhaps "response_tokens", "label", "metadata", "index" (default: the line's place, from 0)
/// and "sample" (default 0); other keys are ignored, so that a rollout's output can be read back.
/// `tokenizer` may be null if every line has ids. Errors name file and line.
std::vector<PromptLine> read_prompts(const std::filesystem::path& path, const Tokenizer* tokenizer);

}  // namespace quads
