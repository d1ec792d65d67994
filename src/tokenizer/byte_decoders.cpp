// ByteLevel and ByteFallback as decoders.
#include "tokenizer/byte_decoders.h"

#include <charconv>
#include <optional>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

class ByteLevelStep : public DecodeStep {
 public:
  void push(std::string_view text, bool ends) override {
    token_ += text;
    if (!ends) {
      return;
    }
    if (!append_from_byte_alphabet(token_, bytes_)) {
      bytes_ += token_;
    }
    token_.clear();
    emit_text(false);
  }

  void finish() override {
    emit_text(true);
    emit("", true);
  }

 private:
  // All of bytes_ but, unless it is the end, a character that is not complete yet.
  void emit_text(bool at_end) {
    std::string text;
    size_t i = 0;
    while (i < bytes_.size()) {
      const auto [kind, length] = utf8_sequence(bytes_, i);
      if (kind == Utf8Sequence::Kind::kCut && !at_end) {
        break;
      }
      if (kind == Utf8Sequence::Kind::kValid) {
        text.append(bytes_, i, length);
      } else {
        text += kReplacement;
      }
      i += length;
    }
    bytes_.erase(0, i);
    emit(text, false);
  }

  std::string token_;
  std::string bytes_;
};

class ByteFallbackStep : public DecodeStep {
 public:
  void push(std::string_view text, bool ends) override {
    token_ += text;
    if (!ends) {
      return;
    }
    if (const auto byte = byte_of(token_)) {
      run_ += *byte;
    } else {
      emit_run();
      emit(token_, true);
    }
    token_.clear();
  }

  void finish() override { emit_run(); }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) {
      return std::nullopt;
    }
    unsigned byte = 0;
    // Rust's from_str_radix takes a sign: "<0x+A>" is a line feed.
    const std::string_view digits = token.substr(token[3] == '+' ? 4 : 3, token[3] == '+' ? 1 : 2);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      return std::nullopt;
    }
    return static_cast<char>(byte);
  }

  void emit_run() {
    if (utf8_valid_prefix(run_) == run_.size()) {
      if (!run_.empty()) {
        emit(run_, true);
      }
    } else {
      for (size_t i = 0; i < run_.size(); ++i) {
        emit(kReplacement, true);
      }
    }
    run_.clear();
  }

  std::string token_;
  std::string run_;
};

}  // namespace

std::unique_ptr<DecodeStep> make_byte_level_step() { return std::make_unique<ByteLevelStep>(); }
std::unique_ptr<DecodeStep> make_byte_fallback_step() {
  return std::make_unique<ByteFallbackStep>();
}

}  // namespace quads
