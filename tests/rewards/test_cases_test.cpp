// Tests of code problems in the forms that data sets have.
#include "rewards/test_cases.h"

#include <gtest/gtest.h>

#include "io/json.h"
#include "io/test_files.h"

namespace quads {
namespace {

std::string text(const TestCases& tests) {
  std::string result = tests.function;
  for (const TestCase& test : tests.cases) result += "|" + test.input + ">" + test.expected;
  return result;
}

std::string from_metadata(const std::string& metadata) {
  const Json json = parse_json(metadata, "metadata");
  return text(parse_test_cases("ignored", &json));
}

TEST(TestCases, LiveCodeBenchPrograms) {
  EXPECT_EQ(from_metadata(R"({"public_test_cases":
      "[{\"input\": \"1\\n\", \"output\": \"2\\n\", \"testtype\": \"stdin\"}]",
      "private_test_cases": [{"input": "3", "output": "4", "testtype": "stdin"}],
      "metadata": "{}"})"),
            "|1\n>2\n|3>4");
}

TEST(TestCases, LiveCodeBenchFunctions) {
  const std::string tests =
      R"("public_test_cases": [{"input": "[1]\n2", "output": "3", "testtype": "functional"}])";
  EXPECT_EQ(from_metadata("{" + tests + R"(, "metadata": "{\"func_name\": \"add\"}"})"),
            "add|[1]\n2>3");
  EXPECT_EQ(from_metadata("{" + tests + R"(, "metadata": {"func_name": "add"}})"), "add|[1]\n2>3");
  EXPECT_EQ(from_metadata("{" + tests + R"(, "func_name": "add"})"), "add|[1]\n2>3");
}

TEST(TestCases, LabelsHoldColumnsOrLists) {
  EXPECT_EQ(text(parse_test_cases(R"({"inputs": ["1", "2"], "outputs": ["3", "4"]})", nullptr)),
            "|1>3|2>4");
  EXPECT_EQ(text(parse_test_cases(R"( {"inputs": ["[1]\n2"], "outputs": [[3, 4]], "fn_name": "f"})",
                                  nullptr)),
            "f|[1]\n2>[3,4]");
  EXPECT_EQ(text(parse_test_cases(R"([{"input": "1", "output": "2"}])", nullptr)), "|1>2");
  const Json other = {{"source", "x"}};
  EXPECT_EQ(text(parse_test_cases(R"([{"input": "1", "output": "2"}])", &other)), "|1>2");
}

TEST(TestCases, PickledTestsAreRefused) {
  const std::string message =
      error_of([] { from_metadata(R"({"private_test_cases": "eJxrYJmax8gABrvZGBgYAA=="})"); });
  expect_contains(message, "metadata.private_test_cases is \"eJxrYJmax8gABrvZGBgYAA==\", not JSON");
  expect_contains(message, "have to be unpacked to JSON beforehand");
}

TEST(TestCases, WhatIsWrongIsSaid) {
  const auto label_error = [](const std::string& label) {
    return error_of([&] { parse_test_cases(label, nullptr); });
  };
  expect_contains(label_error(""), "label is \"\", not JSON");
  expect_contains(label_error("42"), "not JSON");
  expect_contains(label_error("[]"), "label: the problem has no tests");
  expect_contains(label_error("[{"), "label");
  expect_contains(label_error("[1]"), "label[0]: 1 is not an object");
  expect_contains(label_error(R"([{"input": "1"}])"), "label[0]: key 'output' is missing");
  expect_contains(label_error(R"({"inputs": ["1"], "outputs": []})"), "not two lists of the same");
  expect_contains(label_error(R"({"inputs": "1", "outputs": "1"})"), "not two lists of the same");
  expect_contains(label_error(R"([{"input": "", "output": "", "testtype": "x"}])"),
                  "testtype 'x' is neither stdin nor functional");
  expect_contains(label_error(R"([{"input": "", "output": "", "testtype": "functional"}])"),
                  "metadata has no func_name");
  expect_contains(error_of([] {
                    from_metadata(R"({"func_name": "f", "public_test_cases":
                        [{"input": "", "output": "", "testtype": "stdin"}]})");
                  }),
                  "metadata names the function 'f'");
  expect_contains(error_of([] { from_metadata(R"({"public_test_cases": []})"); }),
                  "metadata: the problem has no tests");
  expect_contains(error_of([] { from_metadata(R"({"public_test_cases": 7})"); }),
                  "7 is not a list of tests");
}

}  // namespace
}  // namespace quads
