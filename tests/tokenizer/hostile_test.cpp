// tokenizer.json files that are refused, each with a message that names the place.
#include <gtest/gtest.h>

#include "io/test_files.h"
#include "tokenizer/testing.h"

namespace quads {
namespace {

std::string message(const std::string& pointer, const Json& value) {
  Json json = byte_level_json();
  json[Json::json_pointer(pointer)] = value;
  const std::string text = error_of([&] { tokenizer_of(json); });
  expect_contains(text, "dir/tokenizer.json");
  return text;
}

Json parsed(const char* text) { return Json::parse(text); }

TEST(TokenizerJson, RefusesUnknownComponentsByName) {
  expect_contains(message("/version", "2.0"), "version '2.0' is not 1.0");
  expect_contains(message("/model/type", "Unigram"), "model: type 'Unigram' is not supported");
  expect_contains(message("/model/type", "WordPiece"), "model: type 'WordPiece'");
  expect_contains(message("/normalizer", {{"type", "BertNormalizer"}}),
                  "normalizer: type 'BertNormalizer' is not supported");
  expect_contains(
      message("/normalizer", parsed(R"({"type": "Sequence", "normalizers": [{"type": "Nmt"}]})")),
      "normalizer: type 'Nmt'");
  expect_contains(message("/pre_tokenizer/type", "UnicodeScripts"),
                  "pre_tokenizer: type 'UnicodeScripts'");
  expect_contains(message("/decoder/type", "CTC"), "decoder: type 'CTC'");
  expect_contains(message("/post_processor", {{"type", "RobertaProcessing"}}),
                  "post_processor: type 'RobertaProcessing'");
  expect_contains(message("/truncation", {{"max_length", 5}}), "truncation {\"max_length\":5}");
  expect_contains(message("/padding", {{"strategy", "x"}}), "padding");
  expect_contains(message("/novelty", 1), "option 'novelty' with value 1");
}

TEST(TokenizerJson, RefusesOptionsThatWouldChangeTheResult) {
  expect_contains(message("/model/dropout", 0.1), "dropout 0.1 is not supported");
  expect_contains(message("/model/continuing_subword_prefix", "##"),
                  "continuing_subword_prefix '##'");
  expect_contains(message("/model/end_of_word_suffix", "</w>"), "end_of_word_suffix '</w>'");
  expect_contains(message("/model/novelty", true), "option 'novelty' with value true");
  expect_contains(message("/pre_tokenizer/novelty", "x"), "ByteLevel: option 'novelty'");
  expect_contains(message("/added_tokens/0/novelty", 1), "option 'novelty'");
  expect_contains(
      message(
          "/pre_tokenizer",
          parsed(
              R"({"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated", "invert": false})")),
      "an intersection of classes at byte 2");
  expect_contains(
      message(
          "/pre_tokenizer",
          parsed(
              R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Kept", "invert": false})")),
      "behavior 'Kept'");
  expect_contains(
      message(
          "/pre_tokenizer",
          parsed(R"({"type": "Split", "pattern": "a", "behavior": "Removed", "invert": false})")),
      "is not an object");
  expect_contains(
      message("/pre_tokenizer", parsed(R"({"type": "Metaspace", "replacement": "ab"})")),
      "'replacement' is 'ab', not one character");
  expect_contains(
      message(
          "/pre_tokenizer",
          parsed(
              R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "add_prefix_space": false})")),
      "add_prefix_space false contradicts prepend_scheme 'first'");
}

TEST(TokenizerJson, RefusesIdsThatAreNotOneAfterAnother) {
  expect_contains(message("/model/vocab/hello", 258), "have the same id 258");
  expect_contains(message("/model/vocab/hello", 300), "token 'hello' has id 300, but 260 tokens");
  expect_contains(message("/model/vocab/hello", -1), "token 'hello' has id -1");
  expect_contains(message("/model/vocab/hello", 4294967296), "has id 4294967296");
  expect_contains(message("/model/vocab/hello", "259"), "id \"259\" is not an integer");
  expect_contains(message("/model/vocab/hello", 1.5), "id 1.5 is not an integer");
  expect_contains(message("/model/vocab", Json::array()), "'vocab' is [], not an object");
  expect_contains(message("/added_tokens/0/id", 300),
                  "token '<eos>' has id 300, but the next free id is 260");
  expect_contains(message("/added_tokens/0/content", "he"),
                  "token 'he' has id 260, but its id in the vocabulary is 256");
  expect_contains(message("/added_tokens/0/content", ""), "an empty token");
  expect_contains(message("/added_tokens/0/special", 1), "1 is not true or false");
  expect_contains(message("/added_tokens", 1), "'added_tokens' is 1, not an array");
  expect_contains(message("/added_tokens/1", byte_level_json()["added_tokens"][0]),
                  "token '<eos>' is there twice");
}

TEST(TokenizerJson, RefusesMergesThatDoNotFitTheVocabulary) {
  expect_contains(message("/model/merges/1", "l q q"), "merge 1: \"l q q\" is neither");
  expect_contains(message("/model/merges/1", "lq"), "merge 1: \"lq\" is neither");
  expect_contains(message("/model/merges/1", {"l"}), "merge 1: [\"l\"] is neither");
  expect_contains(message("/model/merges/1", 7), "merge 1: 7 is neither");
  expect_contains(message("/model/merges/1", "xyz l"),
                  "merge 1: token 'xyz' is not in the vocabulary");
  expect_contains(message("/model/merges/1", "l o"),
                  "merge 1: token 'lo' is not in the vocabulary");
  expect_contains(message("/model/merges", "l l"), "'merges' is \"l l\", not an array");
  expect_contains(message("/model", nullptr), "is not an object");
}

TEST(TokenizerJson, RefusesTemplatesThatDoNotFit) {
  const char* right = R"({"type": "TemplateProcessing", "pair": [], "single": [
      {"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<eos>": {"id": "<eos>", "ids": [260], "tokens": ["<eos>"]}}})";
  const auto changed = [&](const std::string& pointer, const Json& value) {
    Json json = parsed(right);
    json[Json::json_pointer(pointer)] = value;
    return message("/post_processor", json);
  };
  expect_contains(changed("/single/1/Sequence/id", "B"), "has the text 'B'");
  expect_contains(changed("/single/0/SpecialToken/id", "<x>"), "key '<x>' is missing");
  expect_contains(changed("/special_tokens/<eos>/ids/0", 261), "id 261 is not below 261");
  expect_contains(changed("/special_tokens/<eos>/ids/0", -1), "id -1 is not below 261");
  expect_contains(message("/post_processor",
                          {{"type", "Sequence"}, {"processors", {parsed(right), parsed(right)}}}),
                  "a second template is not supported");
}

TEST(TokenizerJson, RefusesWhatIsNoJsonOrTooDeep) {
  const auto read = [](const std::string& text) {
    return error_of([&] { JsonTokenizer({{"tokenizer.json", text}}, "dir"); });
  };
  const std::string whole = byte_level_json().dump();
  for (const size_t size : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    expect_contains(read(whole.substr(0, size)), "dir/tokenizer.json: not valid JSON");
  }
  expect_contains(read(whole + "x"), "not valid JSON");
  expect_contains(read(std::string(1'000'000, '[')), "nested deeper");
  expect_contains(read("[]"), "is not an object");
  expect_contains(read("{}"), "'version' is missing");
  expect_contains(read(R"({"version": "1.0"})"), "'model' is missing");
  expect_contains(read(R"({"version": "1.0", "version": "1.0"})"), "'version' appears twice");
  expect_contains(error_of([] { JsonTokenizer({}, "dir"); }), "there is no tokenizer.json");
}

TEST(TokenizerJson, AReplacementThatGrowsATextWithoutEndIsAnError) {
  Json json = byte_level_json();
  const std::string content(1 << 20, 'b');
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", content}};
  const auto tokenizer = tokenizer_of(json);
  expect_contains(error_of([&] { tokenizer->encode(std::string(40, 'a')); }),
                  "Replace: it makes more than");
}

TEST(TokenizerJson, ATextThatGrowsInEverySectionIsAnError) {
  Json json = byte_level_json();
  json["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(1 << 20, 'b')}};
  const auto tokenizer = tokenizer_of(json);
  std::string text;
  for (int i = 0; i < 40; ++i) text += "a<eos>";
  expect_contains(error_of([&] { tokenizer->encode(text); }), "the tokenizer's normalizer makes ");
}

TEST(TokenizerJson, ATokenThatASearchWouldTakeTooLongForIsAnError) {
  Json json = byte_level_json();
  json["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(1 << 20, 'a')}};
  json["added_tokens"][0]["normalized"] = true;
  expect_contains(error_of([&] { tokenizer_of(json); }),
                  "added_tokens[0]: a token of 1048581 bytes after the normalizer, more than 256");
}

// Hours, if every place were compared with all of the pattern.
TEST(TokenizerJson, APatternThatIsNearlyThereEverywhereIsSoughtInOnePass) {
  const size_t half = 1 << 18;
  for (const size_t odd : {size_t{0}, half, 2 * half}) {
    std::string pattern(2 * half + 1, 'a');
    pattern[odd] = 'c';
    Json json = byte_level_json();
    json["normalizer"] = {
        {"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", "b"}};
    const auto tokenizer = tokenizer_of(json);
    EXPECT_EQ(tokenizer->encode(std::string(8 * half, 'a')).size(), 8 * half);
    EXPECT_EQ(tokenizer->encode(std::string(4 * half, 'a') + pattern + "a").size(), 4 * half + 2);
  }
}

}  // namespace
}  // namespace quads
