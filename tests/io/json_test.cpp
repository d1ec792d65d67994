// Strict JSON: what is refused, and typed access.
#include "io/json.h"

#include <gtest/gtest.h>

#include "test_files.h"

namespace quads {
namespace {

std::string parse_error(const std::string& text, const JsonLimits& limits = {}) {
  return error_of([&] { parse_json(text, "x.json", limits); });
}

TEST(Json, RefusesMalformedTextAndSaysWhere) {
  for (const std::string text : {"", "{", "{\"a\":}", "[1,]", "{} {}", "nul", "NaN", "{'a':1}",
                                 "\"\xff\"", "1e999", "[1] // comment", "\"a\nb\""}) {
    expect_contains(parse_error(text), "x.json: not valid JSON: ");
  }
  expect_contains(parse_error(std::string("{}\0{}", 5)), "x.json: not valid JSON: ");
}

// A safetensors header has one a tensor. Minutes, if the end of each led through all the others.
TEST(Json, AnObjectOfManyObjectsIsReadInOnePass) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) text += fmt::format("\"{}\": {{\"a\": [1]}}, ", i);
  text += "\"end\": {}}";
  EXPECT_EQ(parse_json(text, "x.json").size(), 100'001U);
}

TEST(Json, AMessageQuotesLittleOfALongString) {
  const std::string error = parse_error("{\"a\": \"" + std::string(1'000'000, '1'));
  expect_contains(error, "missing closing quote; last read: '\"1111");
  EXPECT_LT(error.size(), 250U) << error;
  expect_contains(parse_error("[\"" + std::string(1'000'000, '1') + "\" 2]"), "unexpected");
}

TEST(Json, RefusesADuplicateKeyAtAnyDepth) {
  expect_contains(parse_error(R"({"a":1,"a":2})"), "key 'a' appears twice");
  expect_contains(parse_error(R"([{"b":{"c":1,"d":2,"c":3}}])"), "key 'c' appears twice");
  expect_contains(parse_error("{\"a\":1,\"\\u0061\":2}"), "key 'a' appears twice");
  EXPECT_NO_THROW(parse_json(R"({"a":{"a":1},"b":{"a":1},"c":[{"a":1},{"a":1}]})", "x.json"));
}

TEST(Json, LimitsDepthSizeAndNumberOfValues) {
  expect_contains(parse_error(std::string(100'000, '[')), "nested deeper than 64");
  EXPECT_NO_THROW(parse_json("[[1]]", "x.json", {.max_depth = 2}));
  expect_contains(parse_error("[[[1]]]", {.max_depth = 2}), "nested deeper than 2");
  expect_contains(parse_error("[1, 2, 3]", {.max_bytes = 8}), "more than the 8 allowed");
  expect_contains(parse_error("[1,2,3]", {.max_values = 3}), "more than 3 values");
}

TEST(Json, TypedAccessChecksTypeAndRange) {
  const Json json = parse_json(
      R"({"i":-3,"big":4294967296,"whole":2.0,"s":"x","b":true,"n":null,"v":[1,2],"m":[1,"a"]})",
      "x.json");
  EXPECT_EQ(get<int64_t>(json, "big", "x.json"), 4294967296);
  EXPECT_EQ(get<double>(json, "i", "x.json"), -3.0);
  EXPECT_EQ(get<std::vector<int>>(json, "v", "x.json"), (std::vector{1, 2}));
  EXPECT_EQ(get_or<int>(json, "n", 7, "x.json"), 7);
  EXPECT_EQ(get_or<int>(json, "absent", 7, "x.json"), 7);
  EXPECT_EQ(error_of([&] { get<int>(json, "absent", "x.json"); }),
            "x.json: key 'absent' is missing");
  EXPECT_EQ(error_of([&] { get<int>(json, "n", "x.json"); }), "x.json: key 'n' is missing");
  EXPECT_EQ(error_of([&] { get<int32_t>(json, "big", "x.json"); }),
            "x.json: 'big': 4294967296 is out of range");
  EXPECT_EQ(error_of([&] { get<uint32_t>(json, "i", "x.json"); }),
            "x.json: 'i': -3 is out of range");
  EXPECT_EQ(error_of([&] { get<int>(json, "whole", "x.json"); }),
            "x.json: 'whole': 2.0 is not an integer");
  EXPECT_EQ(error_of([&] { get<bool>(json, "i", "x.json"); }),
            "x.json: 'i': -3 is not true or false");
  EXPECT_EQ(error_of([&] { get<int>(json, "b", "x.json"); }),
            "x.json: 'b': true is not an integer");
  EXPECT_EQ(error_of([&] { get<double>(json, "s", "x.json"); }),
            "x.json: 's': \"x\" is not a number");
  EXPECT_EQ(error_of([&] { get<std::vector<int>>(json, "m", "x.json"); }),
            "x.json: 'm'[1]: \"a\" is not an integer");
  EXPECT_EQ(error_of([&] { get<int>(json["v"], "k", "x.json"); }),
            "x.json: [1,2] is not an object");
}

TEST(Json, FileErrorsNameThePath) {
  const TempDir dir;
  expect_contains(error_of([&] { read_json_file(dir / "none.json"); }), "none.json: cannot open");
  expect_contains(error_of([&] { read_json_file(dir.path()); }), "not a regular file");
  write_text(dir / "a.json", "{");
  expect_contains(error_of([&] { read_json_file(dir / "a.json"); }), "a.json: not valid JSON");
  write_json_file(dir / "b.json", {{"k", {1, 2}}});
  EXPECT_EQ(read_json_file(dir / "b.json"), (Json{{"k", {1, 2}}}));
}

}  // namespace
}  // namespace quads
