// Text to token ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quads {

struct EncodeOptions {
  /// Adds what the tokenizer's post-processor adds around a text (a begin-of-text token, say).
  bool add_special_tokens = false;
  /// Special tokens that stand in the text ("<|im_end|>") are text like any other. Meant for text
  /// from outside that is not to steer the model.
  bool special_tokens_as_text = false;
};

/// Decodes one sequence as its tokens arrive. All that it returned, joined, is what
/// Tokenizer::decode gives for the whole; no character comes in halves. It must not outlive its
/// tokenizer.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  /// The text that is certain with this token; empty while a character is not complete. Error for a
  /// negative id.
  virtual std::string push(int32_t id) = 0;
  /// The rest, after the last token; incomplete bytes become U+FFFD.
  virtual std::string finish() = 0;
};

/// Any thread may use it.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The ids that `tokenizers` gives for `text`. Error, naming the position, for text that is not
  /// valid UTF-8 and for characters that have no token (BPE without unk_token, which `tokenizers`
  /// drops in silence, included).
  virtual std::vector<int32_t> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const = 0;
  /// Special tokens are kept; invalid bytes become U+FFFD. A model may have more ids than its
  /// tokenizer (padding of the embedding): those beyond decode to U+FFFD. Error for a negative id.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// A decoder for one sequence.
  virtual std::unique_ptr<TokenStream> stream() const = 0;
  /// Ids are 0..vocab_size()-1.
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
  virtual std::optional<int32_t> pad_id() const = 0;
  /// Writes tokenizer.json and tokenizer_config.json so that both this program and `tokenizers` /
  /// `transformers` load them; files that were read are written as they were.
  virtual void save(const std::filesystem::path& directory) const = 0;
};

/// Reads `directory`/tokenizer.json, and tokenizer_config.json for the names of the end and padding
/// tokens if it is there. Any component or option that is not supported exactly is an Error that
/// names it.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory);

}  // namespace quads
