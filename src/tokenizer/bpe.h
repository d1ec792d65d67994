// Byte pair encoding.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "tokenizer/bpe_merge.h"
#include "tokenizer/model.h"

namespace quads {

class Bpe : public TokenModel {
 public:
  /// Error for dropout, subword prefixes and suffixes, and merges of or to tokens that are not in
  /// the vocabulary.
  Bpe(const Json& json, const std::string& where);
  void encode(const Piece& piece, std::vector<int32_t>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  std::optional<int32_t> find_character(std::string_view character) const;
  void add_merges(const Json& merges, const std::string& where);

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::array<int32_t, 0x180> short_characters_;    // ids of the first code points, -1 for none
  std::optional<std::array<int32_t, 256>> bytes_;  // ids of <0x00>...<0xFF>, -1 for none
  std::optional<int32_t> unknown_;
  bool fuse_unknown_;
  bool ignore_merges_;
};

}  // namespace quads
