// Metaspace, SentencePiece's way to keep spaces: the options that its pre-tokenizer and its decoder
// share.
#pragma once

#include <string>

#include "io/json.h"

namespace quads {

struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };

  std::string replacement;  // one character, for a space
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

/// Reads the options, those of older versions too. Error, naming `where`, for unknown or
/// contradicting ones.
Metaspace read_metaspace(const Json& json, const std::string& where);

}  // namespace quads
