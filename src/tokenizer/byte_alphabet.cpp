// Printable bytes stand for themselves, the other 68 for U+0100 and what follows.
#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace quads {
namespace {

constexpr bool is_printable(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char16_t, 256> make_characters() {
  std::array<char16_t, 256> characters{};
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    characters[byte] = static_cast<char16_t>(is_printable(byte) ? byte : next++);
  }
  return characters;
}

constexpr std::array<char16_t, 256> kCharacters = make_characters();
constexpr size_t kEnd = 0x100 + 68;  // one beyond the last character

constexpr std::array<int16_t, kEnd> make_bytes() {
  std::array<int16_t, kEnd> bytes{};
  for (int16_t& byte : bytes) {
    byte = -1;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<int16_t, kEnd> kBytes = make_bytes();

}  // namespace

std::string to_byte_alphabet(std::string_view text) {
  std::string result;
  result.reserve(text.size() + text.size() / 4);
  for (const char c : text) {
    utf8_append(result, kCharacters[static_cast<unsigned char>(c)]);
  }
  return result;
}

bool append_from_byte_alphabet(std::string_view token, std::string& bytes) {
  const size_t size = bytes.size();
  for (size_t i = 0; i < token.size();) {
    const auto [c, length] = utf8_code_point(token, i);
    if (c >= kEnd || kBytes[c] < 0) {
      bytes.resize(size);
      return false;
    }
    bytes += static_cast<char>(kBytes[c]);
    i += length;
  }
  return true;
}

}  // namespace quads
