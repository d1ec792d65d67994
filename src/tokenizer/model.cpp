// Chooses the model.
#include "tokenizer/model.h"

#include "tokenizer/bpe.h"
#include "tokenizer/word_level.h"

namespace quads {

std::unique_ptr<TokenModel> make_model(const Json& json, const std::string& where) {
  // The oldest files do not name the type.
  const std::string type = get_or<std::string>(
      json, "type", json.is_object() && json.contains("merges") ? "BPE" : "", where);
  const std::string what = fmt::format("{} {}", where, type);
  if (type == "BPE") {
    return std::make_unique<Bpe>(json, what);
  }
  require(type == "WordLevel", "{}: type '{}' is not supported (BPE, WordLevel are)", where, type);
  return std::make_unique<WordLevel>(json, what);
}

}  // namespace quads
