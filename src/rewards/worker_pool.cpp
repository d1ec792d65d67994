#include "rewards/worker_pool.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "io/json.h"
#include "rewards/piped_process.h"
#include "rewards/reward.h"

namespace quads {
namespace {

using Clock = std::chrono::steady_clock;

// Whether a request has been taken is asked for, not told: how often.
constexpr std::chrono::milliseconds kTakenInterval{10};
constexpr std::chrono::milliseconds kCancelInterval{100};
// For a process that closed its output to end, so that its status can be told.
constexpr int kEndMs = 500;

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

}  // namespace

struct WorkerPool::Worker {
  explicit Worker(const std::vector<std::string>& command) : process(command) {}

  /// Whether a byte of the message has left the pipe.
  bool has_read() const { return process.unread_input() < written; }

  PipedProcess process;
  std::string output;
  // The request that it has.
  bool busy = false;
  size_t request = 0;
  std::string message;
  size_t written = 0;
  bool taken = false;
  Clock::time_point deadline;
};

/// One run().
class WorkerPool::Round {
 public:
  Round(WorkerPool& pool, std::span<const std::string> requests)
      : options_(pool.options_),
        workers_(pool.workers_),
        requests_(requests),
        replies_(requests.size()),
        retried_(requests.size(), false) {
    for (size_t i = 0; i < requests.size(); ++i) waiting_.push_back(i);
  }
  /// Nobody waits for what is still being worked on (after an error).
  ~Round() {
    for (auto& worker : workers_) {
      if (worker && worker->busy) worker.reset();
    }
  }
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  std::vector<WorkerReply> run() {
    while (true) {
      if (options_.cancel != nullptr && *options_.cancel) {
        throw Interrupted("scoring was interrupted");
      }
      for (auto& worker : workers_) {
        if (!waiting_.empty() && !(worker && worker->busy)) dispatch(worker);
      }
      if (std::none_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return worker && worker->busy; })) {
        return std::move(replies_);
      }
      wait();
      for (auto& worker : workers_) {
        if (worker && worker->busy) advance(worker);
      }
    }
  }

 private:
  void dispatch(std::unique_ptr<Worker>& worker) {
    if (worker) {
      // It may have ended since its last answer, or said more than that.
      worker->process.read_error_output();
      worker->process.read_output(worker->output, 1);
      if (worker->process.output() < 0 || !worker->output.empty()) worker.reset();
    }
    if (!worker) worker = std::make_unique<Worker>(options_.command);
    worker->busy = true;
    worker->request = waiting_.front();
    waiting_.pop_front();
    worker->message = requests_[worker->request] + '\n';
    worker->written = worker->process.write(worker->message);
    worker->taken = false;
    worker->deadline = Clock::now() + seconds(options_.start_s);
  }

  void wait() {
    polled_.clear();
    auto wake = Clock::time_point::max();
    const auto now = Clock::now();
    if (options_.cancel != nullptr) wake = now + kCancelInterval;
    for (const auto& worker : workers_) {
      if (!worker || !worker->busy) continue;
      const PipedProcess& process = worker->process;
      polled_.push_back({.fd = process.output(), .events = POLLIN, .revents = 0});
      polled_.push_back({.fd = process.error_output(), .events = POLLIN, .revents = 0});
      if (worker->written < worker->message.size()) {
        polled_.push_back({.fd = process.input(), .events = POLLOUT, .revents = 0});
      }
      wake = std::min(wake, worker->taken ? worker->deadline
                                          : std::min(worker->deadline, now + kTakenInterval));
    }
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wake - now).count();
    const int timeout = static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
    require(poll(polled_.data(), polled_.size(), timeout) >= 0 || errno == EINTR,
            "workers cannot be waited for: {}", std::strerror(errno));
  }

  void advance(std::unique_ptr<Worker>& worker) {
    PipedProcess& process = worker->process;
    bool refused = false;
    if (worker->written < worker->message.size()) {
      pollfd input = {.fd = process.input(), .events = POLLOUT, .revents = 0};
      poll(&input, 1, 0);
      refused = (input.revents & POLLERR) != 0;
      worker->written += process.write(std::string_view(worker->message).substr(worker->written));
    }
    process.read_error_output();
    process.read_output(worker->output, options_.max_reply_bytes + 1);
    if (!worker->taken && worker->has_read()) {
      worker->taken = true;
      worker->deadline = Clock::now() + seconds(options_.request_s);
    }
    const size_t end = worker->output.find('\n');
    if (!worker->taken) {
      if (!worker->output.empty()) {
        give_up_untaken(worker, fmt::format("printed {} before it read its first request",
                                            json_excerpt(Json(printable(worker->output)))));
      } else if (process.output() < 0 || refused) {
        give_up_untaken(worker, process.end(kEndMs));
      } else if (Clock::now() >= worker->deadline) {
        give_up_untaken(worker, fmt::format("had read no request after {} s", options_.start_s));
      }
    } else if (end != std::string::npos) {
      answer(worker, end);
    } else if (worker->output.size() > options_.max_reply_bytes) {
      break_off(worker, WorkerReply::Outcome::kBroken,
                fmt::format("printed more than {} bytes", options_.max_reply_bytes));
    } else if (process.output() < 0 || refused) {
      break_off(worker, WorkerReply::Outcome::kBroken, process.end(kEndMs));
    } else if (Clock::now() >= worker->deadline) {
      break_off(worker, WorkerReply::Outcome::kTimedOut,
                fmt::format("did not answer within {} s", options_.request_s));
    }
  }

  void answer(std::unique_ptr<Worker>& worker, size_t end) {
    std::string line = worker->output.substr(0, end);
    if (!Json::accept(line)) {
      break_off(worker, WorkerReply::Outcome::kBroken,
                fmt::format("answered {}, which is not JSON", json_excerpt(Json(printable(line)))));
      return;
    }
    replies_[worker->request].line = std::move(line);
    worker->busy = false;
    if (worker->output.size() > end + 1) {
      worker.reset();  // more than one line: the next answer could not be told from it
    } else {
      worker->output.clear();
    }
  }

  void break_off(std::unique_ptr<Worker>& worker, WorkerReply::Outcome outcome,
                 const std::string& what) {
    WorkerReply& reply = replies_[worker->request];
    reply.outcome = outcome;
    reply.failure = message(*worker, what);
    worker.reset();
  }

  void give_up_untaken(std::unique_ptr<Worker>& worker, const std::string& what) {
    const size_t request = worker->request;
    require(!retried_[request], "{}; {}", message(*worker, what), options_.remedy);
    retried_[request] = true;
    waiting_.push_front(request);
    worker.reset();
  }

  std::string message(Worker& worker, const std::string& what) const {
    worker.process.end(0);  // all that it wrote
    const std::string tail = worker.process.error_tail();
    const std::string name =
        options_.name.empty() ? fmt::format("{}", fmt::join(options_.command, " ")) : options_.name;
    return fmt::format("worker `{}` {}{}{}", printable(name), what,
                       tail.empty() ? "" : "; its standard error ends: ", tail);
  }

  /// For a message: its start, with bytes outside ASCII, not all of which need be characters, as
  /// '?'.
  static std::string printable(std::string_view text) {
    std::string result(text.substr(0, 100));
    std::replace_if(
        result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return result;
  }

  const WorkerPoolOptions& options_;
  std::vector<std::unique_ptr<Worker>>& workers_;
  std::span<const std::string> requests_;
  std::vector<WorkerReply> replies_;
  std::vector<bool> retried_;
  std::deque<size_t> waiting_;
  std::vector<pollfd> polled_;
};

WorkerPool::WorkerPool(WorkerPoolOptions options) : options_(std::move(options)) {
  require(options_.workers >= 1, "{} workers, but at least 1 is needed", options_.workers);
  for (const double limit : {options_.start_s, options_.request_s}) {
    require(limit > 0 && limit < 1e6, "a worker's time limit of {} s is not in (0, 1e6)", limit);
  }
  for (int i = 0; i < options_.workers; ++i) {
    workers_.push_back(std::make_unique<Worker>(options_.command));
  }
}

WorkerPool::~WorkerPool() = default;

std::vector<WorkerReply> WorkerPool::run(std::span<const std::string> requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    require(requests[i].find('\n') == std::string::npos, "request {} has a line feed in it", i);
  }
  return Round(*this, requests).run();
}

}  // namespace quads
