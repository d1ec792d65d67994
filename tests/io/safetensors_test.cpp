// safetensors: round trips, and dozens of files that must be refused.
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "io/safetensors_writer.h"
#include "test_files.h"

namespace quads {
namespace {

// A file with this header and `data_bytes` zero bytes after it.
std::string make_file(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\0');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), "f");
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TensorView view(const std::string& name, DType dtype, std::vector<int64_t> shape, const void* data,
                size_t nbytes) {
  return {name, dtype, std::move(shape), static_cast<const std::byte*>(data), nbytes};
}

TEST(Safetensors, ParsesTensorsInTheOrderOfTheirData) {
  const std::string file = make_file(
      R"({"__metadata__":{"format":"pt"},"b":)" + entry("BF16", "[2,3]", "[4,16]") + R"(,"a":)" +
          entry("F32", "[]", "[0,4]") + R"(,"empty":)" + entry("I64", "[0,7]", "[16,16]") + "}   ",
      16);
  const SafetensorsHeader header = parse(file);
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].num_elements(), 1);
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(describe(header.tensors[1]), "BF16 [2, 3]");
  EXPECT_EQ(header.tensors[2].nbytes, 0U);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_TRUE(parse(make_file("{}", 0)).tensors.empty());
}

TEST(Safetensors, UnalignedDataAreReadByCopy) {
  const std::string header = R"({"a":)" + entry("F32", "[2]", "[0,8]") + "}";
  for (size_t padding = 0; padding < 4; ++padding) {
    std::string file = make_file(header + std::string(padding, ' '), 8);
    const std::vector<float> expected = {1.5F, -2.0F};
    std::memcpy(file.data() + file.size() - 8, expected.data(), 8);
    const SafetensorsHeader parsed = parse(file);
    std::vector<float> values(2);
    parsed.tensors[0].copy_to(values.data());
    EXPECT_EQ(values, expected);
  }
}

struct Hostile {
  std::string file;
  std::string message;
};

TEST(Safetensors, RefusesHostileFilesAndSaysWhy) {
  const std::string max_u64 = "18446744073709551615";
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets, size_t bytes) {
    return make_file(R"({"w":)" + entry(dtype, shape, offsets) + "}", bytes);
  };
  const auto two = [](const std::string& a, const std::string& b, size_t bytes) {
    return make_file(R"({"a":)" + entry("U8", "[4]", a) + R"(,"b":)" + entry("U8", "[4]", b) + "}",
                     bytes);
  };
  const auto with_length = [](uint64_t length, const std::string& rest) {
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    return file + rest;
  };
  const std::vector<Hostile> cases = {
      // The frame.
      {"", "the file is empty"},
      {"1234567", "7 bytes are too few"},
      {with_length(0, ""), "not a JSON object"},
      {with_length(~uint64_t{0}, "{}"), "header would have 18446744073709551615 bytes"},
      {with_length(100'000'001, "{}"), "more than 100000000"},
      {with_length(3, "{}"), "truncated: the header of 3 bytes"},
      {with_length(2, "{"), "truncated"},
      {std::string("PK\x03\x04\x14\0\0\0\x08\x08 zip", 14), "PyTorch pickle"},
      {std::string("\x80\x02}q\x01(X\x06\0\0", 10), "PyTorch pickle"},
      {"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"},
      {std::string("GGUF\x03\0\0\0\0\0\0\0", 12), "GGUF"},
      // The JSON.
      {make_file("[]", 0), "not a JSON object"},
      {make_file(" {}", 0), "not a JSON object"},
      {make_file("{", 0), "not valid JSON"},
      {make_file("{}}", 0), "not valid JSON"},
      {make_file("{\"a\xff\":1}", 0), "not valid JSON"},
      {make_file(std::string("{}\0", 3), 0), "not valid JSON"},
      {make_file("{\"a\":" + std::string(100'000, '['), 0), "nested deeper"},
      {make_file(R"({"w":1})", 0), "tensor 'w': 1 is not an object"},
      {make_file(R"({"w":{"shape":[],"data_offsets":[0,0]}})", 0), "'dtype' is missing"},
      {make_file(R"({"w":{"dtype":"U8","data_offsets":[0,0]}})", 0), "'shape' is missing"},
      {make_file(R"({"w":{"dtype":"U8","shape":[0]}})", 0), "'data_offsets' is missing"},
      {make_file(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})", 0),
       "unknown field 'x'"},
      {make_file(R"({"w":)" + entry("U8", "[1]", "[0,1]") + R"(,"w":)" +
                     entry("U8", "[1]", "[0,1]") + "}",
                 1),
       "key 'w' appears twice"},
      {make_file(R"({"w":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}})", 0),
       "key 'dtype' appears twice"},
      {make_file(R"({"__metadata__":[]})", 0), "__metadata__ is not an object"},
      {make_file(R"({"__metadata__":{"a":1}})", 0), "__metadata__ 'a': 1 is not a string"},
      // One tensor.
      {one("Q4", "[1]", "[0,1]", 1), "tensor 'w': dtype 'Q4'"},
      {one("bf16", "[1]", "[0,2]", 2), "dtype 'bf16'"},
      {one("U8", "[-1]", "[0,1]", 1), "negative extent -1"},
      {one("U8", "[1.0]", "[0,1]", 1), "not an integer"},
      {one("U8", "\"1\"", "[0,1]", 1), "not an array"},
      {one("U8", "[" + max_u64 + "]", "[0,1]", 1), "out of range"},
      {one("F32", "[4611686018427387904]", "[0,0]", 0), "product of its shape overflows"},
      {one("U8", "[4294967296,4294967296]", "[0,0]", 0), "product of its shape overflows"},
      {one("U8", "[4294967296,4294967296,0]", "[0,0]", 0), "product of its shape overflows"},
      {one("U8", "[4]", "[4]", 4), "1 data_offsets instead of 2"},
      {one("U8", "[4]", "[0,2,4]", 4), "3 data_offsets instead of 2"},
      {one("U8", "[4]", "[-4,0]", 4), "-4 is out of range"},
      {one("U8", "[4]", "[4,0]", 4), "reversed"},
      {one("U8", "[4]", "[0,5]", 4), "reach beyond the file's 4 bytes"},
      {one("U8", "[4]", "[0," + max_u64 + "]", 4), "reach beyond"},
      {one("U8", "[4]", "[" + max_u64 + "," + max_u64 + "]", 4), "reach beyond"},
      {one("F32", "[2,2]", "[0,15]", 15), "F32 [2, 2] takes 16 bytes"},
      {one("F32", "[2,2]", "[0,16]", 12), "reach beyond"},
      {one("F32", "[]", "[0,8]", 8), "takes 4 bytes"},
      {one("F32", "[0]", "[0,4]", 4), "takes 0 bytes"},
      // Their layout.
      {one("U8", "[4]", "[1,5]", 5), "1 bytes before its data belong to no tensor"},
      {one("U8", "[4]", "[0,4]", 5), "the last 1 bytes belong to no tensor"},
      {make_file("{}", 3), "the last 3 bytes belong to no tensor"},
      {two("[0,4]", "[0,4]", 4), "tensor 'b': its data overlap"},
      {two("[0,4]", "[3,7]", 7), "tensor 'b': its data overlap"},
      {two("[5,9]", "[0,4]", 9), "tensor 'a': 1 bytes before"},
      {make_file(R"({"a":)" + entry("U8", "[4]", "[0,4]") + R"(,"b":)" +
                     entry("U8", "[0]", "[2,2]") + "}",
                 4),
       "tensor 'b': its data overlap"},
  };
  for (const Hostile& hostile : cases) {
    const std::string message = error_of([&] { parse(hostile.file); });
    EXPECT_TRUE(message.starts_with("f: ")) << message;
    expect_contains(message, hostile.message);
  }
}

TEST(Safetensors, AnyCorruptionIsAnErrorOrStillWithinBounds) {
  const std::string file = make_file(R"({"a":)" + entry("F32", "[2,2]", "[0,16]") + R"(,"b":)" +
                                         entry("BF16", "[3]", "[16,22]") + "}",
                                     22);
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_THROW(parse(file.substr(0, length)), Error) << length;
  }
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string mutated = file;
    for (int flips = 0; flips < 2; ++flips) {
      mutated[random() % (file.size() - 22)] = static_cast<char>(random());
    }
    try {
      for (const TensorView& tensor : parse(mutated).tensors) {
        const char* data = reinterpret_cast<const char*>(tensor.data);
        EXPECT_GE(data, mutated.data());
        EXPECT_LE(data + tensor.nbytes, mutated.data() + mutated.size());
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 4000);
}

TEST(SafetensorsWriter, WritesAlignedTensorsThatReadBackTheSame) {
  const TempDir dir;
  const std::vector<uint8_t> bytes = {1, 2, 3};
  const std::vector<float> floats = {1.0F, -0.0F, 3e38F, 0.5F};
  const std::vector<uint16_t> halves = {0x3F80, 0x8000, 0x7F7F};
  const std::vector<TensorView> tensors = {
      view("bytes", DType::kU8, {3}, bytes.data(), 3),
      view("floats", DType::kF32, {2, 2}, floats.data(), 16),
      view("halves", DType::kBF16, {3, 1}, halves.data(), 6),
      view("none", DType::kF32, {0, 5}, nullptr, 0),
  };
  write_safetensors(dir / "m.safetensors", tensors);
  const SafetensorsFile file(dir / "m.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const TensorView& expected : tensors) {
    const auto it = std::find_if(file.tensors().begin(), file.tensors().end(),
                                 [&](const TensorView& t) { return t.name == expected.name; });
    ASSERT_NE(it, file.tensors().end()) << expected.name;
    EXPECT_EQ(it->dtype, expected.dtype);
    EXPECT_EQ(it->shape, expected.shape);
    EXPECT_TRUE(it->is_aligned());
    std::vector<std::byte> copy(it->nbytes);
    it->copy_to(copy.data());
    EXPECT_TRUE(std::equal(copy.begin(), copy.end(), expected.data)) << expected.name;
  }
}

TEST(SafetensorsWriter, RefusesDuplicatesReservedNamesAndWrongSizes) {
  const TempDir dir;
  const float value = 1.0F;
  const auto message = [&](std::vector<TensorView> tensors) {
    return error_of([&] { write_safetensors(dir / "m", tensors); });
  };
  const TensorView good = view("w", DType::kF32, {1}, &value, 4);
  expect_contains(message({good, good}), "tensor 'w' is given twice");
  expect_contains(message({view("__metadata__", DType::kF32, {1}, &value, 4)}), "__metadata__");
  expect_contains(message({view("w", DType::kF32, {2}, &value, 4)}),
                  "F32 [2] takes 8 bytes, not 4");
  EXPECT_EQ(dir.num_entries(), 0U);
}

}  // namespace
}  // namespace quads
