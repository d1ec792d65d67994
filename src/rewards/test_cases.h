// A code problem's tests, as LiveCodeBench and others store them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace quads {

struct TestCase {
  std::string input;
  std::string expected;
};

struct TestCases {
  /// The function to call; empty for programs that use standard input and output.
  std::string function;
  std::vector<TestCase> cases;  // at least one
};

/// From `metadata` (an object or null) if that has public_test_cases or private_test_cases, the
/// fields of LiveCodeBench: lists of {input, output, testtype}, or such a list as a string. The
/// function's name is func_name in metadata, or in the object or string metadata.metadata.
/// Otherwise from `label`: {"inputs": [...], "outputs": [...], "fn_name": ...} or a list as above;
/// fn_name may also be in metadata, as func_name.
///
/// Private tests that are packed (base64 of a compressed pickle) are refused: a pickle can run
/// code. Error that says what is missing or not as it should be.
TestCases parse_test_cases(std::string_view label, const nlohmann::json* metadata);

}  // namespace quads
