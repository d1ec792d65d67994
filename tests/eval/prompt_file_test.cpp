// Prompts from files, good and bad.
#include "eval/prompt_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "eval/sample_file.h"
#include "io/json.h"
#include "tokenizer/character_tokenizer.h"

namespace quads {
namespace {

using testing::HasSubstr;

std::string file_with(const std::string& text) {
  const std::string path = testing::TempDir() + "/prompts.jsonl";
  std::ofstream(path) << text;
  return path;
}

CharacterTokenizer tokenizer() {
  return CharacterTokenizer({.tokens = {"a", "b", "c", "$"}, .eos = "$"});
}

std::string error_of(const std::string& text, bool with_tokenizer = true) {
  const CharacterTokenizer t = tokenizer();
  try {
    read_prompts(file_with(text), with_tokenizer ? &t : nullptr);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(PromptFile, TextAndIdsAndResponsesAreRead) {
  const CharacterTokenizer t = tokenizer();
  const auto lines =
      read_prompts(file_with("{\"prompt\": \"ab\", \"label\": \"c\"}\n"
                             "{\"prompt_tokens\": [2, 1], \"index\": 7, \"sample\": 3, "
                             "\"response_tokens\": [0]}\n"),
                   &t);
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines[0].tokens, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(lines[0].index, 0);
  EXPECT_EQ(lines[0].label, "c");
  EXPECT_FALSE(lines[0].response);
  EXPECT_EQ(lines[1].tokens, (std::vector<int32_t>{2, 1}));
  EXPECT_EQ(lines[1].index, 7);
  EXPECT_EQ(lines[1].sample, 3);
  EXPECT_EQ(lines[1].response, (std::vector<int32_t>{0}));
}

TEST(PromptFile, BadLinesAreErrorsThatNameFileAndLine) {
  EXPECT_THAT(error_of("{\"prompt\": \"a\"}\n{\"label\": \"a\"}\n"),
              HasSubstr("prompts.jsonl:2: neither 'prompt' nor 'prompt_tokens'"));
  EXPECT_THAT(error_of("{\"prompt\": \"ax\"}\n"), HasSubstr("prompts.jsonl:1: 'prompt'"));
  EXPECT_THAT(error_of("{\"prompt_tokens\": []}\n"), HasSubstr(":1: the prompt is empty"));
  EXPECT_THAT(error_of("{\"prompt_tokens\": [1.5]}\n"), HasSubstr("not an integer"));
  EXPECT_THAT(error_of("{\"prompt\": \"a\", \"index\": -1}\n"), HasSubstr("must be >= 0"));
  EXPECT_THAT(error_of("{\"prompt\": \"a\"}\n", false), HasSubstr("no tokenizer.json"));
  EXPECT_THAT(error_of("\n"), HasSubstr("no prompts in it"));
  EXPECT_THAT(error_of("[1]\n"), HasSubstr("not an object"));
}

TEST(PromptFile, ASampleThatWasWrittenReadsBackAsAPromptToScore) {
  const CharacterTokenizer t = tokenizer();
  PromptLine prompt;
  prompt.prompt = "ab";
  prompt.tokens = {0, 1};
  prompt.label = "c";
  Sample sample;
  sample.prompt_index = 4;
  sample.sample_index = 2;
  sample.prompt = prompt.tokens;
  sample.response = {2, 3};
  sample.logprobs = {-0.1F, -1e-8F};
  sample.finish = FinishReason::kStop;
  const RewardResult right{.value = 1.0}, failed{.failure = "died"};
  const std::string line = sample_line(prompt, sample, &t, &right);
  const Json json = parse_json(line, "line");
  EXPECT_EQ(json["response"], "c$");
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["reward"], 1.0);
  EXPECT_EQ(json["logprobs"].get<std::vector<float>>(), sample.logprobs);
  const Json unscored = parse_json(sample_line(prompt, sample, &t, &failed), "line");
  EXPECT_TRUE(unscored["reward"].is_null());
  EXPECT_EQ(unscored["reward_failure"], "died");
  EXPECT_FALSE(parse_json(sample_line(prompt, sample, &t, nullptr), "line").contains("reward"));
  const auto back = read_prompts(file_with(line), &t);
  EXPECT_EQ(back[0].index, 4);
  EXPECT_EQ(back[0].sample, 2);
  EXPECT_EQ(back[0].tokens, prompt.tokens);
  EXPECT_EQ(back[0].response, sample.response);
  EXPECT_EQ(back[0].label, "c");
}

}  // namespace
}  // namespace quads
