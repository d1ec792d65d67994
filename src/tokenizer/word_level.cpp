// Looks pieces up.
#include "tokenizer/word_level.h"

#include "tokenizer/component.h"

namespace quads {

WordLevel::WordLevel(const Json& json, const std::string& where)
    : vocabulary_(member(json, "vocab", where), where),
      unknown_(vocabulary_.find(get<std::string>(json, "unk_token", where))) {
  check_options(json, {"vocab", "unk_token"}, where);
}

void WordLevel::encode(const Piece& piece, std::vector<int32_t>& ids) const {
  const std::optional<int32_t> id = vocabulary_.find(piece.text);
  require(id || unknown_, "'{}' at byte {} of the (normalized) text to encode has no token",
          piece.text, piece.offset);
  ids.push_back(id ? *id : *unknown_);
}

}  // namespace quads
