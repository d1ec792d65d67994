// Runs one function of src/rl on a JSON object from standard input and prints its result as JSON,
// so that other languages' implementations can be held against it.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rl/advantages.h"
#include "rl/estimators.h"
#include "rl/gap.h"
#include "rl/policy_loss.h"
#include "rl/schedule.h"
#include "tool_main.h"

namespace quads {
namespace {

using nlohmann::json;
using Floats = std::vector<float>;

Floats floats(const json& in, const char* key) { return in.value(key, Floats{}); }

json run_policy_loss(const json& in) {
  const Floats logprobs = floats(in, "logprobs"), old_logprobs = floats(in, "old_logprobs"),
               rollout_logprobs = floats(in, "rollout_logprobs"),
               ref_logprobs = floats(in, "ref_logprobs"),
               sequence_advantages = floats(in, "sequence_advantages"),
               token_advantages = floats(in, "token_advantages");
  const auto offsets = in.at("sequence_offsets").get<std::vector<int32_t>>();
  PolicyBatch batch{logprobs,     old_logprobs,        rollout_logprobs,
                    ref_logprobs, sequence_advantages, token_advantages,
                    offsets};
  PolicyLossOptions options;
  options.ratio_level = parse_name<RatioLevel>("ratio", in.value("ratio", "token"));
  options.eps_clip = in.value("eps_clip", 0.2);
  options.eps_clip_high = in.value("eps_clip_high", 0.2);
  options.aggregation =
      parse_name<LossAggregation>("aggregation", in.value("aggregation", "sequence-mean"));
  options.max_response_length = in.value("max_response_length", int64_t{0});
  options.kl_estimator = parse_name<KlEstimator>("kl", in.value("kl", "k3"));
  options.kl_coef = in.value("kl_coef", 0.0);
  options.correction = {
      parse_name<CorrectionKind>("correction", in.value("correction", "none")),
      parse_name<CorrectionLevel>("correction_level", in.value("correction_level", "token")),
      in.value("low", 0.0), in.value("high", 2.0)};
  const PolicyLoss out = policy_loss(
      batch, {in.at("num_tokens").get<int64_t>(), in.at("num_sequences").get<int64_t>()}, options);
  return {{"loss", out.loss},
          {"policy_loss", out.policy_loss},
          {"kl_loss", out.kl_loss},
          {"grad", out.grad},
          {"clip_fraction", out.stats.clip_fraction()},
          {"truncated_fraction", out.stats.truncated_fraction()},
          {"masked_fraction", out.stats.masked_fraction()},
          {"ratio_mean", out.stats.ratio_mean()},
          {"ratio_max", out.stats.ratio_max},
          {"approx_kl", out.stats.approx_kl()},
          {"ess", out.stats.effective_sample_size()}};
}

json run_advantages(const json& in) {
  return group_advantages(floats(in, "rewards"), in.at("group_size").get<int64_t>(),
                          {.divide_by_std = in.at("divide_by_std").get<bool>()});
}

json run_gap(const json& in) {
  const GapMetrics gap = gap_metrics(floats(in, "rollout_logprobs"), floats(in, "train_logprobs"));
  return {{"max", gap.max},
          {"mean", gap.mean},
          {"p99", gap.p99},
          {"kl_k3", gap.kl_k3},
          {"ess", gap.ess}};
}

json run_pass_at_k(const json& in) {
  const Estimate estimate = pass_at_k(in.at("correct").get<std::vector<int64_t>>(),
                                      in.at("n").get<int64_t>(), in.at("k").get<int64_t>());
  return {{"mean", estimate.mean}, {"standard_error", estimate.standard_error.value_or(0.0)}};
}

json run_learning_rate(const json& in) {
  const LrSchedule schedule{parse_name<LrDecay>("decay", in.at("decay").get<std::string>()),
                            in.at("lr"), in.at("min_lr"), in.at("warmup_steps"),
                            in.at("total_steps")};
  json out = json::array();
  for (int64_t step = 0; step < in.at("steps").get<int64_t>(); ++step) {
    out.push_back(learning_rate(schedule, step));
  }
  return out;
}

json run(const json& in) {
  const auto function = in.at("function").get<std::string>();
  if (function == "policy_loss") return run_policy_loss(in);
  if (function == "advantages") return run_advantages(in);
  if (function == "gap") return run_gap(in);
  if (function == "pass_at_k") return run_pass_at_k(in);
  if (function == "learning_rate") return run_learning_rate(in);
  fail("unknown function '{}'", function);
}

}  // namespace
}  // namespace quads

int main() {
  return quads::tool_main([] { std::cout << quads::run(nlohmann::json::parse(std::cin)) << '\n'; });
}
