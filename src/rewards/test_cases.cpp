#include "rewards/test_cases.h"

#include <optional>
#include <utility>

#include "io/json.h"

namespace quads {
namespace {

/// `value`, or the document in it if it is a string.
Json unpacked(const Json& value, const std::string& where) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  const size_t first = text.find_first_not_of(" \t\r\n");
  require(first != std::string::npos && (text[first] == '[' || text[first] == '{'),
          "{} is {}, not JSON: tests that LiveCodeBench packs (base64 of a pickle, which can run "
          "code) have to be unpacked to JSON beforehand",
          where, json_excerpt(value));
  return parse_json(text, where);
}

/// A function's arguments and results may also be given as JSON values instead of their text.
std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void add_list(const Json& list, const std::string& where, TestCases& tests) {
  require(list.is_array(), "{}: {} is not a list of tests", where, json_excerpt(list));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", where, i);
    const auto type = get_or<std::string>(list[i], "testtype", "stdin", here);
    require(type == "stdin" || type == "functional",
            "{}: testtype '{}' is neither stdin nor functional", here, type);
    require(type == "stdin" || !tests.function.empty(),
            "{}: the test is of a function, but metadata has no func_name", here);
    require(type == "functional" || tests.function.empty(),
            "{}: the test is of a whole program, but metadata names the function '{}'", here,
            tests.function);
    tests.cases.push_back(
        {get<std::string>(list[i], "input", here), get<std::string>(list[i], "output", here)});
  }
}

void add_columns(const Json& object, const std::string& where, TestCases& tests) {
  if (const auto name = find_key<std::string>(object, "fn_name", where)) tests.function = *name;
  const Json inputs = get<Json>(object, "inputs", where);
  const Json outputs = get<Json>(object, "outputs", where);
  require(inputs.is_array() && outputs.is_array() && inputs.size() == outputs.size(),
          "{}: inputs and outputs are not two lists of the same length", where);
  for (size_t i = 0; i < inputs.size(); ++i) {
    tests.cases.push_back({text_of(inputs[i]), text_of(outputs[i])});
  }
}

std::string function_name(const Json& metadata) {
  const std::string where = "metadata";
  if (const auto name = find_key<std::string>(metadata, "func_name", where)) return *name;
  const auto inner = metadata.find("metadata");
  if (inner == metadata.end()) return "";
  const Json object = unpacked(*inner, "metadata.metadata");
  return object.is_object() ? get_or<std::string>(object, "func_name", "", where) : "";
}

}  // namespace

TestCases parse_test_cases(std::string_view label, const Json* metadata) {
  TestCases tests;
  bool in_metadata = false;
  if (metadata != nullptr && metadata->is_object()) {
    tests.function = function_name(*metadata);
    for (const char* key : {"public_test_cases", "private_test_cases"}) {
      const auto list = metadata->find(key);
      if (list == metadata->end() || list->is_null()) continue;
      in_metadata = true;
      const std::string where = fmt::format("metadata.{}", key);
      add_list(unpacked(*list, where), where, tests);
    }
  }
  if (!in_metadata) {
    const Json document = unpacked(Json(std::string(label)), "label");
    if (document.is_object()) {
      add_columns(document, "label", tests);
    } else {
      add_list(document, "label", tests);
    }
  }
  require(!tests.cases.empty(), "{}: the problem has no tests", in_metadata ? "metadata" : "label");
  return tests;
}

}  // namespace quads
