// The device and the stream that CUDA kernels are launched on. Launching neither synchronises nor
// allocates, so a captured graph may hold any of it.
#pragma once

#include <string>

struct CUstream_st;

namespace quads::kernels::cuda {

using Stream = CUstream_st*;

/// Told of every kernel before it is launched: for profiles.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;
  virtual void launching(const char* kernel, Stream stream) = 0;
};

struct CudaContext {
  Stream stream = nullptr;
  LaunchObserver* observer = nullptr;
  /// Kernels start while the previous one of the stream ends, and wait before they read what it
  /// wrote (programmatic dependent launch). What else they read early (weights, scales, expert
  /// offsets, block positions, and what a kernel's header names) must then be complete before the
  /// previous kernel is launched.
  bool overlap = false;
  int multiprocessors = 0;
  int shared_bytes = 0;  // that one block may use
  int capability = 0;    // 90 for sm_90
};

/// Makes a device the calling thread's current one.
void use_device(int index);

/// The current device's properties. Error without a device.
CudaContext make_context(Stream stream);

/// Whether there is a device; why not, if not.
bool device_available(std::string* reason);

/// Error naming `what` unless `code` (cudaError_t) is success.
void check_cuda(int code, const char* what);

}  // namespace quads::kernels::cuda
