// Finding the program in a response.
#include "rewards/code_block.h"

#include <gtest/gtest.h>

namespace quads {
namespace {

TEST(LastCodeBlock, IsTheLastClosedPythonBlock) {
  EXPECT_EQ(last_code_block("```python\na\n```\ntext\n```py\nb\n  c\n```\nend"), "b\n  c\n");
  EXPECT_EQ(last_code_block("``` Python3 \r\na\r\n```\r\n"), "a\r\n");
  EXPECT_EQ(last_code_block("```python\na\n```\n```\noutput\n```"), "a\n");
  EXPECT_EQ(last_code_block("```python\na\n```\n```cpp\nb\n```"), "a\n");
  EXPECT_EQ(last_code_block("```\na\n```\n```\nb\n```"), "b\n");
  EXPECT_EQ(last_code_block("```python\na\n```\nand\n```python\ncut off"), "a\n");
  EXPECT_EQ(last_code_block("````python\n```\na\n````"), "```\na\n");
  EXPECT_EQ(last_code_block("```python\ns = '```'\n```"), "s = '```'\n");
  EXPECT_EQ(last_code_block("  ```python\n  a\n  ```"), "  a\n");
  EXPECT_EQ(last_code_block("```python\n```"), "");
}

TEST(LastCodeBlock, IsNothingWhereThereIsNone) {
  for (const char* text :
       {"", "print(1)", "```python\nprint(1)", "```cpp\na\n```", "``python\na\n``", "```",
        "```python", "```python print(1)```", "````python\na\n```"}) {
    EXPECT_EQ(last_code_block(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace quads
