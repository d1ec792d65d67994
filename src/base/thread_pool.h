// A fixed set of threads that run numbered tasks. Its size never changes a result: tasks are cut by
// shape alone and each writes what no other writes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quads {

/// Non-owning view of a callable `void(int64_t task, int worker)`.
class TaskRef {
 public:
  template <class F>
  TaskRef(F&& f)  // NOLINT: implicit by design, like std::function_ref
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, int64_t task, int worker) {
          (*static_cast<std::remove_reference_t<F>*>(object))(task, worker);
        }) {}
  void operator()(int64_t task, int worker) const { call_(object_, task, worker); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, int);
};

class ThreadPool {
 public:
  /// `num_threads` workers including the calling thread; at least 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  /// Runs tasks 0..num_tasks-1, each once, and returns when all are done. Tasks are handed out one
  /// at a time; `worker` is in [0, size()). The first exception of a task is rethrown here. Not
  /// reentrant: a task must not call run() on its own pool.
  void run(int64_t num_tasks, TaskRef task);

 private:
  void worker_loop(int worker);
  void work(int worker);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int64_t> next_task_{0};
  std::atomic<int> busy_{0};
  int64_t num_tasks_ = 0;
  const TaskRef* task_ = nullptr;
  std::exception_ptr error_;
  bool stop_ = false;
};

/// The number of cores this process may use (its affinity mask, not the machine's count).
int available_cores();

}  // namespace quads
