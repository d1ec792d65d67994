// A small tokenizer.json for the tests of this folder to change.
#pragma once

#include <memory>
#include <string>

#include "io/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_tokenizer.h"

namespace quads {

/// BPE over the bytes (ids 0..255) with the merges h+e, l+l, he+ll, hell+o (ids 256..259), GPT-2's
/// split and one special token "<eos>" (260).
inline Json byte_level_json() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  }
  vocab["he"] = 256;
  vocab["ll"] = 257;
  vocab["hell"] = 258;
  vocab["hello"] = 259;
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {{{"id", 260},
             {"content", "<eos>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", {"h e", "l l", {"he", "ll"}, {"hell", "o"}}}}}};
}

inline std::unique_ptr<JsonTokenizer> tokenizer_of(const Json& json) {
  return std::make_unique<JsonTokenizer>(TokenizerFiles{{"tokenizer.json", json.dump()}}, "dir");
}

}  // namespace quads
