#include "rewards/sandbox.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "rewards/piped_process.h"
#include "rewards/program_filter.h"
#include "rewards/reward.h"

namespace quads {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kInputPath = "/tmp/.stdin";
constexpr size_t kHeaderBytes = 4;
// The runner ends a run in time; it is waited for somewhat longer, for a machine under load.
constexpr double kGraceSeconds = 20;
constexpr int kPollMs = 100;  // how soon a cancellation is seen

std::string frame(std::string_view bytes) {
  require(bytes.size() <= UINT32_MAX, "{} bytes for a sandbox, but at most {} can be sent",
          bytes.size(), UINT32_MAX);
  std::string result;
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    result.push_back(static_cast<char>(bytes.size() >> (8 * i)));
  }
  return result.append(bytes);
}

size_t frame_size(std::string_view header) {
  size_t size = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    size |= size_t{static_cast<unsigned char>(header[i])} << (8 * i);
  }
  return size;
}

std::vector<std::string> command(const SandboxOptions& options) {
  std::vector<std::string> words;
  const auto add = [&](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  // The kernel limits no process of root's. A user namespace of nobody's has root's in none.
  if (geteuid() == 0) {
    add({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"});
  }
  std::string input_path;
  if (options.kind == SandboxKind::kBubblewrap) {
    input_path = kInputPath;
    add({"bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session",
         "--clearenv", "--setenv", "OPENBLAS_NUM_THREADS", "1"});
    add({"--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local", "--remount-ro", "/usr/local"});
    for (const char* name : {"bin", "lib", "lib64"}) {
      add({"--symlink", fmt::format("usr/{}", name), fmt::format("/{}", name)});
    }
    for (const char* path : {"/etc/ld.so.cache", "/etc/alternatives"}) {
      add({"--ro-bind-try", path, path});
    }
    // No /proc: what a program could see there is not for it, and many containers cannot mount one.
    for (const char* path : {"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"}) {
      add({"--dev-bind", path, path});
    }
    add({"--symlink", input_path, "/dev/stdin", "--size", std::to_string(options.disk_bytes),
         "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"});
  } else {
    add({"env", "-i"});
  }
  add({"/usr/bin/python3", "-I", "-S", "-X", "utf8", "-c", std::string(kSandboxRunner),
       input_path});
  return words;
}

}  // namespace

struct Sandbox::Process {
  explicit Process(const std::vector<std::string>& command) : pipes(command) {}
  PipedProcess pipes;
  std::string to_send;
  std::string received;
};

SandboxKind parse_sandbox_kind(std::string_view name) {
  if (name == "bwrap") return SandboxKind::kBubblewrap;
  if (name == "none") return SandboxKind::kNone;
  fail(
      "--code-sandbox: unknown sandbox '{}'; there are: bwrap, none (no isolation: for programs "
      "that you trust)",
      name);
}

Sandbox::Sandbox(const SandboxOptions& options) : options_(options) {}

Sandbox::~Sandbox() = default;

void Sandbox::start() {
  static const std::string filter = program_filter();
  // Limits on processes count all that a user runs, unless the user is of a namespace of its own.
  const int threads = options_.kind == SandboxKind::kNone ? 1'000'000 : options_.threads;
  process_.reset();
  try {
    process_ = std::make_unique<Process>(command(options_));
    thread_ = gettid();
  } catch (const Error& error) {
    throw SandboxError(error.what());
  }
  const auto milliseconds = static_cast<int64_t>(std::ceil(options_.run_s * 1000));
  answer_to(frame(fmt::format("{} {} {} {}", milliseconds, options_.memory_bytes,
                              options_.output_bytes, threads)) +
                frame(filter),
            options_.start_s);
}

void Sandbox::broken(const std::string& what) {
  const std::string how = process_->pipes.end(0);
  const std::string tail = process_->pipes.error_tail();
  throw SandboxError(fmt::format("the code sandbox {}: it {}{}{}", what, how,
                                 tail.empty() ? "" : "; its standard error: ", tail));
}

std::string Sandbox::exchange(std::string_view bytes, double limit_s) {
  try {
    return answer_to(bytes, limit_s);
  } catch (...) {
    process_.reset();  // in the middle of something
    throw;
  }
}

std::string Sandbox::answer_to(std::string_view bytes, double limit_s) {
  Process& process = *process_;
  process.to_send = bytes;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(limit_s));
  const size_t most = options_.output_bytes + 1024;
  while (true) {
    PipedProcess& pipes = process.pipes;
    process.to_send.erase(0, pipes.write(process.to_send));
    pipes.read_error_output();
    pipes.read_output(process.received, kHeaderBytes + most);
    if (process.received.size() >= kHeaderBytes) {
      const size_t size = frame_size(process.received);
      if (size > most) broken(fmt::format("sent {} bytes, more than the {} allowed", size, most));
      if (process.received.size() >= kHeaderBytes + size) {
        std::string answer = process.received.substr(kHeaderBytes, size);
        process.received.erase(0, kHeaderBytes + size);
        return answer;
      }
    }
    if (pipes.output() < 0) {
      pipes.end(1000);
      broken("ended");
    }
    if (Clock::now() >= deadline) broken(fmt::format("gave no answer within {} s", limit_s));
    if (options_.cancel != nullptr && *options_.cancel) {
      throw Interrupted("running programs was interrupted");
    }
    std::vector<pollfd> polled = {{.fd = pipes.output(), .events = POLLIN, .revents = 0},
                                  {.fd = pipes.error_output(), .events = POLLIN, .revents = 0}};
    if (!process.to_send.empty()) {
      polled.push_back({.fd = pipes.input(), .events = POLLOUT, .revents = 0});
    }
    require(poll(polled.data(), polled.size(), kPollMs) >= 0 || errno == EINTR,
            "a code sandbox cannot be waited for: {}", std::strerror(errno));
  }
}

void Sandbox::load(std::string_view program, std::string_view function) {
  const std::string request = frame(fmt::format("f{}", function)) + frame(program);
  try {
    // One of a thread that has ended may answer yet, and be killed then.
    if (process_ && thread_ == gettid() && exchange(request, kGraceSeconds) == "o") return;
  } catch (const SandboxError&) {
    // It has ended.
  }
  start();
  if (exchange(request, kGraceSeconds) != "o") broken("is not clean at its start");
}

Sandbox::Run Sandbox::run(std::string_view input) {
  if (process_ == nullptr) throw SandboxError("the code sandbox has no program");
  if (input.size() > options_.disk_bytes / 2) {
    throw SandboxError(
        fmt::format("an input of {} bytes is more than half the sandbox's disk of {}", input.size(),
                    options_.disk_bytes));
  }
  const std::string answer =
      exchange(frame(fmt::format("r{}", input)), options_.run_s + kGraceSeconds);
  if (answer.empty()) broken("sent an empty answer");
  std::string rest = answer.substr(1);
  switch (answer[0]) {
    case 'o':
      return {.finished = true, .output = std::move(rest), .cause = {}};
    case 't':
      return {.finished = false, .output = {}, .cause = "out of time"};
    case 'x':
      return {.finished = false, .output = {}, .cause = "exit status " + rest};
    case 's':
      return {.finished = false, .output = {}, .cause = "signal " + rest};
    default:
      broken(fmt::format("sent an answer of kind {}", int{answer[0]}));
  }
}

void check_sandbox(const SandboxOptions& options) {
  std::string cause;
  try {
    Sandbox sandbox(options);
    sandbox.load("print('works')", "");
    const Sandbox::Run run = sandbox.run("");
    if (run.output == "works\n") return;
    cause = fmt::format("a program that prints a word ended with: {}",
                        run.finished ? "other output" : run.cause);
  } catch (const SandboxError& error) {
    cause = error.what();
  }
  if (options.kind == SandboxKind::kNone) fail("programs cannot be run: {}", cause);
  fail(
      "programs cannot be run under bubblewrap: {}. Install the Debian packages bubblewrap and "
      "python3 and allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
      "kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces; in Docker also "
      "--security-opt seccomp=unconfined); for programs that you trust, and for no others, there "
      "is --code-sandbox none",
      cause);
}

}  // namespace quads
