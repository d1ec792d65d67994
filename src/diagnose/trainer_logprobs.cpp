#include "diagnose/trainer_logprobs.h"

#include "base/aligned_buffer.h"

namespace quads {

std::vector<TrainSequence> train_sequences(std::span<const Sample> samples,
                                           std::vector<std::vector<int32_t>>& tokens) {
  tokens.clear();
  tokens.reserve(samples.size());
  std::vector<TrainSequence> sequences;
  for (const Sample& sample : samples) {
    if (sample.response.empty()) continue;
    std::vector<int32_t>& all = tokens.emplace_back(sample.prompt);
    all.insert(all.end(), sample.response.begin(), sample.response.end());
    sequences.push_back({.tokens = all, .prompt_length = std::ssize(sample.prompt), .routing = {}});
  }
  return sequences;
}

std::vector<float> trainer_logprobs(Blocks& blocks, PackedModel& model,
                                    std::span<const Sample> samples, float temperature) {
  constexpr int64_t kMaxRows = 2048;
  std::vector<std::vector<int32_t>> tokens;
  const std::vector<TrainSequence> sequences = train_sequences(samples, tokens);
  SequenceBatch batch(model);
  std::vector<float> logprobs;
  AlignedBuffer<float> x;
  for (const auto& [begin, end] : pack(sequences, kMaxRows)) {
    batch.assign(
        std::span(sequences).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        1.0F / temperature);
    const int64_t rows = batch.rows().rows, count = batch.targets().count;
    if (x.size() < rows * blocks.hidden()) x = AlignedBuffer<float>(rows * blocks.hidden());
    forward_layers(blocks, batch.rows(), x.data(), nullptr);
    const size_t at = logprobs.size();
    logprobs.resize(at + static_cast<size_t>(count));
    blocks.head_forward(batch.targets(), x.data(), rows, logprobs.data() + at, nullptr);
  }
  return logprobs;
}

}  // namespace quads
