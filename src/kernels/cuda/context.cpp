// Properties of the current device, and errors of the CUDA runtime.
#include "kernels/cuda/context.h"

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace quads::kernels::cuda {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device), "reading a device attribute");
  return value;
}

}  // namespace

void check_cuda(int code, const char* what) {
  const auto error = static_cast<cudaError_t>(code);
  if (error == cudaSuccess) return;
  fail("CUDA: {}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

void use_device(int index) { check_cuda(cudaSetDevice(index), "choosing a device"); }

CudaContext make_context(Stream stream) {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "finding a device");
  CudaContext context;
  context.stream = stream;
  context.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
  context.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  context.capability = attribute(cudaDevAttrComputeCapabilityMajor, device) * 10 +
                       attribute(cudaDevAttrComputeCapabilityMinor, device);
  return context;
}

bool device_available(std::string* reason) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    *reason = "there is no NVIDIA driver, or it is too old for this CUDA runtime";
  } else if (error != cudaSuccess) {
    *reason = cudaGetErrorString(error);
  }
  if (error == cudaSuccess && count == 0) *reason = "no CUDA device";
  return error == cudaSuccess && count > 0;
}

}  // namespace quads::kernels::cuda
