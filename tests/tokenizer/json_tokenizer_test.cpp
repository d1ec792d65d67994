// The whole pipeline on small tokenizers; tests/oracle holds it against `tokenizers`.
#include "tokenizer/json_tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "io/test_files.h"
#include "tokenizer/testing.h"

namespace quads {
namespace {

using Ids = std::vector<int32_t>;

TEST(JsonTokenizer, MergesWithinThePiecesOfTheSplit) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  EXPECT_EQ(tokenizer->encode("hello hell<eos>he"), (Ids{259, ' ', 258, 260, 256}));
  EXPECT_EQ(tokenizer->encode(""), Ids{});
  EXPECT_EQ(tokenizer->encode(std::string_view("\0", 1)), Ids{0});
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("hello <eos>é")), "hello <eos>é");
}

TEST(JsonTokenizer, SpecialTokensCanBeText) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  EXPECT_EQ(tokenizer->encode("<eos>", {.special_tokens_as_text = true}),
            (Ids{'<', 'e', 'o', 's', '>'}));
}

TEST(JsonTokenizer, AddsWhatTheTemplateAddsIfAsked) {
  Json json = byte_level_json();
  json["post_processor"] = Json::parse(R"({"type": "Sequence", "processors": [
      {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
      {"type": "TemplateProcessing", "pair": [], "single": [
        {"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "both", "type_id": 0}}],
       "special_tokens": {"<eos>": {"id": "<eos>", "ids": [260], "tokens": ["<eos>"]},
                          "both": {"id": "both", "ids": [1, 2], "tokens": ["a", "b"]}}}]})");
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(tokenizer->encode("a"), Ids{'a'});
  EXPECT_EQ(tokenizer->encode("a", {.add_special_tokens = true}), (Ids{260, 'a', 1, 2}));
}

TEST(JsonTokenizer, InvalidTextIsAnErrorThatNamesTheByte) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  for (const std::string bad : {"ab\xff", "ab\xe2\x82", "ab\xed\xa0\x80"}) {
    EXPECT_EQ(error_of([&] { tokenizer->encode(bad); }),
              "byte 2 of the text to encode is not valid UTF-8");
  }
}

TEST(JsonTokenizer, ACharacterWithoutATokenIsAnError) {
  Json json = byte_level_json();
  json["pre_tokenizer"] = nullptr;
  EXPECT_EQ(error_of([&] { tokenizer_of(json)->encode("hello 漢"); }),
            "' ' of the piece at byte 0 of the (normalized) text to encode has no token");
}

TEST(JsonTokenizer, LongRunsOfEveryKindAreEncoded) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  for (const std::string unit : {"l", " ", "😀", "\u0301", "1", "\n", "<eos>", "<eo"}) {
    std::string text;
    while (text.size() < 300'000) {
      text += unit;
    }
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(JsonTokenizer, ThreadsShareIt) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  std::vector<Ids> results(4);
  {
    std::vector<std::jthread> threads;
    for (Ids& result : results) {
      threads.emplace_back([&] { result = tokenizer->encode("hello hello <eos> hell"); });
    }
  }
  for (const Ids& result : results) {
    EXPECT_EQ(result, results[0]);
    EXPECT_FALSE(result.empty());
  }
}

TEST(LoadTokenizer, ReadsTheSpecialTokensAndSavesTheFilesAsTheyWere) {
  const TempDir dir;
  const TempDir copy;
  const std::string text = byte_level_json().dump(7) + "\n\n";
  write_text(dir / "tokenizer.json", text);
  EXPECT_FALSE(load_tokenizer(dir.path())->eos_id().has_value());
  const std::string config =
      R"({"eos_token": {"content": "<eos>"}, "pad_token": "!",
          "added_tokens_decoder": {"260": {"content": "<eos>"}}})";
  write_text(dir / "tokenizer_config.json", config);
  const auto tokenizer = load_tokenizer(dir.path());
  EXPECT_EQ(tokenizer->eos_id(), 260);
  EXPECT_EQ(tokenizer->pad_id(), '!');
  tokenizer->save(copy.path());
  EXPECT_EQ(read_text(copy / "tokenizer.json"), text);
  EXPECT_EQ(read_text(copy / "tokenizer_config.json"), config);
  EXPECT_EQ(copy.num_entries(), 2U);
  EXPECT_EQ(load_tokenizer(copy.path())->encode("hello<eos>"), (Ids{259, 260}));

  write_text(dir / "tokenizer_config.json",
             R"({"added_tokens_decoder": {"9": {"content": "<x>"}}})");
  expect_contains(error_of([&] { load_tokenizer(dir.path()); }),
                  "token '<x>' has id 9 here but none in tokenizer.json");
}

}  // namespace
}  // namespace quads
