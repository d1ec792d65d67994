// The character tokenizer: round trips, unknown characters, and tokenizer.json files that are
// refused.
#include "io/tokenizer.h"

#include <gtest/gtest.h>

#include "io/character_tokenizer.h"
#include "io/utf8.h"
#include "test_files.h"

namespace quads {
namespace {

CharacterVocabulary vocabulary() {
  return {.tokens = {"<pad>", "$", "0", "1", "é", "\n", "<p"},
          .special = {"<p", "<pad>"},
          .eos = "$",
          .pad = "<pad>"};
}

TEST(CharacterTokenizer, EncodesAndDecodes) {
  const CharacterTokenizer tokenizer(vocabulary());
  const std::vector<int32_t> ids = {2, 3, 4, 5, 5, 0, 6, 1};
  EXPECT_EQ(tokenizer.encode("01é\n\n<pad><p$"), ids);
  EXPECT_EQ(tokenizer.decode(ids), "01é\n\n<pad><p$");
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_EQ(tokenizer.decode({}), "");
  EXPECT_EQ(tokenizer.vocab_size(), 7);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_EQ(tokenizer.pad_id(), 0);
}

TEST(CharacterTokenizer, UnknownTextIsAnErrorThatNamesItAndItsPosition) {
  const CharacterTokenizer tokenizer(vocabulary());
  EXPECT_EQ(error_of([&] { tokenizer.encode("01é2"); }),
            "character '2' at byte 4 of the text to encode has no token");
  EXPECT_EQ(error_of([&] { tokenizer.encode("0ü"); }),
            "character 'ü' at byte 1 of the text to encode has no token");
  EXPECT_EQ(error_of([&] { tokenizer.encode("0<"); }),
            "character '<' at byte 1 of the text to encode has no token");
  EXPECT_EQ(error_of([&] { tokenizer.encode("01\xff"); }),
            "byte 2 of the text to encode is not valid UTF-8");
  EXPECT_EQ(error_of([&] { tokenizer.encode("01\xc3"); }),
            "byte 2 of the text to encode is not valid UTF-8");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{7}), "\uFFFD");
  EXPECT_EQ(error_of([&] { tokenizer.decode(std::vector<int32_t>{-1}); }),
            "token id -1 at position 0 is negative");
}

TEST(CharacterTokenizer, SavesAndLoads) {
  const TempDir dir;
  CharacterTokenizer(vocabulary()).save(dir.path());
  const std::unique_ptr<Tokenizer> loaded = load_tokenizer(dir.path());
  EXPECT_EQ(loaded->encode("1\n<pad>$<p"), (std::vector<int32_t>{3, 5, 0, 1, 6}));
  EXPECT_EQ(loaded->vocab_size(), 7);
  EXPECT_EQ(loaded->eos_id(), 1);
  EXPECT_EQ(loaded->pad_id(), 0);

  std::filesystem::remove(dir / "tokenizer_config.json");
  EXPECT_FALSE(load_tokenizer(dir.path())->eos_id().has_value());
  write_text(dir / "tokenizer_config.json", R"({"eos_token": {"content": "1"}})");
  EXPECT_EQ(load_tokenizer(dir.path())->eos_id(), 3);
  write_text(dir / "tokenizer_config.json", R"({"eos_token": "</s>"})");
  expect_contains(error_of([&] { load_tokenizer(dir.path()); }), "eos token '</s>'");
}

TEST(CharacterTokenizer, RefusesVocabulariesThatAreNotOfCharacters) {
  const auto message = [](std::vector<std::string> tokens, std::vector<std::string> special = {}) {
    return error_of([&] { CharacterTokenizer tokenizer({tokens, special, {}, {}}); });
  };
  expect_contains(message({"a", "a"}), "token 1: 'a' is there twice");
  expect_contains(message({"ab"}), "longer than one character");
  expect_contains(message({""}), "empty");
  expect_contains(message({"\xff"}), "not valid UTF-8");
  expect_contains(message({"a"}, {"b"}), "special token 'b' is not in the vocabulary");
  expect_contains(message({"<unk>"}, {"<unk>"}), "reserved");
}

TEST(TokenizerJson, RefusesEveryOtherComponentByName) {
  const TempDir dir;
  CharacterTokenizer(vocabulary()).save(dir.path());
  const Json good = read_json_file(dir / "tokenizer.json");
  const auto message = [&](const std::string& pointer, const Json& value) {
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    write_json_file(dir / "tokenizer.json", json);
    return error_of([&] { load_tokenizer(dir.path()); });
  };
  expect_contains(message("/version", "2.0"), "version \"2.0\" is not 1.0");
  expect_contains(message("/model/type", "BPE"), "model type 'BPE' is not supported");
  expect_contains(message("/normalizer", {{"type", "NFC"}}), "normalizer {\"type\":\"NFC\"}");
  expect_contains(message("/truncation", {{"max_length", 5}}), "truncation");
  expect_contains(message("/padding", {{"strategy", "x"}}), "padding");
  expect_contains(message("/post_processor", {{"type", "ByteLevel"}}), "post_processor");
  expect_contains(message("/post_processor", 1), "post_processor 1 is not supported");
  expect_contains(message("/post_processor", {{"type", "TemplateProcessing"},
                                              {"single",
                                               {{{"SpecialToken", {{"id", "$"}, {"type_id", 0}}}},
                                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}}),
                  "post_processor");
  expect_contains(message("/pre_tokenizer", nullptr), "'pre_tokenizer' is missing");
  expect_contains(message("/pre_tokenizer/type", "Whitespace"), "'Whitespace'");
  expect_contains(message("/pre_tokenizer/behavior", "Removed"), "'Removed'");
  expect_contains(message("/pre_tokenizer/invert", true), "invert");
  expect_contains(message("/pre_tokenizer/pattern", {{"Regex", "\\d"}}), "pattern");
  expect_contains(message("/pre_tokenizer/pattern", {{"Regex", "."}}), "does not split newlines");
  expect_contains(message("/decoder", nullptr), "'decoder' is missing");
  expect_contains(message("/decoder/type", "WordPiece"), "'WordPiece'");
  expect_contains(message("/model/unk_token", "0"), "unknown token '0'");
  expect_contains(message("/model/vocab/x", 9), "token 'x' has id 9, but 8 tokens");
  expect_contains(message("/model/vocab/0", 3), "have the same id 3");
  expect_contains(message("/model/vocab/0", -1), "id -1");
  expect_contains(message("/model/vocab/0", 4294967296), "id 4294967296");
  expect_contains(message("/model/vocab/0", "2"), "token '0': \"2\" is not an integer");
  expect_contains(message("/model/vocab", Json::array()), "'vocab' is not an object");
  expect_contains(message("/added_tokens/0/lstrip", true), "lstrip is not supported");
  expect_contains(message("/added_tokens/0/id", 5), "has id 5 here but 0 in the vocabulary");
  expect_contains(message("/added_tokens/0/content", "<new>"), "have the same id 0");
  expect_contains(message("/added_tokens", 1), "'added_tokens' is not an array");
}

TEST(Utf8, LengthsFollowTheStandard) {
  EXPECT_EQ(utf8_length("a", 0), 1U);
  EXPECT_EQ(utf8_length("é", 0), 2U);
  EXPECT_EQ(utf8_length("€", 0), 3U);
  EXPECT_EQ(utf8_length("😀", 0), 4U);
  for (const std::string_view bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xc3(", "\xff"}) {
    EXPECT_EQ(utf8_length(bad, 0), 0U);
  }
}

}  // namespace
}  // namespace quads
