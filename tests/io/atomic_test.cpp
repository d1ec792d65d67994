// Files and directories that appear whole or not at all: errors, kills, full disks.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/atomic_dir.h"
#include "io/atomic_file.h"
#include "test_files.h"

namespace quads {
namespace {

// Runs `function` in a child process that then dies without any clean-up.
template <class F>
void run_and_die(F&& function) {
  const pid_t child = ::fork();
  if (child == 0) {
    function();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

TEST(AtomicFile, RefusesToReplaceADeviceOrAFolder) {
  const TempDir dir;
  std::filesystem::create_directory(dir.path() / "folder");
  std::filesystem::create_symlink("/dev/null", dir.path() / "device");
  for (const char* name : {"folder", "device"}) {
    const std::filesystem::path path = dir.path() / name;
    EXPECT_EQ(error_of([&] { write_file_atomically(path, "text"); }),
              path.string() + ": is there already and is no regular file");
  }
  EXPECT_TRUE(std::filesystem::is_symlink(dir.path() / "device"));
}

TEST(AtomicFile, ReplacesOnlyAtCommit) {
  const TempDir dir;
  const auto path = dir / "f";
  write_text(path, "old");
  {
    AtomicFile file(path);
    file.write("new ");
    file.write("text");
    EXPECT_EQ(read_text(path), "old");
    file.commit();
    EXPECT_EQ(read_text(path), "new text");
  }
  {
    AtomicFile file(path);
    file.write("never committed");
  }
  EXPECT_EQ(read_text(path), "new text");
  EXPECT_EQ(dir.num_entries(), 1U);
}

TEST(AtomicFile, TwoWritersOfOneFileAreAnError) {
  const TempDir dir;
  AtomicFile first(dir / "f");
  first.write("first");
  expect_contains(error_of([&] { AtomicFile second(dir / "f"); }), "is being written by another");
  first.commit();
  EXPECT_EQ(read_text(dir / "f"), "first");
}

TEST(AtomicFile, KilledWriterLeavesTheOldContents) {
  const TempDir dir;
  write_text(dir / "f", "old");
  run_and_die([&] {
    AtomicFile file(dir / "f");
    file.write("half");
    ::_exit(0);
  });
  EXPECT_EQ(read_text(dir / "f"), "old");
  EXPECT_EQ(dir.num_entries(), 2U);
  EXPECT_EQ(remove_stale_temporaries(dir.path()), 1);
  EXPECT_EQ(dir.num_entries(), 1U);
}

TEST(AtomicFile, MissingFolderIsAnErrorThatNamesThePath) {
  const TempDir dir;
  const std::string message = error_of([&] { AtomicFile file(dir / "none/f"); });
  expect_contains(message, (dir / "none/f").string() + ": cannot be written");
  expect_contains(message, "there is no folder " + (dir / "none").string());
  write_text(dir / "plain", "");
  expect_contains(error_of([&] { AtomicFile file(dir / "plain/f"); }),
                  (dir / "plain").string() + " is no folder");
}

TEST(AtomicDir, AppearsWholeAtCommit) {
  const TempDir dir;
  AtomicDir out(dir / "step");
  write_text(out.path() / "a", "1");
  std::filesystem::create_directory(out.path() / "sub");
  write_text(out.path() / "sub" / "b", "2");
  EXPECT_FALSE(std::filesystem::exists(dir / "step"));
  out.commit();
  EXPECT_EQ(read_text(dir / "step/a"), "1");
  EXPECT_EQ(read_text(dir / "step/sub/b"), "2");
  EXPECT_EQ(dir.num_entries(), 1U);
}

TEST(AtomicDir, WithoutCommitNothingStays) {
  const TempDir dir;
  try {
    AtomicDir out(dir / "step");
    write_text(out.path() / "a", "1");
    fail("the writer failed");
  } catch (const Error&) {
  }
  EXPECT_EQ(dir.num_entries(), 0U);
}

TEST(AtomicDir, RefusesAnExistingNameAtOpeningAndAtCommit) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "step");
  expect_contains(error_of([&] { AtomicDir out(dir / "step/"); }), "step: already exists");

  AtomicDir out(dir / "late");
  std::filesystem::create_directory(dir / "late");
  expect_contains(error_of([&] { out.commit(); }), "late: cannot rename");
  EXPECT_TRUE(std::filesystem::is_empty(dir / "late"));
}

TEST(AtomicDir, ReplacesInOneStep) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "step");
  write_text(dir / "step/old", "1");
  AtomicDir out(dir / "step", AtomicDir::Existing::kReplace);
  write_text(out.path() / "new", "2");
  EXPECT_EQ(read_text(dir / "step/old"), "1");
  out.commit();
  EXPECT_FALSE(std::filesystem::exists(dir / "step/old"));
  EXPECT_EQ(read_text(dir / "step/new"), "2");
  EXPECT_EQ(dir.num_entries(), 1U);
}

TEST(AtomicDir, KilledWriterIsFoundAsStaleAndALivingOneIsNot) {
  const TempDir dir;
  run_and_die([&] {
    AtomicDir out(dir / "dead");
    write_text(out.path() / "a", "half");
    ::_exit(0);
  });
  AtomicDir living(dir / "living");
  EXPECT_EQ(dir.num_entries(), 2U);
  EXPECT_EQ(remove_stale_temporaries(dir.path()), 1);
  EXPECT_TRUE(std::filesystem::exists(living.path()));
  living.commit();
  EXPECT_EQ(dir.num_entries(), 1U);
  EXPECT_EQ(remove_stale_temporaries(dir / "no such directory"), 0);
}

TEST(AtomicDir, TakesOverTheLeftoversOfADeadProcessWithTheSameId) {
  const TempDir dir;
  const auto leftover = temporary_sibling(dir / "step");
  std::filesystem::create_directory(leftover);
  write_text(leftover / "half", "1");
  AtomicDir out(dir / "step");
  out.commit();
  EXPECT_TRUE(std::filesystem::is_empty(dir / "step"));

  AtomicDir first(dir / "other");
  expect_contains(error_of([&] { AtomicDir second(dir / "other"); }),
                  "is being written by another");
}

TEST(AtomicDir, MissingParentIsAnErrorThatNamesThePath) {
  const TempDir dir;
  const std::string message = error_of([&] { AtomicDir out(dir / "none/step"); });
  expect_contains(message, (dir / "none/step").string() + ": cannot be written");
  expect_contains(message, "there is no folder " + (dir / "none").string());
}

TEST(Atomic, FullDiskLeavesThePreviousDataWhole) {
  const TempDir dir;
  if (::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "needs the right to mount a tmpfs";
  }
  const std::string large(1'000'000, 'x');
  {
    write_text(dir / "f", "old");
    expect_contains(error_of([&] { write_file_atomically(dir / "f", large); }),
                    "No space left on device");
    EXPECT_EQ(read_text(dir / "f"), "old");

    std::filesystem::create_directory(dir / "step");
    write_text(dir / "step/a", "old");
    expect_contains(error_of([&] {
                      AtomicDir out(dir / "step", AtomicDir::Existing::kReplace);
                      write_file_atomically(out.path() / "a", large);
                      out.commit();
                    }),
                    "No space left on device");
    EXPECT_EQ(read_text(dir / "step/a"), "old");
    EXPECT_EQ(dir.num_entries(), 2U);
  }
  ASSERT_EQ(::umount(dir.path().c_str()), 0);
}

}  // namespace
}  // namespace quads
