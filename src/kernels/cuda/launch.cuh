// Launching a kernel on a context.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {

template <class Kernel, class... Args>
void launch(const CudaContext& context, const char* name, Kernel* kernel, dim3 blocks, int threads,
            int shared_bytes, const Args&... args) {
  constexpr int kAlwaysAllowed = 32 * 1024;  // of 48 KiB, which static shared memory shares
  if (shared_bytes > kAlwaysAllowed) {
    check_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        name);
  }
  if (context.observer != nullptr) context.observer->launching(name, context.stream);
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = context.overlap ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), name);
}

/// Lets the next kernel of the stream start; only after what came before this one is complete, so
/// that one kernel's wait covers all kernels before the previous one.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;");
}

}  // namespace quads::kernels::cuda
