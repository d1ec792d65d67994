#include "aten/aten_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <vector>

#include "aten/aten_model.h"
#include "aten/cpu_device.h"
#include "aten/weight_leaves.h"
#include "base/error.h"

namespace quads {
namespace {

void check_batch(const RowBatch& batch) {
  require(batch.cu_seqlens != nullptr,
          "ATen's blocks take whole sequences; a batch of single rows needs the shared kernels");
  require(batch.residual_sums == nullptr,
          "ATen's blocks gather no compensation statistics; that needs the shared kernels");
}

// Consecutive sequences of at least part_rows rows, as `layer` sees them. Cut by shape alone.
std::vector<SequenceRows> cut(const RowBatch& batch, int64_t part_rows, int64_t layer,
                              int64_t top_k) {
  check_batch(batch);
  std::vector<SequenceRows> parts;
  int64_t first = 0;
  for (int64_t s = 1; s <= batch.sequences; ++s) {
    const int64_t begin = batch.cu_seqlens[first], rows = batch.cu_seqlens[s] - begin;
    if (rows == 0 || (rows < part_rows && s < batch.sequences)) continue;
    const int64_t routing = (layer * batch.rows + begin) * top_k;
    parts.push_back(
        {.begin = begin,
         .rows = rows,
         .cu_seqlens = {batch.cu_seqlens + first, static_cast<size_t>(s - first + 1)},
         .positions = batch.attention.positions + begin,
         .cos = batch.attention.cos,
         .sin = batch.attention.sin,
         .replay_routing = batch.replay_routing ? batch.replay_routing + routing : nullptr,
         .record_routing = batch.record_routing ? batch.record_routing + routing : nullptr});
    first = s;
  }
  return parts;
}

// y = block(part, x, weights) for every part.
template <class Block>
void forward_parts(const AtenDevice& device, const std::vector<SequenceRows>& parts, const float* x,
                   float* y, const Block& block) {
  const int64_t hidden = device.sites().config.hidden_size;
  const auto compute = [&](int64_t i) {
    const at::NoGradGuard no_grad;
    const SequenceRows& part = parts[static_cast<size_t>(i)];
    const std::vector<int64_t> shape = {part.rows, hidden};
    device.wrap(y + part.begin * hidden, shape)
        .copy_(block(part, device.wrap(x + part.begin * hidden, shape), device.weights()));
  };
  device.run(std::ssize(parts), compute, [](int64_t) {});
}

template <class Block>
void backward_parts(const AtenDevice& device, std::vector<SequenceRows> parts, const float* x,
                    const float* dy, float* grads, float* dx, const Block& block) {
  const int64_t hidden = device.sites().config.hidden_size;
  std::vector<WeightLeaves> leaves(parts.size(), WeightLeaves(device));
  const auto compute = [&](int64_t i) {
    const at::AutoGradMode with_grad(true);
    WeightLeaves& own = leaves[static_cast<size_t>(i)];
    SequenceRows& part = parts[static_cast<size_t>(i)];
    part.record_routing = nullptr;
    const std::vector<int64_t> shape = {part.rows, hidden};
    const int64_t offset = part.begin * hidden;
    const at::Tensor input = device.wrap(x + offset, shape).requires_grad_(true);
    const at::Tensor y = block(part, input, own);
    device.wrap(dx + offset, shape).copy_(own.backward(y, device.wrap(dy + offset, shape), input));
  };
  device.run(std::ssize(parts), compute, [&](int64_t i) {
    const at::NoGradGuard no_grad;
    leaves[static_cast<size_t>(i)].add_to(grads);
  });
}

// Ranges of targets, of which the logits stay small.
struct TargetRange {
  int64_t first, count;
};

std::vector<TargetRange> cut(const Targets& targets, const AtenDevice& device) {
  const int64_t size = std::clamp<int64_t>(device.logits() / device.sites().config.vocab_size, 1,
                                           device.part_rows());
  std::vector<TargetRange> ranges;
  for (int64_t first = 0; first < targets.count; first += size) {
    ranges.push_back({first, std::min(size, targets.count - first)});
  }
  return ranges;
}

// The host's memory.
at::Tensor host(float* x, int64_t n) { return at::from_blob(x, {n}, at::kFloat); }

}  // namespace

struct AtenBlocks::Memory {
  at::Tensor tensor;
};

AtenBlocks::AtenBlocks(std::unique_ptr<AtenDevice> device)
    : device_(std::move(device)), activations_(std::make_unique<Memory>()) {
  const Precision& precision = device_->sites().precision;
  require(precision.rac.ratio == 0,
          "precision {} compensates residuals; ATen's kernels do not: use --trainer-kernels shared",
          precision_name(precision));
  model_ = std::make_unique<AtenModel>(*device_);
}

AtenBlocks::AtenBlocks(const kernels::CpuContext& context, const PackedModel& model)
    : AtenBlocks(make_aten_cpu(context, model)) {}

AtenBlocks::~AtenBlocks() = default;

void AtenBlocks::refresh() { device_->refresh(); }

float* AtenBlocks::activations(int64_t elements) {
  at::Tensor& all = activations_->tensor;
  if (!all.defined() || all.numel() < elements) {
    device_->run([&] {
      all.reset();
      all = device_->empty(elements);
    });
  }
  return all.mutable_data_ptr<float>();
}

int64_t AtenBlocks::num_layers() const { return device_->sites().num_layers(); }

int64_t AtenBlocks::hidden() const { return device_->sites().config.hidden_size; }

void AtenBlocks::embed(const RowBatch& batch, float* x) {
  const int64_t vocab = device_->sites().config.vocab_size;
  for (int64_t r = 0; r < batch.rows; ++r) {
    const int32_t token = batch.tokens[r];
    require(token >= 0 && token < vocab, "token {} is outside the vocabulary of {}", token, vocab);
  }
  check_batch(batch);
  device_->run([&] {
    const at::NoGradGuard no_grad;
    device_->take(batch);
    const at::Tensor table = device_->weights().of(device_->layout().embedding);
    device_->wrap(x, {batch.rows, hidden()})
        .copy_(table.index_select(0, device_->upload(batch.tokens, batch.rows)));
  });
}

void AtenBlocks::attention_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) {
  forward_parts(*device_, cut(batch, device_->part_rows(), layer, 0), x, y,
                [&](const SequenceRows& part, const at::Tensor& in, const WeightSource& weight) {
                  return model_->attention(layer, part, in, weight);
                });
}

void AtenBlocks::ffn_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) {
  const int64_t top_k = model_->config().num_experts_per_tok;
  forward_parts(*device_, cut(batch, device_->part_rows(), layer, top_k), x, y,
                [&](const SequenceRows& part, const at::Tensor& in, const WeightSource& weight) {
                  return model_->ffn(layer, part, in, weight);
                });
}

void AtenBlocks::head_forward(const Targets& targets, const float* x, int64_t rows, float* logp,
                              float* entropy) {
  const std::vector<TargetRange> ranges = cut(targets, *device_);
  const auto compute = [&](int64_t i) {
    const at::NoGradGuard no_grad;
    const auto [first, count] = ranges[static_cast<size_t>(i)];
    const at::Tensor in = device_->wrap(x, {rows, hidden()})
                              .index_select(0, device_->upload(targets.rows + first, count));
    const at::Tensor log_p = model_->log_softmax(in, targets.inv_temperature, device_->weights());
    const at::Tensor tokens = device_->upload(targets.tokens + first, count).unsqueeze(1);
    host(logp + first, count).copy_(log_p.gather(1, tokens).squeeze(1));
    if (entropy) host(entropy + first, count).copy_(-(log_p.exp() * log_p).sum(1));
  };
  device_->run(std::ssize(ranges), compute, [](int64_t) {});
}

void AtenBlocks::embed_backward(const RowBatch& batch, const float* dx, float* grads) {
  const Parameter& table = device_->layout().at(device_->layout().embedding);
  device_->run([&] {
    const at::NoGradGuard no_grad;
    device_->add_rows(device_->wrap(grads + table.offset, {table.rows, table.cols}),
                      device_->upload(batch.tokens, batch.rows),
                      device_->wrap(dx, {batch.rows, hidden()}));
  });
}

void AtenBlocks::attention_backward(int64_t layer, const RowBatch& batch, const float* x,
                                    const float* dy, float* grads, float* dx) {
  backward_parts(*device_, cut(batch, device_->part_rows(), layer, 0), x, dy, grads, dx,
                 [&](const SequenceRows& part, const at::Tensor& in, const WeightSource& weight) {
                   return model_->attention(layer, part, in, weight);
                 });
}

void AtenBlocks::ffn_backward(int64_t layer, const RowBatch& batch, const float* x, const float* dy,
                              float* grads, float* dx) {
  const int64_t top_k = model_->config().num_experts_per_tok;
  backward_parts(*device_, cut(batch, device_->part_rows(), layer, top_k), x, dy, grads, dx,
                 [&](const SequenceRows& part, const at::Tensor& in, const WeightSource& weight) {
                   return model_->ffn(layer, part, in, weight);
                 });
}

void AtenBlocks::head_backward(const Targets& targets, const float* x, int64_t rows,
                               const float* dlogp, float* grads, float* dx) {
  device_->run([&] {
    const at::NoGradGuard no_grad;
    device_->wrap(dx, {rows, hidden()}).zero_();
  });
  const std::vector<TargetRange> ranges = cut(targets, *device_);
  std::vector<WeightLeaves> leaves(ranges.size(), WeightLeaves(*device_));
  const auto compute = [&](int64_t i) {
    const at::AutoGradMode with_grad(true);
    WeightLeaves& own = leaves[static_cast<size_t>(i)];
    const auto [first, count] = ranges[static_cast<size_t>(i)];
    const at::Tensor target_rows = device_->upload(targets.rows + first, count);
    const at::Tensor input =
        device_->wrap(x, {rows, hidden()}).index_select(0, target_rows).requires_grad_(true);
    const at::Tensor log_p = model_->log_softmax(input, targets.inv_temperature, own);
    const at::Tensor tokens = device_->upload(targets.tokens + first, count).unsqueeze(1);
    const at::Tensor dinput = own.backward(log_p.gather(1, tokens).squeeze(1),
                                           device_->upload(dlogp + first, count), input);
    // Rows are distinct.
    device_->wrap(dx, {rows, hidden()}).index_copy_(0, target_rows, dinput);
  };
  device_->run(std::ssize(ranges), compute, [&](int64_t i) {
    const at::NoGradGuard no_grad;
    leaves[static_cast<size_t>(i)].add_to(grads);
  });
}

}  // namespace quads
