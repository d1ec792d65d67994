// The rollout engine: samples responses to prompts with continuous batching over a paged KV
// cache. What a sample is depends on weights, masks, prompt, key and sampling parameters alone: not
// on the batch, the number of pages or threads, or what else was asked for.
#pragma once

#include <span>
#include <vector>

#include "rollout/backend.h"
#include "rollout/kv_cache.h"
#include "rollout/requests.h"
#include "rollout/rollout.h"
#include "rollout/scheduler.h"

namespace quads {

class Engine {
 public:
  struct Options {
    int64_t max_running = 256;   // sequences in a step
    int64_t max_context = 4096;  // positions of a sequence: prompt and response
    /// KV pages of kernels::kPageSize positions; 0: as many as kv_memory_bytes hold, but no more
    /// than max_running sequences can use.
    int64_t kv_pages = 0;
    int64_t kv_memory_bytes = int64_t{1} << 30;
    int64_t prefill_chunk = 512;  // prompt rows of a step, beside one for each sequence
  };

  /// `backend` must be refreshed before anything runs, and may be refreshed between calls; it must
  /// outlive the engine, and serves the last engine made on it.
  Engine(RolloutBackend& backend, const Options& options);

  /// Error if generate() would refuse the requests: check_requests within this engine's limits.
  void check(std::span<const Request> requests, const GenerateOptions& options) const;

  /// All samples of all requests, in the order of the requests, then of the sample index. Errors:
  /// check() (before anything runs), and log-probabilities that are not finite.
  std::vector<Sample> generate(std::span<const Request> requests, const GenerateOptions& options);

  /// Log-probabilities of the samples' responses given their prompts, at `temperature` (greedy: 0),
  /// over the whole vocabulary: the same bits that generating them gave. Error, naming the prompt,
  /// on an empty prompt, a token outside the vocabulary, or a sample that does not fit.
  std::vector<std::vector<float>> score(std::span<const Sample> samples, float temperature);

  RolloutBackend& backend() { return backend_; }
  const KvCache& cache() const { return cache_; }
  /// Sequences put back for want of pages in the last generate(), to be computed again.
  int64_t preemptions() const { return preemptions_; }

 private:
  void record_routing(Scheduler& scheduler);

  void run(const RolloutBackend::StepOptions& options);

  RolloutBackend& backend_;
  Options options_;
  KvCache cache_;
  StepBatch batch_;
  int64_t preemptions_ = 0;
};

}  // namespace quads
