// Programs that stay up and answer one line of JSON with one line of JSON.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace quads {

struct WorkerPoolOptions {
  /// Program, looked up in PATH, and its arguments.
  std::vector<std::string> command;
  /// What messages call it; empty: the command.
  std::string name{};
  /// What would be right, for the message that it cannot start.
  std::string remedy =
      "the program has to stay up, read a line of JSON from standard input and print a line of "
      "JSON to standard output";
  int workers = 1;
  /// For a worker to take a request: what it needs to start (imports, a model to load).
  double start_s = 60;
  /// From there to its answer.
  double request_s = 10;
  size_t max_reply_bytes = size_t{1} << 20;
  /// run() ends with Interrupted (reward.h) once it is true; may be null.
  const std::atomic<bool>* cancel = nullptr;
};

struct WorkerReply {
  enum class Outcome {
    kAnswered,
    kTimedOut,  // it took the request and did not answer within request_s
    kBroken,    // it ended, answered with something else than a line of JSON, or with too much
  };
  Outcome outcome = Outcome::kAnswered;
  std::string line;     // kAnswered: one JSON document, without the line feed
  std::string failure;  // otherwise: what happened, in one line
};

/// A fixed number of processes, started by the constructor, each with one request at a time. One
/// that times out, ends or answers out of turn is replaced by a fresh one. They run in process
/// groups of their own (Ctrl-C on the terminal does not reach them), inherit no descriptors, and
/// see the end of their input when this process ends, however it does.
///
/// No thread serves them: what a worker writes to standard error between two run()s waits in a pipe
/// of 64 KiB. An answer has to be printed at once: a second line that comes later, while the next
/// request is worked on, is taken for that one's answer. Use from one thread at a time.
class WorkerPool {
 public:
  /// Error if the program cannot be started.
  explicit WorkerPool(WorkerPoolOptions options);
  /// Kills the workers and all that they started within their process groups.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// One reply a request, in order. A request is a JSON document without line feeds. It is given to
  /// a fresh worker, once, if its worker ended before reading any of it; if that one does not take
  /// it either, the program cannot start: Error with the end of its standard error. No request is
  /// ever read by two workers.
  std::vector<WorkerReply> run(std::span<const std::string> requests);

 private:
  struct Worker;
  class Round;

  WorkerPoolOptions options_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace quads
