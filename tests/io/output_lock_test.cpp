// One writer an output.
#include "io/output_lock.h"

#include <optional>

#include "io/atomic_dir.h"
#include "test_files.h"

namespace quads {
namespace {

TEST(OutputLock, ASecondWriterIsRefusedAndNamesTheOutput) {
  const TempDir dir;
  const std::filesystem::path out = dir / "out.jsonl";
  std::optional<OutputLock> first(OutputLock::beside(out));
  expect_contains(error_of([&] { OutputLock::beside(out); }), out.string() + ": another process");
  first.reset();
  EXPECT_EQ(dir.num_entries(), 0U);
  OutputLock::beside(out);  // free again
}

TEST(OutputLock, AFolderHasItsOwn) {
  const TempDir dir;
  const OutputLock inside = OutputLock::inside(dir.path());
  expect_contains(error_of([&] { OutputLock::inside(dir.path()); }), "another process");
  const OutputLock beside = OutputLock::beside(dir / "model/");
  expect_contains(error_of([&] { OutputLock::beside(dir / "model"); }), "another process");
}

TEST(OutputLock, AFileThatADeadProcessLeftIsTakenOver) {
  const TempDir dir;
  write_text(dir / ".lock", "");
  const OutputLock lock = OutputLock::inside(dir.path());
}

TEST(OutputLock, WhatDeadProcessesLeftOfTheOutputIsRemovedAndNothingElse) {
  const TempDir dir;
  std::filesystem::create_directory(dir / ".tmp-model-1");
  write_text(dir / ".tmp-model-1" / "half", "1");
  write_text(dir / ".tmp-model-22", "");
  for (const char* other : {".tmp-model-2-1", ".tmp-model-", ".tmp-modeller-1", ".tmp-model-x"}) {
    write_text(dir / other, "");
  }
  const std::filesystem::path output = dir / "model/";
  const AtomicDir living(output);
  const OutputLock lock = OutputLock::beside(output);
  EXPECT_EQ(dir.num_entries(), 4U + 2U);
  EXPECT_TRUE(std::filesystem::exists(living.path()));
}

TEST(OutputLock, AMissingFolderIsNamed) {
  const TempDir dir;
  expect_contains(error_of([&] { OutputLock::beside(dir / "none" / "out"); }),
                  "there is no folder " + (dir / "none").string());
}

}  // namespace
}  // namespace quads
