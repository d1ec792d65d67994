#include "aten/cpu_device.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include <algorithm>

#include "base/error.h"
#include "ops/fake_quantize.h"
#include "ops/matmul.h"
#include "ops/packed_weight.h"

namespace quads {
namespace {

// Where each row of packed sequences goes in [sequences, longest].
struct Padding {
  int64_t sequences, longest = 0;
  at::Tensor slots = {};  // [rows]
};

Padding pad_sequences(const SequenceRows& rows) {
  Padding padding{.sequences = std::ssize(rows.cu_seqlens) - 1};
  const auto begin = [&](int64_t s) { return rows.cu_seqlens[static_cast<size_t>(s)]; };
  for (int64_t s = 0; s < padding.sequences; ++s) {
    padding.longest = std::max(padding.longest, begin(s + 1) - begin(s));
  }
  padding.slots = at::empty({rows.rows}, at::kLong);
  auto* slot = padding.slots.mutable_data_ptr<int64_t>();
  for (int64_t s = 0; s < padding.sequences; ++s) {
    for (int64_t r = begin(s); r < begin(s + 1); ++r) {
      slot[r - rows.begin] = s * padding.longest + r - begin(s);
    }
  }
  return padding;
}

// A copy of a packed model's values, one tensor a parameter: matrices in ops::matmul_dtype() of
// their size.
class CpuWeights : public WeightSource {
 public:
  explicit CpuWeights(const PackedModel& model) : model_(model) {}
  void refresh(const kernels::CpuContext& context);
  at::Tensor of(int64_t parameter) const override {
    return tensors_[static_cast<size_t>(parameter)];
  }
  at::Tensor of(std::span<const int64_t>) const override {
    fail("experts are multiplied one by one on a CPU");
  }

 private:
  const PackedModel& model_;
  std::vector<at::Tensor> tensors_;
};

void CpuWeights::refresh(const kernels::CpuContext& context) {
  const ParameterLayout& layout = model_.parameters().layout();
  std::vector<const kernels::PackedMatrix*> packed(layout.parameters.size(), nullptr);
  const auto set = [&](int64_t parameter, const kernels::PackedMatrix& matrix) {
    packed[static_cast<size_t>(parameter)] = &matrix;
  };
  for (int64_t l = 0; l < model_.num_layers(); ++l) {
    const ParameterLayout::Layer& at = layout.layers[static_cast<size_t>(l)];
    set(at.qkv, model_.attention(l).qkv.weight);
    set(at.o, model_.attention(l).out.weight);
    for (size_t e = 0; e < at.gate_up.size(); ++e) {
      set(at.gate_up[e], model_.ffn(l).gate_up[e]);
      set(at.down[e], model_.ffn(l).down[e]);
    }
  }
  tensors_.resize(layout.parameters.size());
  context.parallel_for(std::ssize(tensors_), [&](int64_t task, int) {
    const auto i = static_cast<size_t>(task);
    const Parameter& p = layout.parameters[i];
    at::Tensor values;
    if (packed[i] && packed[i]->format != kernels::WeightFormat::kBf16) {
      values = ops::unpack(*packed[i]);
    } else {
      const std::vector<int64_t> shape =
          p.vector ? std::vector{p.size()} : std::vector{p.rows, p.cols};
      auto* data = const_cast<Bf16*>(model_.parameters().of(task));
      values = at::from_blob(data, shape, at::kBFloat16);
    }
    // Always a copy: the parameters change under an update before the next refresh.
    const at::ScalarType dtype = p.vector ? at::kFloat : ops::matmul_dtype(p.size());
    tensors_[i] = values.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  });
}

class AtenCpu : public AtenDevice {
 public:
  AtenCpu(const kernels::CpuContext& context, const PackedModel& model)
      : context_(context), model_(model), weights_(model) {
    // ATen's own threads, which belong to the process, are switched off.
    at::set_num_threads(1);
    refresh();
  }

  const QuantisedSites& sites() const override { return model_.sites(); }
  const ParameterLayout& layout() const override { return model_.parameters().layout(); }
  const WeightSource& weights() const override { return weights_; }
  void refresh() override { weights_.refresh(context_); }

  void run(int64_t count, const std::function<void(int64_t)>& compute,
           const std::function<void(int64_t)>& finish) const override {
    context_.parallel_for(count, [&](int64_t i, int) { compute(i); });
    for (int64_t i = 0; i < count; ++i) finish(i);
  }
  void take(const RowBatch&) override {}
  // Parts and their order do not depend on the number of threads.
  int64_t part_rows() const override { return 512; }
  int64_t logits() const override { return int64_t{1} << 24; }

  at::Tensor empty(int64_t elements) const override { return at::empty({elements}, at::kFloat); }
  at::Tensor wrap(const float* x, at::IntArrayRef sizes) const override {
    return at::from_blob(const_cast<float*>(x), sizes, at::kFloat);
  }
  at::Tensor wrap(float* x, at::IntArrayRef sizes, at::IntArrayRef strides) const override {
    return at::from_blob(x, sizes, strides, at::kFloat);
  }
  at::Tensor upload(const float* x, int64_t n) const override { return wrap(x, {n}); }
  at::Tensor upload(const int64_t* x, int64_t n) const override {
    return at::from_blob(const_cast<int64_t*>(x), {n}, at::kLong);
  }
  at::Tensor upload(const int32_t* x, int64_t n) const override {
    return at::from_blob(const_cast<int32_t*>(x), {n}, at::kInt).to(at::kLong);
  }

  at::Tensor linear(const at::Tensor& x, const at::Tensor& w) const override {
    return ops::linear_bf16(x, w);
  }
  at::Tensor fake_quantize(const at::Tensor& x, Format format,
                           std::string_view where) const override {
    return ops::fake_quantize_activation(x, activation_format(format), where);
  }
  at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) const override {
    return (at::silu(gate.to(at::kFloat)) * up.to(at::kFloat)).to(at::kBFloat16);
  }
  std::pair<at::Tensor, at::Tensor> angles(const SequenceRows& part) const override {
    const int64_t last = *std::max_element(part.positions, part.positions + part.rows);
    const at::Tensor positions = upload(part.positions, part.rows);
    const auto table = [&](const float* values) {
      return wrap(values, {last + 1, sites().config.head_dim / 2})
          .index_select(0, positions)
          .unsqueeze(1);
    };
    return {table(part.cos), table(part.sin)};
  }
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const SequenceRows& part, float scale) const override;
  at::Tensor replayed(const SequenceRows& part, int64_t top_k) const override {
    return upload(part.replay_routing, part.rows * top_k).view({part.rows, top_k});
  }
  at::Tensor multiply_experts(const at::Tensor& x, const at::Tensor& ends,
                              std::span<const int64_t> parameters,
                              const WeightSource& weight) const override;
  void add_rows(const at::Tensor& sums, const at::Tensor& index,
                const at::Tensor& rows) const override {
    sums.index_add_(0, index, rows);
  }

 private:
  kernels::CpuContext context_;
  const PackedModel& model_;
  CpuWeights weights_;
};

at::Tensor AtenCpu::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const SequenceRows& part, float scale) const {
  const int64_t heads = q.size(1), kv_heads = k.size(1), head_dim = q.size(2);
  // Of BF16 values, but in FP32: BF16's attention on CPUs takes most of a step in its backward.
  const at::Tensor all = at::cat({q, k, v}, 1).to(at::kFloat);
  // Padding at the end needs no mask: attention is causal, so no row looks at it.
  const Padding padding = pad_sequences(part);
  const at::Tensor padded =
      all.new_zeros({padding.sequences * padding.longest, heads + 2 * kv_heads, head_dim})
          .index_copy(0, padding.slots, all)
          .view({padding.sequences, padding.longest, heads + 2 * kv_heads, head_dim})
          .transpose(1, 2);
  const at::Tensor attended = at::scaled_dot_product_attention(
      padded.narrow(1, 0, heads), padded.narrow(1, heads, kv_heads),
      padded.narrow(1, heads + kv_heads, kv_heads), {}, 0.0, /*is_causal=*/true, scale,
      /*enable_gqa=*/heads != kv_heads);
  return attended.transpose(1, 2)
      .reshape({padding.sequences * padding.longest, heads, head_dim})
      .index_select(0, padding.slots)
      .to(at::kBFloat16);
}

at::Tensor AtenCpu::multiply_experts(const at::Tensor& x, const at::Tensor& ends,
                                     std::span<const int64_t> parameters,
                                     const WeightSource& weight) const {
  const auto* end = ends.const_data_ptr<int32_t>();
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (size_t e = 0; e < parameters.size(); ++e) {
    if (end[e] == begin) continue;
    parts.push_back(linear(x.narrow(0, begin, end[e] - begin), weight.of(parameters[e])));
    begin = end[e];
  }
  return at::cat(parts, 0);
}

}  // namespace

std::unique_ptr<AtenDevice> make_aten_cpu(const kernels::CpuContext& context,
                                          const PackedModel& model) {
  return std::make_unique<AtenCpu>(context, model);
}

}  // namespace quads
