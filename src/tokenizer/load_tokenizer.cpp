// Reads a tokenizer's files from a model directory.
#include "io/file.h"
#include "tokenizer/json_tokenizer.h"

namespace quads {

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory) {
  constexpr size_t kMaxBytes = size_t{256} << 20;
  TokenizerFiles files;
  files["tokenizer.json"] = read_text_file(directory / "tokenizer.json", kMaxBytes);
  // What stands beside it for transformers; kept to be saved again.
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    if (std::filesystem::exists(directory / name)) {
      files[name] = read_text_file(directory / name, kMaxBytes);
    }
  }
  return std::make_unique<JsonTokenizer>(std::move(files), directory.string());
}

}  // namespace quads
