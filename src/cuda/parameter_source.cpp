#include "cuda/parameter_source.h"

#include <algorithm>

#include "kernels/cuda/fill_random.h"

namespace quads::cuda {
namespace {

// Of files: elements on their way to the device, and those that a thread reads.
constexpr int64_t kStaged = int64_t{8} << 20;
constexpr int64_t kPiece = int64_t{1} << 20;
constexpr int kReaders = 8;

std::string find_in(const Parameter& p, const Bf16* values, uint32_t limit) {
  for (int64_t i = 0; i < p.size(); ++i) {
    if ((values[i].bits & 0x7FFFU) > limit) return locate(p, i);
  }
  return "tensor " + p.name;
}

}  // namespace

void HostParameters::copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const {
  check_cuda(
      cudaMemcpyAsync(to, parameters_.values() + offset, static_cast<size_t>(count) * sizeof(Bf16),
                      cudaMemcpyHostToDevice, stream),
      "copying parameters to the device");
}

std::string HostParameters::find_bad(int64_t parameter, uint32_t limit) const {
  return find_in(layout().at(parameter), parameters_.of(parameter), limit);
}

FileParameters::FileParameters(const ParameterFiles& files)
    : files_(files),
      threads_(std::min(available_cores(), kReaders)),
      staging_{Staging{PinnedArray<Bf16>(kStaged)}, Staging{PinnedArray<Bf16>(kStaged)}} {
  for (Staging& staging : staging_) {
    check_cuda(cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming),
               "making an event");
  }
}

FileParameters::~FileParameters() {
  for (const Staging& staging : staging_) cudaEventDestroy(staging.copied);
}

void FileParameters::copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const {
  for (const int64_t end = offset + count; offset < end; offset += kStaged) {
    const Staging& staging = staging_[next_++ % staging_.size()];
    check_cuda(cudaEventSynchronize(staging.copied), "copying parameters to the device");
    const int64_t staged = std::min(kStaged, end - offset);
    threads_.run((staged + kPiece - 1) / kPiece, [&](int64_t piece, int) {
      const int64_t begin = piece * kPiece;
      files_.read(offset + begin, std::min(kPiece, staged - begin), staging.values.data() + begin);
    });
    check_cuda(
        cudaMemcpyAsync(to, staging.values.data(), static_cast<size_t>(staged) * sizeof(Bf16),
                        cudaMemcpyHostToDevice, stream),
        "copying parameters to the device");
    check_cuda(cudaEventRecord(staging.copied, stream), "recording an event");
    to += staged;
  }
}

std::string FileParameters::find_bad(int64_t parameter, uint32_t limit) const {
  const Parameter& p = layout().at(parameter);
  std::vector<Bf16> values(static_cast<size_t>(p.size()));
  files_.read(p.offset, p.size(), values.data());
  return find_in(p, values.data(), limit);
}

DeviceParameters::DeviceParameters(const ParameterSource& initial, cudaStream_t stream)
    : config_(initial.config()), layout_(config_), values_(layout_.total) {
  initial.copy(0, layout_.total, values_.data(), stream);
  check_cuda(cudaStreamSynchronize(stream), "copying parameters to the device");
}

void DeviceParameters::copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const {
  check_cuda(cudaMemcpyAsync(to, values_.data() + offset, static_cast<size_t>(count) * sizeof(Bf16),
                             cudaMemcpyDeviceToDevice, stream),
             "copying parameters on the device");
}

std::string DeviceParameters::find_bad(int64_t parameter, uint32_t limit) const {
  const Parameter& p = layout_.at(parameter);
  std::vector<Bf16> values(static_cast<size_t>(p.size()));
  check_cuda(cudaMemcpy(values.data(), values_.data() + p.offset, values.size() * sizeof(Bf16),
                        cudaMemcpyDeviceToHost),
             "copying parameters from the device");
  return find_in(p, values.data(), limit);
}

void DeviceParameters::download(Parameters& to, cudaStream_t stream) const {
  check_cuda(
      cudaMemcpyAsync(to.values(), values_.data(), values_.bytes(), cudaMemcpyDeviceToHost, stream),
      "copying parameters from the device");
  check_cuda(cudaStreamSynchronize(stream), "copying parameters from the device");
}

void RandomParameters::copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const {
  const kernels::cuda::CudaContext context = kernels::cuda::make_context(stream);
  // Parameters lie one after another; those that the range touches are filled one by one.
  for (const Parameter& p : layout_.parameters) {
    const int64_t begin = std::max(offset, p.offset);
    const int64_t end = std::min(offset + count, p.offset + p.padded_size());
    if (begin >= end) continue;
    kernels::cuda::fill_random(
        context, {.values = to + (begin - offset),
                  .count = end - begin,
                  .first = begin,
                  .valid = std::max<int64_t>(0, std::min(end, p.offset + p.size()) - begin),
                  .mean = p.vector ? p.initial : 0.0F,
                  .deviation = p.vector ? 0.0F : static_cast<float>(config_.initializer_range)});
  }
}

}  // namespace quads::cuda
