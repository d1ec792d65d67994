// Memory of the device, and of the host where copies do not wait.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/context.h"

namespace quads::cuda {

using kernels::cuda::check_cuda;

/// Bytes that the device arrays of this process hold. A count that nothing but tests reads: free
/// memory is the device's, and others take of it too.
inline std::atomic<int64_t> held_bytes{0};

/// `size` elements, uninitialised. Addresses never change. Error when the memory does not suffice.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(int64_t size) : size_(size) {
    if (size == 0) return;
    check_cuda(cudaMalloc(&data_, bytes()), "allocating device memory");
    held_bytes += static_cast<int64_t>(bytes());
  }
  ~DeviceArray() {
    if (data_ == nullptr) return;
    cudaFree(data_);
    held_bytes -= static_cast<int64_t>(bytes());
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() const { return static_cast<T*>(data_); }
  int64_t size() const { return size_; }
  size_t bytes() const { return static_cast<size_t>(size_) * sizeof(T); }
  void clear(cudaStream_t stream) const {
    if (size_ > 0) check_cuda(cudaMemsetAsync(data_, 0, bytes(), stream), "clearing memory");
  }
  /// The host's values must stay until the stream has copied them.
  void upload(const std::vector<T>& values, cudaStream_t stream) const {
    check_cuda(cudaMemcpyAsync(data_, values.data(), values.size() * sizeof(T),
                               cudaMemcpyHostToDevice, stream),
               "copying to the device");
  }

 private:
  void* data_ = nullptr;
  int64_t size_ = 0;
};

/// Page-locked memory of the host.
template <class T>
class PinnedArray {
 public:
  explicit PinnedArray(int64_t size) : size_(size) {
    check_cuda(cudaMallocHost(&data_, static_cast<size_t>(size) * sizeof(T)),
               "allocating page-locked memory");
  }
  ~PinnedArray() { cudaFreeHost(data_); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  T& operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  int64_t size_;
};

/// An array on both sides: one fills it, the other reads it. It grows with what is asked for.
template <class T>
class MirroredArray {
 public:
  MirroredArray() = default;
  explicit MirroredArray(int64_t size) { resize(size); }

  /// Room for `size` elements; what was there is lost when it grows.
  void resize(int64_t size) {
    size_ = size;
    if (host_ != nullptr && size <= host_->size()) return;
    const int64_t room = std::max<int64_t>(size + size / 4, 16);
    host_ = std::make_unique<PinnedArray<T>>(room);
    device_ = DeviceArray<T>(room);
  }
  int64_t size() const { return size_; }
  T* host() const { return host_->data(); }
  T* device() const { return device_.data(); }

  /// The first `count` elements; the host's must stay as they are until the stream has copied them.
  void upload(int64_t count, cudaStream_t stream) const {
    check_cuda(cudaMemcpyAsync(device(), host(), static_cast<size_t>(count) * sizeof(T),
                               cudaMemcpyHostToDevice, stream),
               "copying to the device");
  }
  void upload(cudaStream_t stream) const { upload(size_, stream); }
  void download(int64_t count, cudaStream_t stream) const {
    check_cuda(cudaMemcpyAsync(host(), device(), static_cast<size_t>(count) * sizeof(T),
                               cudaMemcpyDeviceToHost, stream),
               "copying from the device");
  }
  void download(cudaStream_t stream) const { download(size_, stream); }

 private:
  int64_t size_ = 0;
  std::unique_ptr<PinnedArray<T>> host_;
  DeviceArray<T> device_;
};

class Stream {
 public:
  Stream() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void wait(const char* what) const { check_cuda(cudaStreamSynchronize(stream_), what); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace quads::cuda
