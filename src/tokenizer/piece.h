// A piece of the text on its way to tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace quads {

struct Piece {
  std::string text;       // valid UTF-8
  size_t offset = 0;      // where it begins, in the text or, after a normalizer, in what that made
  bool at_start = false;  // it begins with the first byte of the original text
  int32_t id = -1;        // of the added token that it is; -1 for text

  /// Bytes [begin, end) of it.
  Piece part(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), offset + begin, at_start && begin == 0, -1};
  }
};

}  // namespace quads
