// Models: pieces of text to ids of the vocabulary.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/json.h"
#include "tokenizer/piece.h"
#include "tokenizer/vocabulary.h"

namespace quads {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the ids of `piece`, which is text and not empty. Error for what has no token.
  virtual void encode(const Piece& piece, std::vector<int32_t>& ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

/// Of tokenizer.json's "model": BPE or WordLevel. Error, naming `where`, for others, and for an
/// option that would change the result and is not supported.
std::unique_ptr<TokenModel> make_model(const Json& json, const std::string& where);

}  // namespace quads
