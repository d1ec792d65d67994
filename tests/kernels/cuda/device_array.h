// Memory on the device for tests, and the skip where there is none.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {

#define QUADS_NEEDS_DEVICE()                                      \
  do {                                                            \
    std::string reason;                                           \
    if (!quads::kernels::cuda::device_available(&reason)) {       \
      GTEST_SKIP() << "NOT TESTED: kernels on a GPU: " << reason; \
    }                                                             \
  } while (false)

/// Waits for all launched kernels; ends the program where they do not end, as a deadlock would hold
/// the device until somebody notices.
inline void finish(const char* what) {
  const auto start = std::chrono::steady_clock::now();
  cudaError_t state = cudaErrorNotReady;
  while ((state = cudaStreamQuery(nullptr)) == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(10)) {
      std::fprintf(stderr, "%s: has not ended after 10 s\n", what);
      std::_Exit(3);
    }
  }
  check_cuda(state, what);
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    check_cuda(cudaMalloc(&data_, bytes() == 0 ? 16 : bytes()), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    upload(values);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return static_cast<T*>(data_); }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }

  void fill_bytes(int byte) { check_cuda(cudaMemset(data_, byte, bytes()), "cudaMemset"); }
  void upload(const std::vector<T>& values) {
    check_cuda(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
               "copy to the device");
  }
  /// Elements from `at` on.
  void copy_from(const DeviceArray& other, size_t at) {
    check_cuda(cudaMemcpy(data() + at, other.data_, other.bytes(), cudaMemcpyDeviceToDevice),
               "copy on the device");
  }
  std::vector<T> download() const {
    std::vector<T> values(size_);
    check_cuda(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost),
               "copy from the device");
    return values;
  }

 private:
  size_t size_;
  void* data_ = nullptr;
};

}  // namespace quads::kernels::cuda
