// One writer an output.
#include "io/output_lock.h"

#include <optional>

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

TEST(OutputLock, AMissingFolderIsNamed) {
  const TempDir dir;
  expect_contains(error_of([&] { OutputLock::beside(dir / "none" / "out"); }),
                  "there is no folder " + (dir / "none").string());
}

}  // namespace
}  // namespace quads
