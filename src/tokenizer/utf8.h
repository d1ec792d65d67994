// The little of UTF-8 that tokenizers need.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quads {

struct Utf8Sequence {
  enum class Kind {
    kValid,    // one code point
    kInvalid,  // the longest start of a code point that cannot go on, or a single stray byte
    kCut,      // the text ends within a code point that is right so far
  };
  Kind kind;
  size_t length;  // in bytes, at least 1
};

/// What stands at `text[position]` (position < text.size()). An invalid sequence is as long as that
/// which the Unicode standard (and Rust, and Python) replaces by one U+FFFD.
inline Utf8Sequence utf8_sequence(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) {
    return {Utf8Sequence::Kind::kValid, 1};
  }
  const size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0) {
    return {Utf8Sequence::Kind::kInvalid, 1};
  }
  // Neither overlong forms nor surrogates nor what is beyond U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (position + i == text.size()) {
      return {Utf8Sequence::Kind::kCut, i};
    }
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) {
      return {Utf8Sequence::Kind::kInvalid, i};
    }
  }
  return {Utf8Sequence::Kind::kValid, length};
}

/// Bytes of the code point that starts at `text[position]` (position < text.size()); 0 if what
/// stands there is not valid UTF-8 (a stray continuation byte, a cut or overlong sequence, a
/// surrogate, beyond U+10FFFF).
inline size_t utf8_length(std::string_view text, size_t position) {
  const Utf8Sequence sequence = utf8_sequence(text, position);
  return sequence.kind == Utf8Sequence::Kind::kValid ? sequence.length : 0;
}

/// Where the first byte stands that is not valid UTF-8; text.size() if there is none.
inline size_t utf8_valid_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const size_t length = utf8_length(text, i);
    if (length == 0) {
      break;
    }
    i += length;
  }
  return i;
}

struct CodePoint {
  char32_t value;
  size_t length;  // in bytes
};

/// The code point at `text[position]` of valid UTF-8.
inline CodePoint utf8_code_point(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) -> char32_t {
    return static_cast<unsigned char>(text[position + i]);
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1};
  }
  if (lead < 0xE0) {
    return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  }
  if (lead < 0xF0) {
    return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  }
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

/// The code point that ends before `text[end]` of valid UTF-8 (end > 0).
inline CodePoint utf8_code_point_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80) {
    --begin;
  }
  return utf8_code_point(text, begin);
}

inline void utf8_append(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace quads
