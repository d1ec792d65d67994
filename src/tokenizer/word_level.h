// The WordLevel model: a piece is a token or unknown.
#pragma once

#include <optional>

#include "tokenizer/model.h"

namespace quads {

class WordLevel : public TokenModel {
 public:
  WordLevel(const Json& json, const std::string& where);
  void encode(const Piece& piece, std::vector<int32_t>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  std::optional<int32_t> unknown_;
};

}  // namespace quads
