// Which sequences run, which wait, and which KV pages they hold: continuous batching over a bounded
// pool. Order of service is the order of the requests; nothing here can change a result.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "rollout/kv_cache.h"
#include "rollout/step.h"

namespace quads {

/// One response on its way. Its tokens are the group's prompt, then `response`.
struct Sequence {
  int32_t group = 0;
  int32_t sample_index = 0;
  std::vector<int32_t> response;
  std::vector<float> logprobs;
  std::vector<int32_t> routing;  // of the positions from the prompt's end on
  std::vector<int32_t> pages;
  int64_t computed = 0;       // positions in the pages
  int64_t ever_computed = 0;  // the same before any preemption: what has been counted
  bool attached = false;      // holds pages, or is computing the prompt's
  bool finished = false;
  FinishReason finish = FinishReason::kCancelled;
};

/// The samples of one request. The first to run computes the prompt's keys and values; the others
/// share its pages and copy the last, partial one before they write to it.
struct Group {
  const Request* request = nullptr;
  int32_t first_sequence = 0;
  int32_t owner = -1;            // the sequence that is computing the prompt
  int32_t detached = 0;          // unfinished sequences that are not attached
  std::vector<int32_t> pages;    // of the prompt, held for detached sequences; empty: not resident
  bool drawn = false;            // whether the first tokens have been drawn
  std::vector<int32_t> routing;  // of the prompt's positions
  int64_t prompt_length() const { return std::ssize(request->prompt); }
};

class Scheduler {
 public:
  struct Limits {
    int64_t max_running;
    int64_t prefill_chunk;  // rows of a step beyond one a sequence
  };

  /// Requests must outlive this object, be checked, and each fit the pool alone.
  Scheduler(std::span<const Request> requests, KvCache& cache, const Limits& limits);

  /// Admits what fits, and fills `batch` with the next rows of the running sequences and the draws
  /// they lead to. False if nothing is left to do.
  bool next_step(StepBatch& batch);
  /// Call after the batch has run, before its tokens are appended: notes what is in the pages and
  /// offers computed prompts to their groups.
  void rows_computed(const StepBatch& batch);
  void append(int32_t sequence, int32_t token, float logprob);
  void finish(int32_t sequence, FinishReason reason);

  std::vector<Sequence>& sequences() { return sequences_; }
  Sequence& sequence(int32_t id) { return sequences_[static_cast<size_t>(id)]; }
  Group& group_of(const Sequence& s) { return groups_[static_cast<size_t>(s.group)]; }
  int64_t preemptions() const { return preemptions_; }

 private:
  int64_t length(const Sequence& s) { return group_of(s).prompt_length() + std::ssize(s.response); }
  void admit();
  int64_t pages_wanted(int32_t id, int32_t previous);
  bool add_run(int32_t id, int64_t& budget, StepBatch& batch);
  bool reserve(int32_t id, int64_t end);
  bool reclaim(int32_t id);
  void attach(Sequence& s);
  void detach(int32_t id);
  void release(std::vector<int32_t>& pages);

  KvCache& cache_;
  Limits limits_;
  std::vector<Group> groups_;
  std::vector<Sequence> sequences_;
  std::vector<int32_t> running_;  // rising
  std::deque<int32_t> waiting_;   // rising, all above running_'s
  int64_t preemptions_ = 0;
};

}  // namespace quads
