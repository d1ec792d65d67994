#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>

namespace quads {
namespace {

// Polls before sleeping: fork-join gaps are microseconds long, a futex wake-up costs as much as a
// small task. Kept short, so that a shared core is given back soon.
constexpr int kSpins = 2000;

template <class Condition>
bool spin_until(Condition condition) {
  for (int i = 0; i < kSpins; ++i) {
    if (condition()) return true;
    _mm_pause();
  }
  return condition();
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

ThreadPool::ThreadPool(int num_threads) {
  for (int worker = 1; worker < std::max(1, num_threads); ++worker) {
    threads_.emplace_back([this, worker] { worker_loop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int64_t num_tasks, TaskRef task) {
  if (threads_.empty() || num_tasks <= 1) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    task_ = &task;
    num_tasks_ = num_tasks;
    error_ = nullptr;
    next_task_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  work(0);
  if (!spin_until([this] { return busy_.load(std::memory_order_acquire) == 0; })) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_.load(std::memory_order_acquire) == 0; });
  }
  task_ = nullptr;
  if (error_) std::rethrow_exception(error_);
}

void ThreadPool::work(int worker) {
  try {
    for (;;) {
      const int64_t i = next_task_.fetch_add(1, std::memory_order_relaxed);
      if (i >= num_tasks_) return;
      (*task_)(i, worker);
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    next_task_.store(num_tasks_, std::memory_order_relaxed);
  }
}

void ThreadPool::worker_loop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    const auto changed = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(changed)) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, changed);
    }
    seen = generation_.load(std::memory_order_acquire);
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    work(worker);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::lock_guard lock(mutex_);
      done_.notify_one();
    }
  }
}

}  // namespace quads
