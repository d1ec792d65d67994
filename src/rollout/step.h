// One step of the engine: the rows that go through the model together, the tokens to draw from what
// comes out, and how the threads share the work.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/cpu/context.h"
#include "model/cpu_blocks.h"
#include "rollout/kv_cache.h"
#include "rollout/requests.h"

namespace quads {

/// How a step is spread over the threads; the results are the same bits.
enum class Schedule : uint8_t {
  kAuto,      // by the size of the model
  kByRows,    // each thread takes whole sequences through the whole model
  kTogether,  // the threads share every block's work
};

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

class StepRunner {
 public:
  struct Options {
    kernels::SamplingParams sampling;
    uint64_t seed = 0;
    ResidualSums* residual_sums = nullptr;
    bool record_routing = false;
    int64_t max_context = 0;  // positions are below
  };

  StepRunner(kernels::CpuRuntime& runtime, PackedModel& model, KvCache& cache, Schedule schedule)
      : runtime_(runtime), model_(model), cache_(cache), schedule_(schedule) {}

  /// Runs the rows, and fills in the draws' tokens and the log-probabilities. Error, naming the
  /// prompt, on a log-probability that is not finite.
  void run(StepBatch& batch, const Options& options);

  /// The experts that took a row of the last run, into out [layers][top_k]; -1 in dense layers.
  void copy_routing(int64_t row, int32_t* out) const;
  int64_t routing_width() const {
    return model_.num_layers() * model_.config().num_experts_per_tok;
  }

 private:
  /// Whole runs: rows, logits rows and targets [begin, end).
  struct Part {
    int64_t row, row_end;
    int64_t logits_row, logits_row_end;
    int64_t target, target_end;
  };
  void cut(const StepBatch& batch, int64_t num_parts);
  void run_part(const kernels::CpuContext& context, StepBatch& batch, const Part& part,
                const Options& options);
  void draw_tokens(const kernels::CpuContext& context, StepBatch& batch, const Part& part,
                   const Options& options);

  kernels::CpuRuntime& runtime_;
  PackedModel& model_;
  KvCache& cache_;
  Schedule schedule_;
  std::vector<Part> parts_;
  AlignedBuffer<float> x_;        // [rows][hidden]
  std::vector<int32_t> routing_;  // a part after the other, each [layers][its rows][top_k]
  const float* cos_ = nullptr;
  const float* sin_ = nullptr;
};

}  // namespace quads
