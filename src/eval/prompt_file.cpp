#include "eval/prompt_file.h"

#include "base/error.h"
#include "io/jsonl.h"

namespace quads {
std::vector<PromptLine> read_prompts(const std::filesystem::path& path,
                                     const Tokenizer* tokenizer) {
  std::vector<PromptLine> lines;
  for_each_jsonl(path, [&](const Json& json, const std::string& where) {
    PromptLine line;
    line.where = where;
    line.index = get_or<int64_t>(json, "index", std::ssize(lines), where);
    line.sample = get_or<int32_t>(json, "sample", 0, where);
    require(line.index >= 0 && line.sample >= 0, "{}: 'index' {} and 'sample' {} must be >= 0",
            where, line.index, line.sample);
    const auto prompt = json.find("prompt");
    require(prompt == json.end() || !prompt->is_array(),
            "{}: 'prompt' is a list of messages, a text is expected: scripts/render_prompts.py "
            "renders them with the model's chat template",
            where);
    line.prompt = get_or<std::string>(json, "prompt", "", where);
    line.label = find_key<std::string>(json, "label", where);
    if (auto metadata = find_key<Json>(json, "metadata", where)) {
      require(metadata->is_object(), "{}: 'metadata': {} is not an object", where,
              json_excerpt(*metadata));
      line.metadata = std::make_shared<const Json>(*std::move(metadata));
    }
    line.response = find_key<std::vector<int32_t>>(json, "response_tokens", where);
    if (auto tokens = find_key<std::vector<int32_t>>(json, "prompt_tokens", where)) {
      line.tokens = *std::move(tokens);
      line.from_tokens = true;
    } else {
      require(json.contains("prompt"), "{}: neither 'prompt' nor 'prompt_tokens' is there", where);
      require(!line.prompt.empty(), "{}: 'prompt' is empty: it needs at least one token", where);
      require(tokenizer != nullptr,
              "{}: the model has no tokenizer.json, so 'prompt_tokens' is needed", where);
      try {
        line.tokens = tokenizer->encode(line.prompt);
      } catch (const Error& error) {
        fail("{}: 'prompt': {}", where, error.what());
      }
    }
    require(!line.tokens.empty(), "{}: the prompt is empty: it needs at least one token", where);
    lines.push_back(std::move(line));
  });
  require(!lines.empty(), "{}: no prompts in it", path.string());
  return lines;
}

}  // namespace quads
