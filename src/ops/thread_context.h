// How operators on tensors run the kernels: each of ATen's threads by itself.
#pragma once

#include "kernels/cpu/context.h"

namespace quads::ops {

/// A serial context of the calling thread with the machine's fastest kernels. An operator is a
/// function of tensors and has no handle to be passed, so the scratch memory is thread-local; the
/// threads themselves are ATen's (at::parallel_for).
inline kernels::CpuContext thread_context() {
  static const kernels::CpuKernels& best = kernels::cpu_kernels(kernels::best_isa());
  thread_local Arena arena;
  return {best, nullptr, &arena, 0};
}

}  // namespace quads::ops
