#include "rewards/piped_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace quads {
namespace {

constexpr size_t kTailBytes = 4096;
constexpr size_t kMessageBytes = 400;
constexpr int kFirstFree = 3;  // below are standard input, output and error

/// Above the standard descriptors even where those are closed: the child's ends are duplicated onto
/// these one after the other.
Descriptor above_standard(int number) {
  if (number >= kFirstFree) return Descriptor(number);
  const Descriptor low(number);
  const int moved = fcntl(number, F_DUPFD_CLOEXEC, kFirstFree);
  require(moved >= 0, "no file descriptor for a pipe to a child process: {}", std::strerror(errno));
  return Descriptor(moved);
}

struct Pipe {
  Pipe() {
    int ends[2];
    require(pipe2(ends, O_CLOEXEC) == 0, "no pipe to a child process: {}", std::strerror(errno));
    read = above_standard(ends[0]);
    write = above_standard(ends[1]);
  }
  Descriptor read;
  Descriptor write;
};

void set_nonblocking(const Descriptor& descriptor) {
  const int flags = fcntl(descriptor.get(), F_GETFL);
  require(flags >= 0 && fcntl(descriptor.get(), F_SETFL, flags | O_NONBLOCK) == 0,
          "a pipe cannot be made non-blocking: {}", std::strerror(errno));
}

/// What posix_spawn is told: descriptors, process group, signals.
class SpawnSettings {
 public:
  SpawnSettings(const Pipe& input, const Pipe& output, const Pipe& error, int inherited) {
    posix_spawn_file_actions_init(&files_);
    posix_spawnattr_init(&attributes_);
    posix_spawn_file_actions_adddup2(&files_, input.read.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files_, output.write.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files_, error.write.get(), STDERR_FILENO);
    if (inherited >= 0) posix_spawn_file_actions_adddup2(&files_, inherited, kFirstFree);
    // Libraries open descriptors too, not all of them close-on-exec.
    posix_spawn_file_actions_addclosefrom_np(&files_, inherited >= 0 ? kFirstFree + 1 : kFirstFree);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  const posix_spawn_file_actions_t* files() const { return &files_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

/// While it lives, a write to a pipe without reader is an error for this thread and no signal.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    if (!was_pending_) {
      const timespec now = {0, 0};
      while (sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_;
};

/// Reads what a pipe holds and gives it to `take`, which returns whether it wants more; closes the
/// pipe at its end, or where it cannot be read.
template <class Take>
void drain(Descriptor& pipe, const Take& take) {
  std::array<char, 16384> buffer;
  while (pipe) {
    const ssize_t count = read(pipe.get(), buffer.data(), buffer.size());
    if (count > 0) {
      if (!take(std::string_view(buffer.data(), static_cast<size_t>(count)))) return;
    } else if (count < 0 && errno == EAGAIN) {
      return;
    } else if (count == 0 || errno != EINTR) {
      pipe.close();
    }
  }
}

std::string description(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return fmt::format("exited with status {}", info.si_status);
  return fmt::format("was ended by signal {} ({})", info.si_status, strsignal(info.si_status));
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

void Descriptor::close() {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

PipedProcess::PipedProcess(const std::vector<std::string>& command, int inherited) {
  require(!command.empty(), "a child process needs a program");
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  Pipe input;
  Pipe output;
  Pipe error;
  for (const Descriptor* end : {&input.write, &output.read, &error.read}) set_nonblocking(*end);
  const SpawnSettings settings(input, output, error, inherited);
  const int status =
      posix_spawnp(&pid_, argv[0], settings.files(), settings.attributes(), argv.data(), environ);
  require(status == 0, "{} cannot be started: {}", command[0], std::strerror(status));
  input_ = std::move(input.write);
  output_ = std::move(output.read);
  error_ = std::move(error.read);
}

PipedProcess::~PipedProcess() { end(0); }

size_t PipedProcess::write(std::string_view bytes) {
  const NoSigpipe guard;
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = ::write(input(), bytes.data() + written, bytes.size() - written);
    if (count >= 0) {
      written += static_cast<size_t>(count);
    } else if (errno == EAGAIN || errno == EPIPE) {
      break;
    } else if (errno != EINTR) {
      fail("a child process's input cannot be written: {}", std::strerror(errno));
    }
  }
  return written;
}

size_t PipedProcess::unread_input() const {
  int count = 0;
  require(ioctl(input(), FIONREAD, &count) == 0, "a pipe's fill cannot be read: {}",
          std::strerror(errno));
  return static_cast<size_t>(count);
}

void PipedProcess::read_output(std::string& bytes, size_t limit) {
  drain(output_, [&](std::string_view read) {
    bytes.append(read.substr(0, limit - std::min(limit, bytes.size())));
    return bytes.size() < limit;
  });
}

void PipedProcess::read_error_output() {
  // A bounded share at a time: a child that never stops writing must not hold this thread.
  size_t left = size_t{1} << 20;
  drain(error_, [&](std::string_view read) {
    tail_.append(read);
    if (tail_.size() > 2 * kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
    left -= std::min(left, read.size());
    return left > 0;
  });
}

std::string PipedProcess::error_tail() const {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  std::string line;
  for (const char c : tail_) {
    const bool printable = static_cast<unsigned char>(c) >= ' ' && c != '\x7f';
    if (!is_space(c)) {
      line.push_back(printable ? c : '?');
    } else if (!line.empty() && line.back() != ' ') {
      line.push_back(' ');
    }
  }
  if (line.ends_with(' ')) line.pop_back();
  if (line.size() <= kMessageBytes) return line;
  size_t start = line.size() - kMessageBytes;
  while (start < line.size() && (line[start] & 0xC0) == 0x80) ++start;  // no half character
  return "..." + line.substr(start);
}

std::string PipedProcess::end(int wait_ms) {
  if (pid_ == 0) return how_it_ended_;
  siginfo_t info = {};
  // The process is left unreaped until its group is killed: until then no other can have its
  // number.
  const Descriptor handle(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  pollfd ended = {.fd = handle.get(), .events = POLLIN, .revents = 0};
  if (handle && poll(&ended, 1, wait_ms) == 1 &&
      waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) == 0) {
    how_it_ended_ = description(info);
  } else {
    how_it_ended_ = "had to be killed";
  }
  kill(-pid_, SIGKILL);
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  input_.close();
  output_.close();
  if (error_) read_error_output();
  error_.close();
  return how_it_ended_;
}

}  // namespace quads
