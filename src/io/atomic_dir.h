// Writing a directory so that its name holds either nothing (or the old contents) or all of the new
// ones, whatever happens in between.
#pragma once

#include <filesystem>

#include "io/file.h"

namespace quads {

/// A directory under construction:
///
///   AtomicDir dir("checkpoints/step_000100");
///   write_files_into(dir.path());
///   dir.commit();
///
/// Until commit() it is ".tmp-<name>-<pid>" beside the final name; without commit() the destructor
/// removes it. A process that dies leaves it behind; remove_stale_temporaries() finds it.
class AtomicDir {
 public:
  enum class Existing { kFail, kReplace };

  /// The parent must exist. Error if `path` exists and `existing` is kFail.
  explicit AtomicDir(std::filesystem::path path, Existing existing = Existing::kFail);
  ~AtomicDir();
  AtomicDir(const AtomicDir&) = delete;
  AtomicDir& operator=(const AtomicDir&) = delete;

  /// Where to write the contents.
  const std::filesystem::path& path() const { return temporary_; }

  /// Syncs every file and directory to disk and renames to the final name. With kReplace an
  /// existing directory is exchanged with the new one in one step and then removed; a file system
  /// that cannot exchange names is an error, and the existing directory stays.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  Existing existing_;
  UniqueFd lock_;  // held while under construction
};

/// Removes from `parent` the ".tmp-*" files and directories that no living process is writing;
/// returns how many. Nothing happens if `parent` does not exist.
int remove_stale_temporaries(const std::filesystem::path& parent);
/// The same for those of the output `path` alone, beside which others may be under construction.
int remove_stale_temporaries_of(const std::filesystem::path& path);

}  // namespace quads
