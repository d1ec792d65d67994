// Where a CPU block runs: the kernels of an instruction set, the threads and their scratch memory.
#pragma once

#include <memory>

#include "base/arena.h"
#include "base/thread_pool.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/isa.h"

namespace quads::kernels {

/// Passed by value to every block. Serial contexts let each thread run whole blocks on rows of its
/// own; parallel ones spread one block over all threads. The results are the same bits.
class CpuContext {
 public:
  CpuContext(const CpuKernels& kernels, ThreadPool* pool, Arena* arenas, int first_worker)
      : kernels_(&kernels), pool_(pool), arenas_(arenas), first_worker_(first_worker) {}

  const GemmKernels& gemm() const { return kernels_->gemm; }
  const RowKernels& rows() const { return kernels_->rows; }
  const AttentionKernels& attention() const { return kernels_->attention; }
  Isa isa() const { return kernels_->isa; }

  int workers() const { return pool_ ? pool_->size() : 1; }
  /// Scratch of worker `w` of this context.
  Arena& arena(int w = 0) const { return arenas_[first_worker_ + w]; }
  /// Index of worker `w` among all workers of the runtime: which per-worker accumulator it uses.
  int global_worker(int w) const { return first_worker_ + w; }
  /// A context in which worker `w` runs alone.
  CpuContext serial(int w) const { return {*kernels_, nullptr, arenas_, first_worker_ + w}; }

  /// Runs fn(task, worker) for every task, with denormals flushed.
  template <class F>
  void parallel_for(int64_t num_tasks, F&& fn) const {
    const auto body = [&](int64_t task, int worker) {
      const FlushDenormals flush;
      fn(task, worker);
    };
    if (pool_) {
      pool_->run(num_tasks, body);
    } else {
      for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
    }
  }

 private:
  const CpuKernels* kernels_;
  ThreadPool* pool_;
  Arena* arenas_;
  int first_worker_;
};

/// Owns what contexts point to. One an engine or trainer; nothing in it is process-wide.
class CpuRuntime {
 public:
  CpuRuntime(Isa isa, int num_threads)
      : kernels_(cpu_kernels(isa)),
        pool_(num_threads),
        arenas_(std::make_unique<Arena[]>(static_cast<size_t>(pool_.size()))) {}

  CpuContext context() { return {kernels_, &pool_, arenas_.get(), 0}; }
  int num_threads() const { return pool_.size(); }

 private:
  const CpuKernels& kernels_;
  ThreadPool pool_;
  std::unique_ptr<Arena[]> arenas_;
};

}  // namespace quads::kernels
