#include "cuda/cuda_optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace quads::cuda {

namespace k = kernels::cuda;

CudaOptimizer::CudaOptimizer(cudaStream_t stream, DeviceParameters& parameters,
                             const AdamwOptions& options)
    : context_(k::make_context(stream)),
      parameters_(parameters),
      options_(options),
      master_(parameters.layout().total),
      m_(parameters.layout().total),
      v_(parameters.layout().total),
      grads_(parameters.layout().total),
      squares_(k::square_chunks(parameters.layout().total)),
      host_squares_(static_cast<size_t>(squares_.size())) {
  std::vector<k::AdamwRange> ranges;
  for (const Parameter& p : parameters.layout().parameters) {
    for (int64_t at = 0; at < p.size(); at += k::kAdamwRange) {
      ranges.push_back({.begin = p.offset + at,
                        .count = static_cast<int32_t>(std::min(k::kAdamwRange, p.size() - at)),
                        .decay = p.vector ? 0 : 1});
    }
  }
  ranges_ = DeviceArray<k::AdamwRange>(std::ssize(ranges));
  ranges_.upload(ranges, stream);
  k::widen_values(context_, parameters.values(), master_.size(), master_.data());
  for (const auto array : {&m_, &v_, &grads_}) array->clear(stream);
  check_cuda(cudaStreamSynchronize(stream), "making an optimizer");
}

Optimizer::Result CudaOptimizer::step(float lr, float grad_scale) {
  k::sum_squares(context_, grads_.data(), grads_.size(), squares_.data());
  check_cuda(cudaMemcpyAsync(host_squares_.data(), squares_.data(), squares_.bytes(),
                             cudaMemcpyDeviceToHost, context_.stream),
             "copying from the device");
  check_cuda(cudaStreamSynchronize(context_.stream), "summing squares of gradients");
  double sum = 0.0;
  for (const double s : host_squares_) sum += s;
  const double norm = std::sqrt(sum) * grad_scale;
  const bool applied = std::isfinite(norm);
  if (applied) {
    ++updates_;
    k::adamw(context_, {.params = adamw_params(options_, updates_, lr, grad_scale, norm),
                        .bf16_masters = options_.bf16_masters,
                        .ranges = ranges_.data(),
                        .range_count = ranges_.size(),
                        .grads = grads_.data(),
                        .master = master_.data(),
                        .m = m_.data(),
                        .v = v_.data(),
                        .values = parameters_.values()});
  }
  grads_.clear(context_.stream);
  return {norm, applied};
}

const DeviceArray<float>& CudaOptimizer::array(State which) const {
  return which == State::kMaster ? master_ : which == State::kFirstMoment ? m_ : v_;
}

std::span<const float> CudaOptimizer::state(State which) {
  const DeviceArray<float>& from = array(which);
  host_state_.resize(static_cast<size_t>(from.size()));
  check_cuda(cudaMemcpyAsync(host_state_.data(), from.data(), from.bytes(), cudaMemcpyDeviceToHost,
                             context_.stream),
             "copying an optimizer's state from the device");
  check_cuda(cudaStreamSynchronize(context_.stream), "reading an optimizer's state");
  return host_state_;
}

void CudaOptimizer::set_state(State which, std::span<const float> values) {
  const DeviceArray<float>& to = array(which);
  require(std::ssize(values) == to.size(), "the optimizer has a state of {} values, given {}",
          to.size(), values.size());
  check_cuda(cudaMemcpyAsync(to.data(), values.data(), to.bytes(), cudaMemcpyHostToDevice,
                             context_.stream),
             "copying an optimizer's state to the device");
  check_cuda(cudaStreamSynchronize(context_.stream), "setting an optimizer's state");
}

void CudaOptimizer::publish() {
  k::round_masters(context_, master_.data(), master_.size(), parameters_.values());
  check_cuda(cudaStreamSynchronize(context_.stream), "rounding masters");
}

}  // namespace quads::cuda
