// The tokenizer that a tokenizer.json describes: normalizer, added tokens, pre-tokenizer, model,
// post-processor, decoder.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/decoder.h"
#include "tokenizer/model.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace quads {

/// A tokenizer's files, by name, with their bytes. tokenizer.json has to be there.
using TokenizerFiles = std::map<std::string, std::string>;

class JsonTokenizer : public Tokenizer {
 public:
  /// Error, naming `where` and the file, for what is not supported exactly.
  JsonTokenizer(TokenizerFiles files, const std::string& where);

  std::vector<int32_t> encode(std::string_view text,
                              const EncodeOptions& options = {}) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::unique_ptr<TokenStream> stream() const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(num_ids_); }
  std::optional<int32_t> eos_id() const override { return eos_id_; }
  std::optional<int32_t> pad_id() const override { return pad_id_; }
  void save(const std::filesystem::path& directory) const override;

 private:
  class Stream;

  void read_tokenizer(const std::string& where);
  void read_config(const std::string& where);
  std::optional<int32_t> find_id(const std::string& token) const;
  const std::string& text_of(int32_t id) const;

  TokenizerFiles files_;
  std::unique_ptr<Normalizer> normalizer_;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer_;  // may be null
  std::unique_ptr<TokenModel> model_;
  std::unique_ptr<AddedTokens> added_;
  std::unique_ptr<PostProcessor> post_processor_;
  std::unique_ptr<Decoder> decoder_;
  std::map<int32_t, std::string> added_texts_;  // what the decoder gets for added tokens
  int32_t num_ids_ = 0;
  std::optional<int32_t> eos_id_;
  std::optional<int32_t> pad_id_;
};

}  // namespace quads
