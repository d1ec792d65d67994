#include "bench/kernel_times.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "kernels/cuda/occupy.h"

namespace quads::bench {

using kernels::cuda::check_cuda;

namespace {

constexpr std::string_view kFirst = "embedding";
constexpr int64_t kHeadStart = 30'000;  // microseconds: longer than launching a step takes

}  // namespace

KernelTimes::~KernelTimes() {
  for (const Launch& launch : launches_) cudaEventDestroy(launch.before);
  for (cudaEvent_t event : unused_) cudaEventDestroy(event);
}

cudaEvent_t KernelTimes::record(kernels::cuda::Stream stream) {
  cudaEvent_t event = nullptr;
  if (unused_.empty()) {
    check_cuda(cudaEventCreate(&event), "making an event");
  } else {
    event = unused_.back();
    unused_.pop_back();
  }
  check_cuda(cudaEventRecord(event, stream), "recording an event");
  return event;
}

void KernelTimes::launching(const char* kernel, kernels::cuda::Stream stream) {
  stream_ = stream;
  if (kernel == kFirst) {
    for (const Launch& launch : launches_) unused_.push_back(launch.before);
    launches_.clear();
    kernels::cuda::CudaContext context;  // which nobody observes
    context.stream = stream;
    kernels::cuda::occupy(context, kHeadStart);
  }
  launches_.push_back({kernel, record(stream)});
}

std::vector<KernelTimes::Entry> KernelTimes::last_step() {
  launches_.push_back({"", record(stream_)});
  check_cuda(cudaStreamSynchronize(stream_), "timing a step");
  std::map<std::string, Entry> by_name;
  for (size_t i = 0; i + 1 < launches_.size(); ++i) {
    float milliseconds = 0.0F;
    check_cuda(cudaEventElapsedTime(&milliseconds, launches_[i].before, launches_[i + 1].before),
               "timing a kernel");
    Entry& entry = by_name[launches_[i].kernel];
    entry.kernel = launches_[i].kernel;
    ++entry.calls;
    entry.microseconds += milliseconds * 1e3;
  }
  std::vector<Entry> entries;
  entries.reserve(by_name.size());
  for (auto& [name, entry] : by_name) entries.push_back(std::move(entry));
  std::ranges::sort(entries, std::greater<>(), &Entry::microseconds);
  return entries;
}

}  // namespace quads::bench
