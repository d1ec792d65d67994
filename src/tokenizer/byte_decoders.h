// Decode steps that make text of bytes.
#pragma once

#include <memory>

#include "tokenizer/decoder.h"

namespace quads {

/// Tokens in the byte alphabet (a token with any other character stands for itself) to one token of
/// text. Text is given on as soon as its characters are complete, invalid bytes as U+FFFD.
std::unique_ptr<DecodeStep> make_byte_level_step();

/// Tokens like <0x0A> to text. As `tokenizers` decides over a whole run of them (valid UTF-8, or
/// one U+FFFD for every byte), a run is kept back until another token follows.
std::unique_ptr<DecodeStep> make_byte_fallback_step();

}  // namespace quads
