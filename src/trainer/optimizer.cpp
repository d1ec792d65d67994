#include "trainer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace quads {
namespace {
constexpr int64_t kChunk = int64_t{1} << 15;  // elements of a task
int64_t chunks_of(int64_t n) { return (n + kChunk - 1) / kChunk; }
}  // namespace

void check(const AdamwOptions& options) {
  const auto in = [](bool is, const char* option, float value, const char* range) {
    require(is, "{} is {}, expected {}", option, value, range);
  };
  const auto is_share = [](float value) { return value >= 0 && value < 1; };
  const auto is_amount = [](float value) { return value >= 0 && std::isfinite(value); };
  in(is_share(options.beta1), "--adam-beta1", options.beta1, "one in [0, 1)");
  in(is_share(options.beta2), "--adam-beta2", options.beta2, "one in [0, 1)");
  in(is_amount(options.eps) && options.eps > 0, "--adam-eps", options.eps,
     "a finite value above 0");
  in(is_amount(options.weight_decay), "--weight-decay", options.weight_decay,
     "a finite value of at least 0");
  in(is_amount(options.max_grad_norm), "--clip-grad", options.max_grad_norm,
     "a finite value of at least 0");
}

kernels::AdamwParams adamw_params(const AdamwOptions& options, int64_t updates, float lr,
                                  float grad_scale, double norm) {
  double scale = grad_scale;
  if (options.max_grad_norm > 0 && norm > options.max_grad_norm) {
    scale *= options.max_grad_norm / norm;
  }
  const auto t = static_cast<double>(updates);
  kernels::AdamwParams params{};
  params.lr = lr;
  params.beta1 = options.beta1;
  params.beta2 = options.beta2;
  params.eps = options.eps;
  params.weight_decay = options.weight_decay;
  params.grad_scale = static_cast<float>(scale);
  params.bias_correction1 = static_cast<float>(1.0 - std::pow(double{options.beta1}, t));
  params.bias_correction2 = static_cast<float>(1.0 - std::pow(double{options.beta2}, t));
  return params;
}

CpuOptimizer::CpuOptimizer(const kernels::CpuContext& context, Parameters& parameters,
                           const AdamwOptions& options)
    : context_(context),
      parameters_(parameters),
      options_(options),
      master_(parameters.layout().total),
      m_(parameters.layout().total),
      v_(parameters.layout().total),
      grads_(parameters.layout().total) {
  for (int64_t i = 0; i < master_.size(); ++i) master_[i] = to_float(parameters.values()[i]);
}

void CpuOptimizer::clear_grads() {
  context_.parallel_for(chunks_of(grads_.size()), [&](int64_t c, int) {
    const int64_t begin = c * kChunk;
    std::fill_n(grads_.data() + begin, std::min(kChunk, grads_.size() - begin), 0.0F);
  });
}

Optimizer::Result CpuOptimizer::step(float lr, float grad_scale) {
  // The norm: a fixed cut into chunks, summed in order.
  std::vector<double> squares(static_cast<size_t>(chunks_of(grads_.size())));
  context_.parallel_for(std::ssize(squares), [&](int64_t c, int) {
    const int64_t begin = c * kChunk;
    squares[static_cast<size_t>(c)] = context_.rows().sum_of_squares(
        grads_.data() + begin, std::min(kChunk, grads_.size() - begin));
  });
  double sum = 0.0;
  for (double s : squares) sum += s;
  const double norm = std::sqrt(sum) * grad_scale;
  if (!std::isfinite(norm)) {
    clear_grads();
    return {norm, false};
  }
  ++updates_;
  const kernels::AdamwParams params = adamw_params(options_, updates_, lr, grad_scale, norm);

  struct Task {
    int64_t begin, count;
    bool decay;
  };
  std::vector<Task> tasks;
  for (const Parameter& p : parameters_.layout().parameters) {
    for (int64_t b = 0; b < p.size(); b += kChunk) {
      tasks.push_back({p.offset + b, std::min(kChunk, p.size() - b), !p.vector});
    }
  }
  context_.parallel_for(std::ssize(tasks), [&](int64_t i, int) {
    const Task& task = tasks[static_cast<size_t>(i)];
    kernels::AdamwParams local = params;
    if (!task.decay) local.weight_decay = 0.0F;
    const int64_t at = task.begin;
    Bf16* values = parameters_.values() + at;
    context_.rows().adamw(task.count, local, grads_.data() + at, master_.data() + at,
                          m_.data() + at, v_.data() + at, values);
    if (options_.bf16_masters) {
      for (int64_t j = 0; j < task.count; ++j) master_[at + j] = to_float(values[j]);
    }
  });
  clear_grads();
  return {norm, true};
}

AlignedBuffer<float>& CpuOptimizer::array(State which) {
  return which == State::kMaster ? master_ : which == State::kFirstMoment ? m_ : v_;
}

std::span<const float> CpuOptimizer::state(State which) { return array(which).span(); }

void CpuOptimizer::set_state(State which, std::span<const float> values) {
  std::ranges::copy(values, array(which).data());
}

void CpuOptimizer::publish() {
  for (int64_t i = 0; i < master_.size(); ++i) parameters_.values()[i] = to_bf16(master_[i]);
}

}  // namespace quads
