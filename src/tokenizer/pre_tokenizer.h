// Pre-tokenizers: the cuts that no token may span.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/json.h"
#include "tokenizer/piece.h"

namespace quads {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Appends the parts of `piece`, which is text and not empty, to `out`; none is empty.
  virtual void split(Piece piece, std::vector<Piece>& out) const = 0;
};

/// Of tokenizer.json's "pre_tokenizer": ByteLevel, Split, Digits, Whitespace, WhitespaceSplit,
/// Metaspace, Punctuation, and a Sequence of these. Error, naming `where`, for others and for
/// unknown or missing options.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where);

}  // namespace quads
