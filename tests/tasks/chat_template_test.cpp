// Messages that are refused, and ChatML by example; tests/oracle/test_data_files.py compares more.
#include "tasks/chat_template.h"

#include <gtest/gtest.h>

#include "io/test_files.h"

namespace quads {
namespace {

std::string message(const std::string& json) {
  return error_of([&] { read_messages(parse_json(json, "f"), "f:1: 'prompt'"); });
}

TEST(Chat, ThoughtsBeforeTheLastQuestionAreLeftOut) {
  const std::vector<ChatMessage> messages = {
      {.role = "system", .content = "Be short."},
      {.role = "user", .content = "1+1?"},
      {.role = "assistant", .content = "<think>\nadd\n</think>\n\n2"},
      {.role = "user", .content = "2+2?"}};
  EXPECT_EQ(render_chatml(messages, true),
            "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
            "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(Chat, RefusedMessagesNameThePlace) {
  expect_contains(message("[]"), "f:1: 'prompt': [] is not a list of messages");
  expect_contains(message(R"("x")"), "is not a list of messages");
  expect_contains(message("[1]"), "'prompt'[0]: 1 is not an object");
  expect_contains(message(R"([{"content":"x"}])"), "'prompt'[0]: key 'role' is missing");
  expect_contains(message(R"([{"role":"user"}])"), "'prompt'[0]: key 'content' is missing");
  expect_contains(message(R"([{"role":"user","content":[{"type":"text","text":"x"}]}])"),
                  "'content': [{");
  expect_contains(message(R"([{"role":"tool","content":"x"}])"), "role 'tool' is not one of");
  expect_contains(message(R"([{"role":"user","content":"x"},{"role":"assistant","content":"y"}])"),
                  "the last message is the assistant's");
  expect_contains(message(R"([{"role":"assistant","tool_calls":[{"name":"f"}]}])"),
                  "calls of tools are not supported");
}

}  // namespace
}  // namespace quads
