// The character tokenizer: round trips, unknown characters, vocabularies that are refused.
#include "tokenizer/character_tokenizer.h"

#include <gtest/gtest.h>

#include "io/test_files.h"

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
            "'2' at byte 4 of the (normalized) text to encode has no token");
  EXPECT_EQ(error_of([&] { tokenizer.encode("0ü"); }),
            "'ü' at byte 1 of the (normalized) text to encode has no token");
  EXPECT_EQ(error_of([&] { tokenizer.encode("0<"); }),
            "'<' at byte 1 of the (normalized) text to encode has no token");
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

}  // namespace
}  // namespace quads
