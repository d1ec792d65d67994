#include "aten/aten_blocks.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>

#include "aten/aten_model.h"
#include "base/error.h"

namespace quads {
namespace {

void check_batch(const RowBatch& batch) {
  require(batch.cu_seqlens != nullptr,
          "ATen's blocks take whole sequences; a batch of single rows needs the shared kernels");
  require(batch.residual_sums == nullptr,
          "ATen's blocks gather no compensation statistics; that needs the shared kernels");
}

// Calls body(first, count) on ranges of targets, so that the logits of one stay small.
void for_target_chunks(const Targets& targets, int64_t vocab,
                       const std::function<void(int64_t, int64_t)>& body) {
  constexpr int64_t kLogits = int64_t{1} << 24;
  const int64_t chunk = std::max<int64_t>(1, kLogits / vocab);
  for (int64_t first = 0; first < targets.count; first += chunk) {
    body(first, std::min(chunk, targets.count - first));
  }
}

}  // namespace

AtenBlocks::AtenBlocks(const PackedModel& model, int num_threads) {
  require(model.precision().rac.ratio == 0,
          "precision {} compensates residuals; ATen's kernels do not: use --trainer-kernels shared",
          precision_name(model.precision()));
  at::set_num_threads(num_threads);
  model_ = std::make_unique<AtenModel>(model);
  refresh();
}

AtenBlocks::~AtenBlocks() = default;

void AtenBlocks::refresh() { model_->weights().refresh(); }

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
  check_batch(batch);
  const at::NoGradGuard no_grad;
  wrap(y, {batch.rows, hidden()})
      .copy_(model_->attention(layer, batch, wrap(x, {batch.rows, hidden()}),
                               model_->plain_weights()));
}

void AtenBlocks::ffn_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) {
  check_batch(batch);
  const at::NoGradGuard no_grad;
  wrap(y, {batch.rows, hidden()})
      .copy_(model_->ffn(layer, batch, wrap(x, {batch.rows, hidden()}), model_->plain_weights()));
}

void AtenBlocks::head_forward(const Targets& targets, const float* x, int64_t rows, float* logp,
                              float* entropy) {
  const at::NoGradGuard no_grad;
  const at::Tensor all = wrap(x, {rows, hidden()});
  for_target_chunks(
      targets, model_->packed().config().vocab_size, [&](int64_t first, int64_t count) {
        const at::Tensor log_p =
            model_->log_softmax(all.index_select(0, wrap(targets.rows + first, count)),
                                targets.inv_temperature, model_->plain_weights());
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
  check_batch(batch);
  const at::AutoGradMode with_grad(true);
  WeightLeaves leaves(model_->weights());
  const at::Tensor input = wrap(x, {batch.rows, hidden()}).requires_grad_(true);
  const at::Tensor y =
      model_->attention(layer, batch, input, [&](int64_t p) { return leaves.take(p); });
  wrap(dx, {batch.rows, hidden()})
      .copy_(leaves.backward(model_->layout(), y, wrap(dy, {batch.rows, hidden()}), input, grads));
}

void AtenBlocks::ffn_backward(int64_t layer, const RowBatch& batch, const float* x, const float* dy,
                              float* grads, float* dx) {
  check_batch(batch);
  const at::AutoGradMode with_grad(true);
  WeightLeaves leaves(model_->weights());
  const at::Tensor input = wrap(x, {batch.rows, hidden()}).requires_grad_(true);
  RowBatch replay_only = batch;
  replay_only.record_routing = nullptr;
  const at::Tensor y =
      model_->ffn(layer, replay_only, input, [&](int64_t p) { return leaves.take(p); });
  wrap(dx, {batch.rows, hidden()})
      .copy_(leaves.backward(model_->layout(), y, wrap(dy, {batch.rows, hidden()}), input, grads));
}

void AtenBlocks::head_backward(const Targets& targets, const float* x, int64_t rows,
                               const float* dlogp, float* grads, float* dx) {
  const at::AutoGradMode with_grad(true);
  const at::Tensor all = wrap(x, {rows, hidden()}), dall = wrap(dx, {rows, hidden()});
  dall.zero_();
  for_target_chunks(
      targets, model_->packed().config().vocab_size, [&](int64_t first, int64_t count) {
        WeightLeaves leaves(model_->weights());
        const at::Tensor target_rows = wrap(targets.rows + first, count);
        const at::Tensor input = all.index_select(0, target_rows).requires_grad_(true);
        const at::Tensor log_p = model_->log_softmax(input, targets.inv_temperature,
                                                     [&](int64_t p) { return leaves.take(p); });
        const at::Tensor tokens = wrap(targets.tokens + first, count).unsqueeze(1);
        const at::Tensor dinput =
            leaves.backward(model_->layout(), log_p.gather(1, tokens).squeeze(1),
                            wrap(dlogp + first, {count}), input, grads);
        dall.index_copy_(0, target_rows, dinput);
      });
}

}  // namespace quads
