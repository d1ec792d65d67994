// Small tokenizer.json texts that have, together, every component and option.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/testing.h"

namespace quads {

inline Json added_token(int id, const std::string& content, bool flag) {
  return {{"id", id},       {"content", content}, {"single_word", flag}, {"lstrip", flag},
          {"rstrip", flag}, {"normalized", flag}, {"special", !flag}};
}

/// Valid and quick to read: a few tokens each, but for the first, which has all bytes.
inline std::vector<std::string> small_tokenizers() {
  std::vector<std::string> texts;
  Json bytes = byte_level_json();
  texts.push_back(bytes.dump());
  bytes["pre_tokenizer"] = Json::parse(R"({"type":"Sequence","pretokenizers":[
      {"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},
      {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})");
  bytes["post_processor"] = Json::parse(R"({"type":"Sequence","processors":[
      {"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true},
      {"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<eos>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
       "pair":[],"special_tokens":{"<eos>":{"id":"<eos>","ids":[260],"tokens":["<eos>"]}}}]})");
  bytes["normalizer"] = {{"type", "NFC"}};
  texts.push_back(bytes.dump());

  Json pieces = Json::parse(R"({"version":"1.0","truncation":null,"padding":null,
      "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},
        {"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
      "pre_tokenizer":null,"post_processor":null,
      "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
        {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
      "model":{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,
        "end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":true,"ignore_merges":true,
        "vocab":{"<unk>":0,"<0x41>":1,"<0xE2>":2,"<0x96>":3,"<0x81>":4,"▁":5,"a":6,"b":7,"ab":8,"▁a":9,"▁ab":10},
        "merges":["a b","▁ a",["▁a","b"],"▁ ab"]}})");
  pieces["added_tokens"] = {added_token(11, "<s>", false), added_token(12, "[b a]", true)};
  texts.push_back(pieces.dump());
  pieces["normalizer"] =
      Json::parse(R"({"type":"Sequence","normalizers":[{"type":"NFKD"},{"type":"Lowercase"},
      {"type":"Strip","strip_left":true,"strip_right":true},{"type":"Replace","pattern":{"Regex":"\\s+|a{2,}"},"content":""},{"type":"NFKC"},{"type":"NFD"}]})");
  pieces["pre_tokenizer"] = Json::parse(
      R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true})");
  pieces["decoder"] = pieces["pre_tokenizer"];
  pieces["model"]["byte_fallback"] = false;
  texts.push_back(pieces.dump());

  Json words = pieces;
  words["normalizer"] = nullptr;
  words["decoder"] = nullptr;
  words["model"] = Json::parse(
      R"({"type":"WordLevel","vocab":{"[UNK]":0,"a":1,"b":2,"ab":3,"1":4,"!":5},"unk_token":"[UNK]"})");
  words["added_tokens"] = {added_token(6, "ba", true)};
  for (
      const char* parts : {
          R"([{"type":"Whitespace"},{"type":"Digits","individual_digits":true}])",
          R"([{"type":"WhitespaceSplit"},{"type":"Punctuation","behavior":"MergedWithPrevious"}])",
          R"([{"type":"Split","pattern":{"String":"b"},"behavior":"MergedWithNext","invert":true},{"type":"Digits","individual_digits":false}])",
          R"([{"type":"Split","pattern":{"Regex":"(?<!b)a(?=b)|(?>[a-z]+|1)?!|\\p{^Lu}{2,3}|[^\\S\\n]++"},"behavior":"Removed","invert":false}])",
          R"([{"type":"Split","pattern":{"Regex":"(?i:s|b1)|^(?:b|ab)*|[\\x{41}-\\x{5a}]+?$"},"behavior":"Contiguous","invert":false}])",
      }) {
    words["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::parse(parts)}};
    texts.push_back(words.dump());
  }
  return texts;
}

}  // namespace quads
