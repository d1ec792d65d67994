// Launching a kernel on a context.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {

/// Where the blocks of a cluster go: as the driver likes, or each to a multiprocessor of its own.
enum class Clusters : uint8_t { kAnywhere, kSpread };

template <Clusters clusters = Clusters::kAnywhere, class Kernel, class... Args>
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
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (context.overlap) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if constexpr (clusters == Clusters::kSpread) {
    cudaLaunchAttribute& spread = attributes[config.numAttrs++];
    spread.id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
    spread.val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
  }
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
