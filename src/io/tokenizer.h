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

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// No token is added at either end. Error for text that cannot be encoded, naming the position.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// Special tokens are kept. A model may have more ids than its tokenizer (padding of the
  /// embedding): those beyond decode to U+FFFD. Error for a negative id.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// Ids are 0..vocab_size()-1.
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
  virtual std::optional<int32_t> pad_id() const = 0;
  /// Writes tokenizer.json and tokenizer_config.json so that both this program and `tokenizers` /
  /// `transformers` load them.
  virtual void save(const std::filesystem::path& directory) const = 0;
};

/// Reads `directory`/tokenizer.json, and tokenizer_config.json for the names of the end and padding
/// tokens if it is there. Any component that is not supported exactly is an Error that names it.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory);

}  // namespace quads
