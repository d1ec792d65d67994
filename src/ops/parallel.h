// Numbered tasks on ATen's threads, each with kernels and scratch memory of its own.
#pragma once

#include <ATen/Parallel.h>

#include "ops/thread_context.h"

namespace quads::ops {

/// Runs fn(context, task) for every task, denormals flushed; results must not depend on which
/// thread runs what. An exception of a task is rethrown.
template <class F>
void parallel_tasks(int64_t num_tasks, F&& fn) {
  at::parallel_for(0, num_tasks, 1, [&](int64_t begin, int64_t end) {
    const kernels::FlushDenormals flush;
    const kernels::CpuContext context = thread_context();
    for (int64_t task = begin; task < end; ++task) fn(context, task);
  });
}

/// The same on blocks of at most `block` of `rows` rows: fn(context, begin, count).
template <class F>
void parallel_rows(int64_t rows, int64_t block, F&& fn) {
  parallel_tasks((rows + block - 1) / block, [&](const kernels::CpuContext& context, int64_t task) {
    fn(context, task * block, std::min(block, rows - task * block));
  });
}

}  // namespace quads::ops
