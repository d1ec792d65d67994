#include "rl/supervised.h"

#include <algorithm>

#include "base/error.h"
#include "rl/skipped_updates.h"

namespace quads {

ModelConfig default_base_model() {
  ModelConfig c;
  c.hidden_size = 128;
  c.intermediate_size = 128;
  c.num_hidden_layers = 4;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 32;
  c.max_position_embeddings = 1024;
  c.moe_intermediate_size = 64;
  c.num_experts = 8;
  c.num_experts_per_tok = 2;
  c.norm_topk_prob = true;
  c.initializer_range = 0.08;
  return c;
}

int64_t train_supervised(Trainer& trainer, const Task& task, const Tokenizer& tokenizer,
                         const SupervisedOptions& options, MetricsSink& metrics, Progress& progress,
                         const std::atomic<bool>& stop) {
  SkippedUpdates skipped;
  int64_t step = 0;
  for (; step < options.num_steps && !stop; ++step) {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<TrainSequence> sequences;
    tokens.reserve(static_cast<size_t>(options.batch_size));
    int64_t targets = 0;
    for (int64_t i = 0; i < options.batch_size; ++i) {
      const Problem problem = task.train_problem(options.seed, step * options.batch_size + i);
      const auto solution = task.solution(problem, options.seed);
      require(solution.has_value(), "the task has no solutions to learn from");
      std::vector<int32_t>& all = tokens.emplace_back(tokenizer.encode(problem.prompt));
      const int64_t prompt_length = std::ssize(all);
      const std::vector<int32_t> response = tokenizer.encode(*solution);
      all.insert(all.end(), response.begin(), response.end());
      sequences.push_back({.tokens = all, .prompt_length = prompt_length, .routing = {}});
      targets += sequences.back().targets();
    }
    const float weight = -1.0F / static_cast<float>(targets);
    double loss = 0;
    trainer.accumulate(sequences, [&](const MicroBatch& micro, std::span<float> dlogp) {
      for (float logp : micro.logprobs) loss -= logp;
      std::ranges::fill(dlogp, weight);
    });
    const double lr = learning_rate(options.lr, step);
    const Optimizer::Result result = trainer.update(static_cast<float>(lr));
    skipped.applied(step, result);
    loss /= static_cast<double>(targets);
    MetricsRow row(step);
    row.set("train/loss", loss);
    row.set("train/grad_norm", result.grad_norm);
    row.set("train/lr", lr);
    if (const int64_t count = skipped.take(); count > 0) row.set("train/skipped_updates", count);
    metrics.write(row);
    progress.update(step + 1, {{"loss", format_figure(loss)}});
  }
  return step;
}

}  // namespace quads
