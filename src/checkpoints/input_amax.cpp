#include "checkpoints/input_amax.h"

#include <algorithm>

#include "base/error.h"
#include "model/projection_walk.h"
#include "trainer/sequence_batch.h"

namespace quads {

InputAmax measure_input_amax(kernels::CpuRuntime& runtime, const Parameters& parameters,
                             std::span<const std::vector<int32_t>> prompts,
                             const std::function<void(int64_t done)>& on_progress) {
  constexpr int64_t kMaxRows = 1024;
  const kernels::FlushDenormals flush;
  const ModelConfig& config = parameters.config();
  std::vector<std::vector<int32_t>> tokens(prompts.begin(), prompts.end());
  std::vector<TrainSequence> sequences;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t length = std::ssize(tokens[i]);
    require(length > 0, "prompt {} is empty", i);
    require(length <= config.max_position_embeddings,
            "prompt {} has {} tokens; the model has {} positions", i, length,
            config.max_position_embeddings);
    // The last token of a sequence is not fed: one more, so that the whole prompt is.
    tokens[i].push_back(tokens[i].back());
    sequences.push_back({.tokens = tokens[i], .prompt_length = length});
  }
  PackedModel model(parameters, {});
  model.refresh(runtime.context(), {});
  InputAmax amax{std::vector<float>(static_cast<size_t>(model.num_layers() * kSites))};
  const auto all = [](int64_t, Site) { return true; };
  const auto record = [&](const Projection& p, const std::vector<float>&) {
    const int64_t count = p.rows * input_width(model, p);
    const kernels::AmaxResult result = runtime.context().gemm().amax(p.x, count);
    require(result.non_finite < 0, "the input of layer {}'s linears is not finite", p.layer);
    float& largest = amax.values[static_cast<size_t>(p.layer * kSites + static_cast<int>(p.site))];
    largest = std::max(largest, result.amax);
  };
  SequenceBatch batch(model);
  for (const auto& [begin, end] : pack(sequences, kMaxRows)) {
    batch.assign(
        std::span(sequences).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        1.0F);
    walk_projections(runtime.context(), model, batch.rows(), all, record);
    on_progress(end);
  }
  return amax;
}

}  // namespace quads
