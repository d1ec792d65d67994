// The steps by which tokens become text again, each fed as tokens arrive.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace quads {

/// One step of a chain that decodes one sequence. It gets tokens in parts, each part valid UTF-8,
/// and gives tokens in parts to the next step; what it does not know yet it keeps back.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  /// A part of a token, the last one if `ends`.
  virtual void push(std::string_view text, bool ends) = 0;
  /// After the last token: gives on what was kept back.
  virtual void finish() = 0;

  void set_next(DecodeStep* next) { next_ = next; }

 protected:
  void emit(std::string_view text, bool ends) { next_->push(text, ends); }

 private:
  DecodeStep* next_ = nullptr;
};

/// Makes the steps, in order, for a new sequence.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void append_steps(std::vector<std::unique_ptr<DecodeStep>>& steps) const = 0;
};

/// Of tokenizer.json's "decoder": ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, and a
/// Sequence of these; for null, tokens are joined by spaces. Error, naming `where`, for others and
/// for unknown or missing options.
std::unique_ptr<Decoder> make_decoder(const Json& json, const std::string& where);

}  // namespace quads
