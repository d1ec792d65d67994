#include "trainer/trainer.h"

#include <algorithm>

#include "base/error.h"

namespace quads {

Trainer::Trainer(Blocks& blocks, std::unique_ptr<Optimizer> optimizer, SequenceBatch batch,
                 std::function<void()> update_weights, const Options& options)
    : blocks_(blocks),
      update_weights_(std::move(update_weights)),
      options_(options),
      optimizer_(std::move(optimizer)),
      batch_(std::move(batch)) {
  require(options.temperature > 0, "the trainer's temperature must be positive, got {}",
          options.temperature);
  check(options.adamw);
}

Trainer::Trainer(const kernels::CpuContext& context, Parameters& parameters, PackedModel& model,
                 Blocks& blocks, std::function<void()> update_weights, const Options& options)
    : Trainer(blocks, std::make_unique<CpuOptimizer>(context, parameters, options.adamw),
              SequenceBatch(model), std::move(update_weights), options) {}

std::vector<float*> Trainer::activation_buffers(Blocks& blocks, int64_t rows, int64_t count) {
  const int64_t stride = rows * blocks.hidden();
  float* all = blocks.activations(stride * count);
  std::vector<float*> buffers(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) buffers[static_cast<size_t>(i)] = all + i * stride;
  return buffers;
}

void Trainer::accumulate(std::span<const TrainSequence> sequences, const LossFunction& loss) {
  const int64_t layers = blocks_.num_layers();
  for (const auto& [begin, end] : pack(sequences, options_.max_tokens)) {
    const auto part =
        sequences.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    batch_.assign(part, 1.0F / options_.temperature);
    const RowBatch& rows = batch_.rows();

    // Inputs of the blocks: all of them, or the layers' and one shared buffer for what is between a
    // layer's attention and feed-forward block.
    const int64_t kept = options_.checkpoint_activations ? layers + 2 : 2 * layers + 1;
    const std::vector<float*> buffers = activation_buffers(blocks_, rows.rows, kept + 2);
    std::vector<float*> saved(static_cast<size_t>(2 * layers + 1));
    for (int64_t i = 0; i <= 2 * layers; ++i) {
      const int64_t buffer = !options_.checkpoint_activations ? i : i % 2 == 0 ? i / 2 : layers + 1;
      saved[static_cast<size_t>(i)] = buffers[static_cast<size_t>(buffer)];
    }
    forward_layers(blocks_, rows, nullptr, saved.data());

    const Targets& targets = batch_.targets();
    const auto count = static_cast<size_t>(targets.count);
    logp_.resize(count);
    entropy_.resize(count);
    dlogp_.assign(count, 0.0F);
    blocks_.head_forward(targets, saved.back(), rows.rows, logp_.data(), entropy_.data());
    offsets_.assign(1, 0);
    for (const TrainSequence& s : part) offsets_.push_back(offsets_.back() + s.targets());
    loss({begin, offsets_, logp_, entropy_}, dlogp_);
    backward(saved, dlogp_.data(), buffers[static_cast<size_t>(kept)],
             buffers[static_cast<size_t>(kept + 1)]);
  }
}

void Trainer::backward(std::span<float* const> saved, const float* dlogp, float* d0, float* d1) {
  const RowBatch& rows = batch_.rows();
  float* grads = optimizer_->grads();
  blocks_.head_backward(batch_.targets(), saved.back(), rows.rows, dlogp, grads, d0);
  for (int64_t layer = blocks_.num_layers() - 1; layer >= 0; --layer) {
    float* layer_input = saved[static_cast<size_t>(2 * layer)];
    float* middle = saved[static_cast<size_t>(2 * layer + 1)];
    if (options_.checkpoint_activations) {
      blocks_.attention_forward(layer, rows, layer_input, middle);
    }
    blocks_.ffn_backward(layer, rows, middle, d0, grads, d1);
    blocks_.attention_backward(layer, rows, layer_input, d1, grads, d0);
  }
  blocks_.embed_backward(rows, d0, grads);
}

Optimizer::Result Trainer::update(float lr, float grad_scale) {
  const Optimizer::Result result = optimizer_->step(lr, grad_scale);
  if (result.applied) update_weights_();
  return result;
}

std::vector<float> Trainer::logprobs(std::span<const TrainSequence> sequences,
                                     std::vector<float>* entropies) {
  return logprobs(blocks_, sequences, entropies);
}

std::vector<float> Trainer::logprobs(Blocks& blocks, std::span<const TrainSequence> sequences,
                                     std::vector<float>* entropies) {
  std::vector<float> result;
  for (const auto& [begin, end] : pack(sequences, options_.max_tokens)) {
    batch_.assign(sequences.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                  1.0F / options_.temperature);
    const RowBatch& rows = batch_.rows();
    float* x = activation_buffers(blocks, rows.rows, 1)[0];
    forward_layers(blocks, rows, x, nullptr);
    const Targets& targets = batch_.targets();
    const size_t at = result.size();
    result.resize(at + static_cast<size_t>(targets.count));
    if (entropies) entropies->resize(result.size());
    blocks.head_forward(targets, x, rows.rows, result.data() + at,
                        entropies ? entropies->data() + at : nullptr);
  }
  return result;
}

}  // namespace quads
