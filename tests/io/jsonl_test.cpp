// JSON Lines: reading with line numbers, appending, and cutting back after a kill.
#include "io/jsonl.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include "io/jsonl_writer.h"
#include "test_files.h"

namespace quads {
namespace {

TEST(Jsonl, ReadsEveryLineAndNamesTheFaultyOne) {
  const TempDir dir;
  const auto path = dir / "a.jsonl";
  write_text(path, "{\"a\":1}\r\n\n  {\"a\":2}\n{\"a\":3}");
  std::vector<int> seen;
  std::vector<std::string> lines;
  const auto visit = [&](const Json& json, const std::string& where) {
    seen.push_back(get<int>(json, "a", where));
    lines.push_back(where);
  };
  for_each_jsonl(path, visit);
  EXPECT_EQ(seen, (std::vector{1, 2, 3}));
  EXPECT_EQ(lines.back(), path.string() + ":4");

  write_text(path, "{\"a\":1}\n{\"b\":2}\n");
  EXPECT_EQ(error_of([&] { for_each_jsonl(path, visit); }),
            path.string() + ":2: key 'a' is missing");
  write_text(path, "{\"a\":1}\n\n{\"a\":\n");
  expect_contains(error_of([&] { for_each_jsonl(path, visit); }), ":3: not valid JSON");
}

TEST(JsonlWriter, AppendsAndCutsATornLineOnOpening) {
  const TempDir dir;
  const auto path = dir / "m.jsonl";
  JsonlWriter(path).write({{"step", 1}});
  JsonlWriter(path).write({{"step", 2}});
  EXPECT_EQ(read_text(path), "{\"step\":1}\n{\"step\":2}\n");
  write_text(path, "{\"step\":1}\n{\"st");
  JsonlWriter writer(path);
  EXPECT_EQ(read_text(path), "{\"step\":1}\n");
  writer.write({{"step", 3}});
  EXPECT_EQ(read_text(path), "{\"step\":1}\n{\"step\":3}\n");
  write_text(path, "{\"torn");
  JsonlWriter again(path);
  EXPECT_EQ(read_text(path), "");
}

TEST(JsonlWriter, TruncationKeepsTheLinesBeforeTheFirstRefusedOne) {
  const TempDir dir;
  const auto path = dir / "m.jsonl";
  const auto up_to = [](int last) {
    return [=](const Json& line, const std::string& where) {
      return get<int>(line, "step", where) <= last;
    };
  };
  EXPECT_NO_THROW(truncate_jsonl(path, up_to(1)));
  const std::string text = "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"st";
  write_text(path, text);
  truncate_jsonl(path, up_to(9));
  EXPECT_EQ(read_text(path), text.substr(0, text.size() - 4));
  truncate_jsonl(path, up_to(2));
  EXPECT_EQ(read_text(path), "{\"step\":1}\n{\"step\":2}\n");
  truncate_jsonl(path, up_to(0));
  EXPECT_EQ(read_text(path), "");
  write_text(path, "{\"step\":1}\nxx\n");
  expect_contains(error_of([&] { truncate_jsonl(path, up_to(9)); }), "m.jsonl:2: not valid JSON");
  write_text(path, "{\"step\":1}\n[1]\n");
  expect_contains(error_of([&] { truncate_jsonl(path, up_to(9)); }), "m.jsonl:2: [1] is not");
  write_text(path, "{\"step\":\"x\"}\n");
  expect_contains(error_of([&] { truncate_jsonl(path, up_to(9)); }), "m.jsonl:1: 'step'");
}

TEST(JsonlWriter, FullDiskIsAnErrorThatNamesThePath) {
  JsonlWriter writer("/dev/full");
  expect_contains(error_of([&] {
                    writer.write({{"a", 1}});
                  }),
                  "/dev/full: cannot write: No space left on device");
}

TEST(JsonlWriter, FullDiskLeavesNoPartOfALine) {
  const TempDir dir;
  if (::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=16k") != 0) {
    GTEST_SKIP() << "needs the right to mount a tmpfs";
  }
  const auto path = dir / "m.jsonl";
  {
    JsonlWriter writer(path);
    writer.write({{"a", 1}});
    expect_contains(error_of([&] {
                      writer.write({{"b", std::string(100'000, 'x')}});
                    }),
                    "No space left on device");
    EXPECT_EQ(read_text(path), "{\"a\":1}\n");
    writer.write({{"c", 1}});
    EXPECT_EQ(read_text(path), "{\"a\":1}\n{\"c\":1}\n");
  }
  ASSERT_EQ(::umount(dir.path().c_str()), 0);
}

}  // namespace
}  // namespace quads
