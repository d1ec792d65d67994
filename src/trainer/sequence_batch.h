// Packing: whole sequences laid end to end under a token budget, as the blocks want them.
#pragma once

#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "model/blocks.h"
#include "model/packed_model.h"

namespace quads {

/// A sequence to train on. The last token is predicted but not fed.
struct TrainSequence {
  std::span<const int32_t> tokens;     // prompt and response, at least 2
  int64_t prompt_length = 0;           // >= 1; tokens[prompt_length..] are predicted
  std::span<const int32_t> routing{};  // empty, or [tokens - 1][layers][top_k] to replay
  int64_t rows() const { return std::ssize(tokens) - 1; }
  int64_t targets() const { return std::ssize(tokens) - prompt_length; }
};

/// Consecutive ranges [begin, end) of sequences, each of at most `max_tokens` rows (a longer single
/// sequence gets a range of its own).
std::vector<std::pair<int64_t, int64_t>> pack(std::span<const TrainSequence> sequences,
                                              int64_t max_tokens);

/// Reused from one micro-batch to the next: buffers grow to the largest and stay.
class SequenceBatch {
 public:
  /// For a device that has pages and RoPE tables of its own.
  explicit SequenceBatch(const ModelConfig& config) : config_(config) {}
  /// With the host's: `model`, which must outlive this object, gives shapes and tables.
  explicit SequenceBatch(PackedModel& model) : config_(model.config()), host_(&model) {}

  void assign(std::span<const TrainSequence> sequences, float inv_temperature);
  const RowBatch& rows() const { return rows_; }
  const Targets& targets() const { return targets_; }

 private:
  ModelConfig config_;
  PackedModel* host_ = nullptr;
  RowBatch rows_;
  Targets targets_;
  std::vector<int32_t> tokens_, target_tokens_, page_ids_, routing_;
  std::vector<int64_t> positions_, cu_seqlens_, target_rows_;
  std::vector<const int32_t*> row_pages_;
  AlignedBuffer<Bf16> kv_;
};

}  // namespace quads
