// A child process that is spoken to through pipes.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace quads {

/// A pipe's end or another descriptor; closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  void close();

 private:
  int number_;
};

/// Runs in a process group of its own, so that Ctrl-C on the terminal reaches this program alone,
/// with no descriptors but its three pipes (and `inherited`), no blocked signals and the default
/// handling of all. Not copied or moved: its owner kills and reaps it.
class PipedProcess {
 public:
  /// Starts `command`: the program, looked up in PATH, and its arguments. `inherited`, if not
  /// negative, becomes the child's descriptor 3. Error if it cannot be started.
  explicit PipedProcess(const std::vector<std::string>& command, int inherited = -1);
  /// Ends it as end(0) does.
  ~PipedProcess();
  PipedProcess(const PipedProcess&) = delete;
  PipedProcess& operator=(const PipedProcess&) = delete;

  /// This side's ends, which never block. For poll(); -1 once closed.
  int input() const { return input_.get(); }
  int output() const { return output_.get(); }
  int error_output() const { return error_.get(); }

  /// Writes as much of `bytes` to its input as the pipe takes and returns how much that was. An
  /// input that nobody reads takes nothing, without SIGPIPE.
  size_t write(std::string_view bytes);
  void close_input() { input_.close(); }
  /// Bytes of its input that were written and not yet read by it.
  size_t unread_input() const;

  /// Appends what it has printed to `bytes`, up to `limit` bytes in all. Closes output() at its
  /// end.
  void read_output(std::string& bytes, size_t limit);
  /// Keeps the last 4 KiB of what it wrote to standard error. Closes error_output() at its end.
  void read_error_output();
  /// The last lines of standard error on one line, for a message; empty if it wrote none.
  std::string error_tail() const;

  /// Waits for its end for up to `wait_ms` milliseconds, then kills its process group, reaps it and
  /// says how it ended: "exited with status 1", "was ended by signal 11 (Segmentation fault)", or
  /// "had to be killed".
  std::string end(int wait_ms);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;  // 0: reaped
  std::string how_it_ended_;
  Descriptor input_;
  Descriptor output_;
  Descriptor error_;
  std::string tail_;
};

}  // namespace quads
