// A model's tensors in one file or in shards: agreement of index and shards, and refused weights.
#include "io/tensor_store.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/json.h"
#include "io/safetensors_writer.h"
#include "test_files.h"

namespace quads {
namespace {

class TensorStoreTest : public testing::Test {
 protected:
  TensorView tensor(const std::string& name, int64_t size) {
    return {name, DType::kU8, {size}, data_.data(), static_cast<size_t>(size)};
  }
  std::string open_error() {
    return error_of([&] { TensorStore store(dir_.path()); });
  }
  Json read_index() { return read_json_file(dir_ / "model.safetensors.index.json"); }
  void write_index(const Json& index) {
    write_json_file(dir_ / "model.safetensors.index.json", index);
  }

  TempDir dir_;
  std::vector<std::byte> data_ = std::vector<std::byte>(100, std::byte{7});
};

TEST_F(TensorStoreTest, OneFileHasNoIndex) {
  write_model_tensors(dir_.path(), std::vector{tensor("b", 10), tensor("a", 20)}, 30);
  EXPECT_EQ(dir_.num_entries(), 1U);
  const TensorStore store(dir_.path());
  ASSERT_EQ(store.tensors().size(), 2U);
  EXPECT_EQ(store.tensors()[0].name, "a");
  EXPECT_EQ(store.at("b").nbytes, 10U);
  EXPECT_EQ(store.find("c"), nullptr);
  expect_contains(error_of([&] { store.at("c"); }), "tensor 'c' is missing");
  EXPECT_EQ(TensorStore(dir_ / "model.safetensors").tensors().size(), 2U);
}

TEST_F(TensorStoreTest, ShardsAreFilledInOrderAndReadBack) {
  write_model_tensors(dir_.path(),
                      std::vector{tensor("a", 10), tensor("b", 20), tensor("c", 5),
                                  tensor("large", 90), tensor("d", 1)},
                      30);
  const Json index = read_index();
  EXPECT_EQ(index["metadata"]["total_size"], 126);
  EXPECT_EQ(index["weight_map"]["b"], "model-00001-of-00004.safetensors");
  EXPECT_EQ(index["weight_map"]["large"], "model-00003-of-00004.safetensors");
  const TensorStore store(dir_.path());
  EXPECT_EQ(store.tensors().size(), 5U);
  const TensorView& large = store.at("large");
  EXPECT_TRUE(std::equal(large.data, large.data + large.nbytes, data_.begin()));
}

TEST_F(TensorStoreTest, IndexAndShardsMustAgree) {
  const std::vector tensors{tensor("a", 10), tensor("b", 20)};
  write_model_tensors(dir_.path(), tensors, 10);
  const Json index = read_index();
  const std::string second = "model-00002-of-00002.safetensors";

  Json changed = index;
  changed["weight_map"]["ghost"] = second;
  write_index(changed);
  expect_contains(open_error(), "tensor 'ghost' is not in it");

  changed = index;
  changed["weight_map"].erase("b");
  changed["weight_map"]["a"] = second;
  write_index(changed);
  expect_contains(open_error(), "tensor 'b' is not placed there");

  for (const std::string name : {"../x.safetensors", "/etc/passwd", "", "..", "sub/x"}) {
    changed = index;
    changed["weight_map"]["b"] = name;
    write_index(changed);
    expect_contains(open_error(), "is not a plain file name");
  }

  changed = index;
  changed["weight_map"]["b"] = 3;
  write_index(changed);
  expect_contains(open_error(), "tensor 'b': 3 is not a string");

  write_index({{"metadata", Json::object()}});
  expect_contains(open_error(), "'weight_map' is missing");

  write_index(index);
  std::filesystem::remove(dir_ / second);
  expect_contains(open_error(), "shard '" + second + "' is missing (it should hold tensor 'b')");
}

TEST_F(TensorStoreTest, PickledWeightsAreRefusedByName) {
  expect_contains(open_error(), "holds neither model.safetensors nor");
  write_text(dir_ / "pytorch_model.bin", "PK\x03\x04");
  expect_contains(open_error(), "'pytorch_model.bin' is a pickle, which is never loaded");
  expect_contains(error_of([&] { TensorStore store(dir_ / "pytorch_model.bin"); }),
                  "pytorch_model.bin: 4 bytes are too few for a safetensors file (it looks like a "
                  "PyTorch pickle");
  expect_contains(error_of([&] { TensorStore store(dir_ / "none"); }), "no such file or directory");
}

}  // namespace
}  // namespace quads
