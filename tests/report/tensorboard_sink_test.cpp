// TensorBoard files: framing byte by byte, and names that sort in the order of writing. What
// TensorBoard reads from them is tested with TensorBoard itself (tests/oracle).
#include "report/tensorboard_sink.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "report/crc32c.h"
#include "report/temporary_directory.h"

namespace quads {
namespace {

using TensorBoardSinkTest = TemporaryDirectory;

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// The payloads of a file of TFRecords, with every checksum checked.
std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> payloads;
  while (!file.empty()) {
    const uint64_t length = little_endian(file.substr(0, 8));
    EXPECT_EQ(little_endian(file.substr(8, 4)), masked_crc32c(file.substr(0, 8)));
    const std::string_view payload = file.substr(12, length);
    EXPECT_EQ(little_endian(file.substr(12 + length, 4)), masked_crc32c(payload));
    payloads.emplace_back(payload);
    file.remove_prefix(16 + length);
  }
  return payloads;
}

TEST(TfRecord, FramesLengthAndDataWithMaskedChecksums) {
  const std::string record = tfrecord("123456789");
  ASSERT_EQ(record.size(), 9U + 16U);
  EXPECT_EQ(record.substr(0, 8), std::string("\x09\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 9), "123456789");
  EXPECT_EQ(little_endian(record.substr(21)), 0xC78AB0E5U);
  EXPECT_EQ(records(record), std::vector<std::string>{"123456789"});
}

TEST_F(TensorBoardSinkTest, OpensWithTheVersionAndAddsARecordARow) {
  TensorBoardSink sink(directory());
  MetricsRow row(5);
  row.set("reward/mean", 0.5);
  row.set("note", "not a scalar");
  sink.write(row);
  const auto written = records(read(sink.path()));
  ASSERT_EQ(written.size(), 2U);
  EXPECT_TRUE(contains(written[0], "brain.Event:2"));
  EXPECT_TRUE(contains(written[1], "reward/mean"));
  EXPECT_FALSE(contains(written[1], "note"));
}

TEST_F(TensorBoardSinkTest, ARowOfStringsAloneIsNoRecord) {
  TensorBoardSink sink(directory());
  MetricsRow row(0);
  row.set("note", "text");
  sink.write(row);
  EXPECT_EQ(records(read(sink.path())).size(), 1U);
}

TEST_F(TensorBoardSinkTest, NamesSortInTheOrderOfCreation) {
  std::vector<std::string> names;
  for (int i = 0; i < 3; ++i) names.push_back(TensorBoardSink(directory()).path().string());
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

TEST_F(TensorBoardSinkTest, OddFilesInTheFolderDoNotDisturb) {
  write("events.out.tfevents.", "");
  write("events.out.tfevents.99999999999999999999.host", "");
  write("events.out.tfevents.x", "");
  EXPECT_EQ(records(read(TensorBoardSink(directory()).path())).size(), 1U);
}

TEST_F(TensorBoardSinkTest, AMissingFolderIsAnErrorThatNamesIt) {
  EXPECT_TRUE(contains(error_of([&] { TensorBoardSink(directory() / "none"); }), "none"));
}

}  // namespace
}  // namespace quads
