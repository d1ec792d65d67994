#include "rollout/step.h"

namespace quads {

void StepBatch::clear() {
  runs.clear();
  tokens.clear();
  positions.clear();
  page_ids.clear();
  counted.clear();
  logits_rows.clear();
  first_draw.clear();
  draws.clear();
  target_rows.clear();
  target_tokens.clear();
  target_logprobs.clear();
}

void StepBatch::begin_run(int32_t sequence) {
  runs.push_back({sequence, rows(), std::ssize(logits_rows), std::ssize(target_rows)});
}

void StepBatch::add_row(int32_t token, int64_t position, const int32_t* ids, bool counts) {
  tokens.push_back(token);
  positions.push_back(position);
  page_ids.push_back(ids);
  counted.push_back(counts ? 1 : 0);
}

void StepBatch::add_logits_row() {
  logits_rows.push_back(rows() - 1);
  first_draw.push_back(std::ssize(draws));
}

void StepBatch::add_target(int32_t token) {
  target_rows.push_back(rows() - 1);
  target_tokens.push_back(token);
  target_logprobs.push_back(0.0F);
}

}  // namespace quads
