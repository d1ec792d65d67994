// One step of the engine: the rows that go through the model together, and the tokens to draw from
// what comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quads {

/// A token to draw: its key, and the result.
struct Draw {
  int32_t sequence;  // the caller's
  int32_t sample_index;
  int64_t prompt_index;
  int64_t position;
  int32_t token = -1;
  float logprob = 0.0F;
};

/// Rows in runs; a run is consecutive positions of one sequence, whose earlier positions are in the
/// KV pages. Buffers are kept over clear(), so that a step in steady state allocates nothing.
class StepBatch {
 public:
  struct Run {
    int32_t sequence;  // the caller's
    int64_t row;       // its first
    int64_t logits_row;
    int64_t target;
  };

  void clear();
  void begin_run(int32_t sequence);
  /// page_ids must stay valid while the step runs.
  void add_row(int32_t token, int64_t position, const int32_t* page_ids, bool counted);
  /// Asks for the distribution after the row added last; draws that follow are from it.
  void add_logits_row();
  void add_draw(const Draw& draw) { draws.push_back(draw); }
  /// Asks for the log-probability of `token` after the row added last.
  void add_target(int32_t token);

  int64_t rows() const { return std::ssize(tokens); }
  int64_t run_end(size_t run) const { return run + 1 < runs.size() ? runs[run + 1].row : rows(); }

  std::vector<Run> runs;
  std::vector<int32_t> tokens;
  std::vector<int64_t> positions;
  std::vector<const int32_t*> page_ids;
  std::vector<uint8_t> counted;

  std::vector<int64_t> logits_rows;
  std::vector<int64_t> first_draw;  // of each logits row
  std::vector<Draw> draws;

  std::vector<int64_t> target_rows;
  std::vector<int32_t> target_tokens;
  std::vector<float> target_logprobs;  // results
};

}  // namespace quads
