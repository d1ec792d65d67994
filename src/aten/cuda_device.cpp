#include "aten/cuda_device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <limits>

#include "aten/packed_attention.h"
#include "base/error.h"

namespace quads {
namespace {

// Views of the operands' values. Norms and biases become FP32 when they are asked for.
class CudaWeights : public WeightSource {
 public:
  CudaWeights(const DeviceOperands& operands, at::Device device)
      : operands_(operands), options_(at::TensorOptions().dtype(at::kBFloat16).device(device)) {}

  at::Tensor of(int64_t parameter) const override {
    const Parameter& p = operands_.layout().at(parameter);
    if (p.vector) return view(parameter, {p.size()}, {1}).to(at::kFloat);
    return view(parameter, {p.rows, p.cols}, {p.cols, 1});
  }
  at::Tensor of(std::span<const int64_t> experts) const override {
    const Parameter& p = operands_.layout().at(experts[0]);
    const int64_t stride = experts.size() > 1
                               ? operands_.weight(experts[1]) - operands_.weight(experts[0])
                               : p.padded_size();
    return view(experts[0], {std::ssize(experts), p.rows, p.cols}, {stride, p.cols, 1});
  }

 private:
  at::Tensor view(int64_t parameter, at::IntArrayRef sizes, at::IntArrayRef strides) const {
    return at::from_blob(const_cast<Bf16*>(operands_.weight(parameter)), sizes, strides, options_);
  }

  const DeviceOperands& operands_;
  at::TensorOptions options_;
};

class AtenCuda : public AtenDevice {
 public:
  explicit AtenCuda(const DeviceOperands& operands);
  /// Gives ATen's memory back to who comes next.
  ~AtenCuda() override;

  const QuantisedSites& sites() const override { return operands_.sites(); }
  const ParameterLayout& layout() const override { return operands_.layout(); }
  const WeightSource& weights() const override { return weights_; }
  void refresh() override {}  // weights are views

  void run(int64_t count, const std::function<void(int64_t)>& compute,
           const std::function<void(int64_t)>& finish) const override;
  void take(const RowBatch& batch) override;
  int64_t part_rows() const override { return std::numeric_limits<int64_t>::max(); }
  int64_t logits() const override { return int64_t{1} << 26; }

  at::Tensor empty(int64_t elements) const override { return at::empty({elements}, floats()); }
  at::Tensor wrap(const float* x, at::IntArrayRef sizes) const override {
    return at::from_blob(const_cast<float*>(x), sizes, floats());
  }
  at::Tensor wrap(float* x, at::IntArrayRef sizes, at::IntArrayRef strides) const override {
    return at::from_blob(x, sizes, strides, floats());
  }
  at::Tensor upload(const float* x, int64_t n) const override {
    return on_device(at::from_blob(const_cast<float*>(x), {n}, at::kFloat));
  }
  at::Tensor upload(const int64_t* x, int64_t n) const override {
    return on_device(at::from_blob(const_cast<int64_t*>(x), {n}, at::kLong));
  }
  at::Tensor upload(const int32_t* x, int64_t n) const override {
    return on_device(at::from_blob(const_cast<int32_t*>(x), {n}, at::kInt)).to(at::kLong);
  }

  at::Tensor linear(const at::Tensor& x, const at::Tensor& w) const override {
    return at::linear(x, w);
  }
  at::Tensor fake_quantize(const at::Tensor& x, Format format, std::string_view) const override {
    at::Tensor values = at::empty_like(x);
    operands_.fake_quantise(static_cast<const Bf16*>(x.const_data_ptr()), x.size(0), x.size(1),
                            format, static_cast<Bf16*>(values.mutable_data_ptr()));
    return values;
  }
  // BF16 between the two: FP32 tensors of this size would take longer than the products.
  at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) const override {
    return at::silu(gate) * up;
  }
  std::pair<at::Tensor, at::Tensor> angles(const SequenceRows&) const override {
    return {cos_, sin_};
  }
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const SequenceRows&, float scale) const override {
    return packed_attention(q, k, v, sequences_, scale);
  }
  at::Tensor replayed(const SequenceRows& part, int64_t top_k) const override {
    return upload(part.replay_routing, part.rows * top_k).view({part.rows, top_k});
  }
  at::Tensor multiply_experts(const at::Tensor& x, const at::Tensor& ends,
                              std::span<const int64_t> parameters,
                              const WeightSource& weight) const override {
    return at::_grouped_mm(x, weight.of(parameters).transpose(1, 2), ends);
  }
  void add_rows(const at::Tensor& sums, const at::Tensor& index,
                const at::Tensor& rows) const override {
    // On a GPU this sorts the indices and adds in order.
    sums.index_put_({index}, rows, /*accumulate=*/true);
  }

 private:
  at::TensorOptions floats() const { return at::TensorOptions().dtype(at::kFloat).device(device_); }
  at::Tensor on_device(const at::Tensor& x) const { return x.to(device_); }

  const DeviceOperands& operands_;
  at::Device device_;
  c10::cuda::CUDAStream stream_;
  CudaWeights weights_;
  // Of the batch.
  at::Tensor cos_, sin_;
  PackedSequences sequences_;
};

at::Device current_device() { return {at::kCUDA, c10::cuda::current_device()}; }

AtenCuda::~AtenCuda() {
  try {
    c10::cuda::CUDACachingAllocator::emptyCache();
  } catch (const c10::Error&) {  // the device has failed, which who uses it next is told
  }
}

AtenCuda::AtenCuda(const DeviceOperands& operands)
    : operands_(operands),
      device_(current_device()),
      stream_(c10::cuda::getStreamFromExternal(operands.stream(), device_.index())),
      weights_(operands, device_) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  allocator::init(c10::cuda::device_count());
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const double share = static_cast<double>(operands.memory()) / static_cast<double>(total);
  allocator::setMemoryFraction(std::min(share, 1.0), device_.index());
}

void AtenCuda::run(int64_t count, const std::function<void(int64_t)>& compute,
                   const std::function<void(int64_t)>& finish) const {
  const c10::cuda::CUDAStreamGuard guard(stream_);
  try {
    for (int64_t i = 0; i < count; ++i) {
      compute(i);
      finish(i);
    }
  } catch (const c10::OutOfMemoryError&) {
    fail(
        "ATen's kernels need more than the {:.2f} GiB of the device that are planned for them: "
        "give a smaller --max-tokens-per-batch",
        static_cast<double>(operands_.memory()) / 0x1p30);
  }
}

void AtenCuda::take(const RowBatch& batch) {
  std::vector<int32_t> offsets = {0};
  int64_t longest = 0;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t rows = batch.cu_seqlens[s + 1] - batch.cu_seqlens[s];
    if (rows > 0) offsets.push_back(static_cast<int32_t>(batch.cu_seqlens[s + 1]));
    longest = std::max(longest, rows);
  }
  require(longest <= operands_.max_positions(),
          "a sequence of {} tokens: the model on the GPU was made for {}", longest,
          operands_.max_positions());
  sequences_ = {on_device(at::from_blob(offsets.data(), {std::ssize(offsets)}, at::kInt)), longest};
  const at::Tensor positions = upload(batch.attention.positions, batch.rows);
  const int64_t half = sites().config.head_dim / 2;
  const auto table = [&](const float* values) {
    return wrap(values, {operands_.max_positions(), half}).index_select(0, positions).unsqueeze(1);
  };
  cos_ = table(operands_.cos());
  sin_ = table(operands_.sin());
}

}  // namespace

std::unique_ptr<AtenDevice> make_aten_cuda(const DeviceOperands& operands) {
  return std::make_unique<AtenCuda>(operands);
}

}  // namespace quads
