// metrics.jsonl: what is written, what a resumed run keeps, and what a reader makes of damage.
#include "report/jsonl_sink.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "report/metrics_file.h"
#include "report/temporary_directory.h"

namespace quads {
namespace {

using JsonlSinkTest = TemporaryDirectory;
using MetricsFileTest = TemporaryDirectory;

MetricsRow row_of(int64_t step, double reward) {
  MetricsRow row(step);
  row.set("reward/mean", reward);
  return row;
}

TEST(MetricsRow, RefusesKeysThatCannotBeRead) {
  MetricsRow row(3);
  row.set("a", 1.0);
  EXPECT_EQ(error_of([&] { row.set("a", 2); }), "metrics of step 3: 'a' is set twice");
  EXPECT_THROW(row.set("step", 2), Error);
  EXPECT_THROW(row.set("", 2), Error);
  EXPECT_THROW(MetricsRow(-1), Error);
}

TEST(JsonLine, KeepsOrderAndTypes) {
  MetricsRow row(7);
  row.set("reward/mean", 0.1);
  row.set("count", int64_t{9007199254740993});
  row.set("a", "text \"quoted\"");
  EXPECT_EQ(to_json_line(row),
            R"({"step":7,"reward/mean":0.1,"count":9007199254740993,"a":"text \"quoted\""})");
}

TEST(JsonLine, WritesNonFiniteValuesAsReadableStrings) {
  MetricsRow row(0);
  row.set("a", std::nan(""));
  row.set("b", HUGE_VAL);
  row.set("c", -HUGE_VAL);
  EXPECT_EQ(to_json_line(row), R"({"step":0,"a":"NaN","b":"Infinity","c":"-Infinity"})");
}

TEST(JsonLine, ReplacesBytesThatAreNotUtf8) {
  MetricsRow row(0);
  row.set("note", "a\xFF");
  EXPECT_EQ(to_json_line(row), "{\"step\":0,\"note\":\"a\uFFFD\"}");
}

TEST_F(JsonlSinkTest, EachRowIsInTheFileWhenWriteReturns) {
  JsonlSink sink(directory() / "metrics.jsonl");
  sink.write(row_of(0, 0.5));
  EXPECT_EQ(read(directory() / "metrics.jsonl"), "{\"step\":0,\"reward/mean\":0.5}\n");
}

TEST_F(JsonlSinkTest, ValuesReadBackToTheBit) {
  const double values[] = {
      0.1, 1e-310, -0.0, std::nextafter(1.0, 2.0), HUGE_VAL, std::numeric_limits<double>::max()};
  MetricsRow row(0);
  for (size_t i = 0; i < std::size(values); ++i) row.set(std::to_string(i), values[i]);
  row.set("nan", std::nan(""));
  JsonlSink(directory() / "m").write(row);
  const auto lines = read_metrics_file(directory() / "m");
  ASSERT_EQ(lines.size(), 1U);
  for (size_t i = 0; i < std::size(values); ++i) {
    EXPECT_EQ(lines[0].values.at(std::to_string(i)), values[i]);
  }
  EXPECT_TRUE(std::isnan(lines[0].values.at("nan")));
}

TEST_F(JsonlSinkTest, ResumingCutsOffLaterStepsAndATornLine) {
  const auto path = write("m", "{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"rew");
  JsonlSink(path, 2).write(row_of(2, 1));
  EXPECT_EQ(read(path), "{\"step\":0}\n{\"step\":1}\n{\"step\":2,\"reward/mean\":1.0}\n");
}

TEST_F(JsonlSinkTest, ResumingBehindTheLastRowKeepsEverythingButATornLine) {
  const auto path = write("m", "{\"step\":0}\n{\"st");
  JsonlSink(path, 5).write(row_of(5, 1));
  EXPECT_EQ(read(path), "{\"step\":0}\n{\"step\":5,\"reward/mean\":1.0}\n");
}

TEST_F(JsonlSinkTest, ResumingWithoutAFileCreatesIt) {
  JsonlSink(directory() / "m", 5).write(row_of(5, 1));
  EXPECT_EQ(read_metrics_file(directory() / "m").at(0).step, 5);
}

TEST_F(JsonlSinkTest, AFreshRunEmptiesTheFile) {
  const auto path = write("m", "garbage");
  JsonlSink sink(path);
  EXPECT_EQ(read(path), "");
}

TEST_F(JsonlSinkTest, ResumingNamesTheDamagedLine) {
  const auto path = write("m", "{\"step\":0}\ngarbage\n{\"step\":2}\n");
  EXPECT_TRUE(contains(error_of([&] { JsonlSink(path, 9); }), path.string() + ":2"));
  EXPECT_TRUE(contains(read(path), "garbage"));  // a damaged file is not touched
}

TEST_F(JsonlSinkTest, StepsMustIncrease) {
  JsonlSink sink(directory() / "m", 4);
  EXPECT_THROW(sink.write(row_of(3, 1)), Error);
  sink.write(row_of(4, 1));
  EXPECT_THROW(sink.write(row_of(4, 1)), Error);
}

TEST_F(JsonlSinkTest, AFullDiskIsAnErrorThatNamesTheFile) {
  std::filesystem::create_symlink("/dev/full", directory() / "m");
  JsonlSink sink(directory() / "m");
  EXPECT_TRUE(contains(error_of([&] { sink.write(row_of(0, 1)); }), "m: "));
}

TEST_F(JsonlSinkTest, AMissingFolderIsAnErrorThatNamesTheFile) {
  const auto path = directory() / "none" / "m";
  EXPECT_TRUE(contains(error_of([&] { JsonlSink{path}; }), path.string()));
}

TEST_F(MetricsFileTest, AnEmptyFileHasNoRows) {
  EXPECT_TRUE(read_metrics_file(write("m", "")).empty());
}

TEST_F(MetricsFileTest, DropsATornLastLine) {
  EXPECT_EQ(read_metrics_file(write("m", "{\"step\":0}\n{\"step\":1}")).size(), 1U);
  EXPECT_TRUE(read_metrics_file(write("m", "{\"ste")).empty());
}

TEST_F(MetricsFileTest, LeavesOutWhatIsNoNumber) {
  const auto lines =
      read_metrics_file(write("m", R"({"step":0,"a":1,"b":"x","c":null,"d":[1],"e":true})"
                                   "\n"));
  EXPECT_EQ(lines.at(0).values, (std::map<std::string, double>{{"a", 1}}));
}

TEST_F(MetricsFileTest, NamesFileAndLineOfDamage) {
  const char* damaged[] = {"garbage",
                           "",
                           "[1]",
                           "7",
                           "{}",
                           "{\"step\":1.5}",
                           "{\"step\":-1}",
                           "{\"step\":\"1\"}",
                           "{\"step\":0}",  // does not increase
                           "{\"step\":1,\"a\":1,\"a\":2}",
                           "{\"step\":1} {\"step\":2}",
                           "{\"step\":99999999999999999999}",
                           "{\"step\":1,\"a\":[[[[[[[[[[1]]]]]]]]]]}",
                           "{\"step\":1,\"a\":NaN}",
                           "{\"step\":1,\"a\":1e999}"};
  for (const char* line : damaged) {
    const auto path = write("m", std::string("{\"step\":0}\n") + line + "\n");
    EXPECT_TRUE(contains(error_of([&] { read_metrics_file(path); }), path.string() + ":2")) << line;
  }
}

TEST_F(MetricsFileTest, SurvivesTenThousandOpenBrackets) {
  const auto path = write("m", std::string(10000, '[') + "\n");
  EXPECT_TRUE(contains(error_of([&] { read_metrics_file(path); }), ":1"));
}

TEST(JsonLine, IsReadBackToTheSameLine) {
  MetricsRow row(7);
  row.set("b", 0.1);
  row.set("a", 1.0);
  row.set("count", int64_t{-3});
  row.set("text", "x\"y");
  row.set("none", std::nan(""));
  const std::string line = to_json_line(row);
  EXPECT_EQ(to_json_line(from_json_line(line, "here")), line);
  for (const char* wrong : {"", "[]", "{}", "{\"step\": -1}", "{\"step\": \"1\"}",
                            "{\"step\": 1, \"a\": null}", "{\"step\": 1, \"a\": [1]}"}) {
    EXPECT_THROW(from_json_line(wrong, "here"), Error) << wrong;
  }
}

}  // namespace
}  // namespace quads
