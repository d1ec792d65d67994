// The 256 printable characters by which byte-level tokenizers write bytes (GPT-2's
// bytes_to_unicode).
#pragma once

#include <string>
#include <string_view>

namespace quads {

/// Each byte of `text` as its character, in UTF-8.
std::string to_byte_alphabet(std::string_view text);

/// Appends the bytes that the characters of `token` (valid UTF-8) stand for; appends nothing and
/// returns false if one of them stands for none.
bool append_from_byte_alphabet(std::string_view token, std::string& bytes);

}  // namespace quads
