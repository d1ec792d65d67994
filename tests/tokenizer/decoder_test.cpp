// Token streams: when text comes out, and that it is the decoded text.
#include "tokenizer/decoder.h"

#include <gtest/gtest.h>

#include "io/test_files.h"
#include "tokenizer/testing.h"

namespace quads {
namespace {

using Strings = std::vector<std::string>;
using Ids = std::vector<int32_t>;

// What comes out with each token, and in the end.
Strings parts(const Tokenizer& tokenizer, const Ids& ids) {
  const auto stream = tokenizer.stream();
  Strings result;
  for (const int32_t id : ids) {
    result.push_back(stream->push(id));
  }
  result.push_back(stream->finish());
  return result;
}

TEST(TokenStream, KeepsTheBytesOfACharacterUntilItIsComplete) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  EXPECT_EQ(parts(*tokenizer, {'a', 0xF0, 0x9F, 0x98, 0x80, 259}),
            (Strings{"a", "", "", "", "😀", "hello", ""}));
}

TEST(TokenStream, GivesOneReplacementForEachInvalidSequence) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  EXPECT_EQ(parts(*tokenizer, {0xF0, 0x9F, 'a', 0xFF, 0x80, 0xC3}),
            (Strings{"", "", "\uFFFDa", "\uFFFD", "\uFFFD", "", "\uFFFD"}));
  EXPECT_EQ(tokenizer->decode(Ids{0xF0, 0x9F, 'a', 0xFF, 0x80, 0xC3}), "\uFFFDa\uFFFD\uFFFD\uFFFD");
}

TEST(TokenStream, AnAddedTokenStandsForItself) {
  Json json = byte_level_json();
  json["added_tokens"][0]["content"] = "<é ▁>";
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(parts(*tokenizer, {260, 0xC3, 260}), (Strings{"<é ▁>", "", "\uFFFD<é ▁>", ""}));
}

TEST(TokenStream, IdsBeyondTheVocabularyAreReplacementsAndNegativeOnesErrors) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(tokenizer->decode(Ids{'a', 261, INT32_MAX}), "a\uFFFD\uFFFD");
  EXPECT_EQ(error_of([&] {
              tokenizer->decode(Ids{0, -1});
            }),
            "token id -1 at position 1 is negative");
}

TEST(TokenStream, ARunOfFallenBackBytesWaitsForItsEnd) {
  Json json = byte_level_json();
  json["pre_tokenizer"] = nullptr;
  json["model"] = {{"type", "WordLevel"},
                   {"vocab", {{"<0xC3>", 0}, {"<0xA9>", 1}, {"▁a", 2}}},
                   {"unk_token", "?"}};
  json["added_tokens"] = Json::array();
  json["decoder"] = Json::parse(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(parts(*tokenizer, {2, 2, 0, 1, 2}), (Strings{"a", " a", "", "", "é a", ""}));
  EXPECT_EQ(parts(*tokenizer, {0, 1, 0}), (Strings{"", "", "", "\uFFFD\uFFFD\uFFFD"}));
  EXPECT_EQ(parts(*tokenizer, {}), (Strings{""}));
}

TEST(TokenStream, StreamsDoNotDisturbEachOther) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  const auto first = tokenizer->stream();
  const auto second = tokenizer->stream();
  EXPECT_EQ(first->push(0xC3), "");
  EXPECT_EQ(second->push('a'), "a");
  EXPECT_EQ(first->push(0xA9), "é");
}

}  // namespace
}  // namespace quads
