#include "aten/aten_blocks.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "aten/aten_model.h"
#include "base/error.h"

namespace quads {
namespace {

// Rows that a thread takes through a block. Cut by shape alone; gradients are added up in order.
constexpr int64_t kPartRows = 512;

void check_batch(const RowBatch& batch) {
  require(batch.cu_seqlens != nullptr,
          "ATen's blocks take whole sequences; a batch of single rows needs the shared kernels");
  require(batch.residual_sums == nullptr,
          "ATen's blocks gather no compensation statistics; that needs the shared kernels");
}

// Consecutive sequences of at least kPartRows rows, as `layer` sees them.
std::vector<SequenceRows> cut(const RowBatch& batch, int64_t layer, int64_t top_k) {
  check_batch(batch);
  std::vector<SequenceRows> parts;
  int64_t first = 0;
  for (int64_t s = 1; s <= batch.sequences; ++s) {
    const int64_t begin = batch.cu_seqlens[first], rows = batch.cu_seqlens[s] - begin;
    if (rows == 0 || (rows < kPartRows && s < batch.sequences)) continue;
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
void forward_parts(const kernels::CpuContext& context, const AtenModel& model,
                   const std::vector<SequenceRows>& parts, const float* x, float* y,
                   const Block& block) {
  const int64_t hidden = model.hidden();
  context.parallel_for(std::ssize(parts), [&](int64_t i, int) {
    const at::NoGradGuard no_grad;
    const SequenceRows& part = parts[static_cast<size_t>(i)];
    const std::vector<int64_t> shape = {part.rows, hidden};
    wrap(y + part.begin * hidden, shape)
        .copy_(block(part, wrap(x + part.begin * hidden, shape), model.plain_weights()));
  });
}

template <class Block>
void backward_parts(const kernels::CpuContext& context, AtenModel& model,
                    std::vector<SequenceRows> parts, const float* x, const float* dy, float* grads,
                    float* dx, const Block& block) {
  const int64_t hidden = model.hidden();
  std::vector<WeightLeaves> leaves(parts.size(), WeightLeaves(model.weights()));
  context.parallel_for(std::ssize(parts), [&](int64_t i, int) {
    const at::AutoGradMode with_grad(true);
    WeightLeaves& own = leaves[static_cast<size_t>(i)];
    SequenceRows& part = parts[static_cast<size_t>(i)];
    part.record_routing = nullptr;
    const std::vector<int64_t> shape = {part.rows, hidden};
    const int64_t offset = part.begin * hidden;
    const at::Tensor input = wrap(x + offset, shape).requires_grad_(true);
    const at::Tensor y = block(part, input, [&](int64_t p) { return own.take(p); });
    wrap(dx + offset, shape).copy_(own.backward(y, wrap(dy + offset, shape), input));
  });
  const at::NoGradGuard no_grad;
  for (const WeightLeaves& own : leaves) own.add_to(model.layout(), grads);
}

// Ranges of targets, of which the logits stay small.
struct TargetRange {
  int64_t first, count;
};

std::vector<TargetRange> cut(const Targets& targets, int64_t vocab) {
  constexpr int64_t kLogits = int64_t{1} << 24;
  const int64_t size = std::clamp<int64_t>(kLogits / vocab, 1, kPartRows);
  std::vector<TargetRange> ranges;
  for (int64_t first = 0; first < targets.count; first += size) {
    ranges.push_back({first, std::min(size, targets.count - first)});
  }
  return ranges;
}

}  // namespace

AtenBlocks::AtenBlocks(const kernels::CpuContext& context, const PackedModel& model)
    : context_(context) {
  require(model.precision().rac.ratio == 0,
          "precision {} compensates residuals; ATen's kernels do not: use --trainer-kernels shared",
          precision_name(model.precision()));
  at::set_num_threads(1);
  model_ = std::make_unique<AtenModel>(model);
  refresh();
}

AtenBlocks::~AtenBlocks() = default;

void AtenBlocks::refresh() { model_->weights().refresh(context_); }

int64_t AtenBlocks::num_layers() const { return model_->packed().num_layers(); }

int64_t AtenBlocks::hidden() const { return model_->hidden(); }

void AtenBlocks::embed(const RowBatch& batch, float* x) {
  const int64_t vocab = model_->packed().config().vocab_size;
  for (int64_t r = 0; r < batch.rows; ++r) {
    const int32_t token = batch.tokens[r];
    require(token >= 0 && token < vocab, "token {} is outside the vocabulary of {}", token, vocab);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor table = model_->weights().at(model_->layout().embedding);
  wrap(x, {batch.rows, hidden()}).copy_(table.index_select(0, wrap(batch.tokens, batch.rows)));
}

void AtenBlocks::attention_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) {
  forward_parts(context_, *model_, cut(batch, layer, 0), x, y,
                [&](const SequenceRows& part, const at::Tensor& in, const WeightSource& weight) {
                  return model_->attention(layer, part, in, weight);
                });
}

void AtenBlocks::ffn_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) {
  forward_parts(context_, *model_, cut(batch, layer, model_->packed().ffn(layer).top_k), x, y,
                [&](const SequenceRows& part, const at::Tensor& in, const WeightSource& weight) {
                  return model_->ffn(layer, part, in, weight);
                });
}

void AtenBlocks::head_forward(const Targets& targets, const float* x, int64_t rows, float* logp,
                              float* entropy) {
  const std::vector<TargetRange> ranges = cut(targets, model_->packed().config().vocab_size);
  context_.parallel_for(std::ssize(ranges), [&](int64_t i, int) {
    const at::NoGradGuard no_grad;
    const auto [first, count] = ranges[static_cast<size_t>(i)];
    const at::Tensor in =
        wrap(x, {rows, hidden()}).index_select(0, wrap(targets.rows + first, count));
    const at::Tensor log_p =
        model_->log_softmax(in, targets.inv_temperature, model_->plain_weights());
    const at::Tensor tokens = wrap(targets.tokens + first, count).unsqueeze(1);
    wrap(logp + first, {count}).copy_(log_p.gather(1, tokens).squeeze(1));
    if (entropy) wrap(entropy + first, {count}).copy_(-(log_p.exp() * log_p).sum(1));
  });
}

void AtenBlocks::embed_backward(const RowBatch& batch, const float* dx, float* grads) {
  const at::NoGradGuard no_grad;
  const ParameterLayout& layout = model_->layout();
  const Parameter& table = layout.at(layout.embedding);
  wrap(grads + table.offset, {table.rows, table.cols})
      .index_add_(0, wrap(batch.tokens, batch.rows), wrap(dx, {batch.rows, hidden()}));
}

void AtenBlocks::attention_backward(int64_t layer, const RowBatch& batch, const float* x,
                                    const float* dy, float* grads, float* dx) {
  backward_parts(context_, *model_, cut(batch, layer, 0), x, dy, grads, dx,
                 [&](const SequenceRows& part, const at::Tensor& in, const WeightSource& weight) {
                   return model_->attention(layer, part, in, weight);
                 });
}

void AtenBlocks::ffn_backward(int64_t layer, const RowBatch& batch, const float* x, const float* dy,
                              float* grads, float* dx) {
  backward_parts(context_, *model_, cut(batch, layer, model_->packed().ffn(layer).top_k), x, dy,
                 grads, dx,
                 [&](const SequenceRows& part, const at::Tensor& in, const WeightSource& weight) {
                   return model_->ffn(layer, part, in, weight);
                 });
}

void AtenBlocks::head_backward(const Targets& targets, const float* x, int64_t rows,
                               const float* dlogp, float* grads, float* dx) {
  std::fill_n(dx, rows * hidden(), 0.0F);
  const std::vector<TargetRange> ranges = cut(targets, model_->packed().config().vocab_size);
  std::vector<WeightLeaves> leaves(ranges.size(), WeightLeaves(model_->weights()));
  context_.parallel_for(std::ssize(ranges), [&](int64_t i, int) {
    const at::AutoGradMode with_grad(true);
    WeightLeaves& own = leaves[static_cast<size_t>(i)];
    const auto [first, count] = ranges[static_cast<size_t>(i)];
    const at::Tensor target_rows = wrap(targets.rows + first, count);
    const at::Tensor input =
        wrap(x, {rows, hidden()}).index_select(0, target_rows).requires_grad_(true);
    const at::Tensor log_p =
        model_->log_softmax(input, targets.inv_temperature, [&](int64_t p) { return own.take(p); });
    const at::Tensor tokens = wrap(targets.tokens + first, count).unsqueeze(1);
    const at::Tensor dinput =
        own.backward(log_p.gather(1, tokens).squeeze(1), wrap(dlogp + first, {count}), input);
    wrap(dx, {rows, hidden()}).index_copy_(0, target_rows, dinput);  // rows are distinct
  });
  const at::NoGradGuard no_grad;
  for (const WeightLeaves& own : leaves) own.add_to(model_->layout(), grads);
}

}  // namespace quads
