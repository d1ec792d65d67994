// Programs of responses, run under bubblewrap on the inputs that they are tested with.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace quads {

extern const std::string_view kSandboxRunner;  // workers/sandbox_runner.py

enum class SandboxKind {
  kBubblewrap,
  /// No namespaces: the program sees this machine's files and writes where this user may (as root:
  /// where nobody may). Limits and the system call filter hold all the same.
  kNone,
};
/// "bwrap" or "none"; Error for any other name.
SandboxKind parse_sandbox_kind(std::string_view name);

struct SandboxOptions {
  SandboxKind kind = SandboxKind::kBubblewrap;
  double run_s = 6;                           // wall clock, a run
  size_t memory_bytes = size_t{1} << 30;      // address space
  size_t output_bytes = size_t{16} << 20;     // and the size of any file
  size_t disk_bytes = size_t{128} << 20;      // of /tmp, which holds the input, too
  int threads = 64;                           // with three of the sandbox's own
  double start_s = 60;                        // for the sandbox itself
  const std::atomic<bool>* cancel = nullptr;  // ends a run with Interrupted; may be null
};

/// Something about the sandbox, not the program in it, went wrong.
class SandboxError : public Error {
 public:
  using Error::Error;
};

/// Starts with the first program and ends with its destructor, or with the thread that started it
/// (another thread's next program starts a new one); no process is left. A program is Python, run
/// by /usr/bin/python3 in a process of its own for each input. It may
///  - read /usr (without /usr/local) and what it finds in its memory: no other file, no
///  environment,
///    no /proc, no other process, no network;
///  - write /tmp;
///  - start threads, but neither processes nor programs (program_filter.h).
/// So it ends with its process, but for files: if it leaves any, the next program gets a new
/// sandbox. What is right is never told to the sandbox, so there is nothing in it to find out or to
/// forge: whatever a program does, its output is right only if it printed the answer.
class Sandbox {
 public:
  explicit Sandbox(const SandboxOptions& options);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  /// The program of the runs that follow. `function`: empty for a program that reads standard input
  /// and writes standard output; else the function, or the method of its class Solution, that is
  /// called with the input's lines, each a JSON value, as arguments. Errors as of run().
  void load(std::string_view program, std::string_view function);

  struct Run {
    bool finished = false;  // within all limits, without an exception
    std::string output;     // finished: what it printed; of a function: what it returned, as JSON
    std::string cause;      // otherwise: "out of time", "exit status 1", ...
  };
  /// SandboxError if the sandbox does not start or does not answer, or the input is larger than
  /// half its disk; Interrupted. The next load() then starts anew.
  Run run(std::string_view input);

 private:
  void start();
  std::string exchange(std::string_view bytes, double limit_s);
  std::string answer_to(std::string_view bytes, double limit_s);
  [[noreturn]] void broken(const std::string& what);

  struct Process;
  SandboxOptions options_;
  pid_t thread_ = 0;  // that started the process
  std::unique_ptr<Process> process_;
};

/// Runs a program that prints a word. Error, with the cause and what can be done about it, if that
/// does not work here.
void check_sandbox(const SandboxOptions& options);

}  // namespace quads
