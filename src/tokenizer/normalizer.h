// Normalizers: what happens to the text before it is split.
#pragma once

#include <memory>
#include <string>

#include "io/json.h"
#include "tokenizer/piece.h"

namespace quads {

/// More than any normalizer in use makes of a text: so many times its bytes (NFKD: 11), and so many
/// bytes besides. One that is hostile multiplies a text without end.
inline constexpr size_t kMostGrowth = 16;
inline constexpr size_t kMostNormalizedBytes = size_t{32} << 20;

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Changes the text of `piece`, and at_start if what it began with is gone.
  virtual void normalize(Piece& piece) const = 0;
};

/// Of tokenizer.json's "normalizer": NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, and
/// a Sequence of these. Error, naming `where`, for others and for unknown or missing options.
std::unique_ptr<Normalizer> make_normalizer(const Json& json, const std::string& where);

}  // namespace quads
