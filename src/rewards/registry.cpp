// The rewards by name: one line each.
#include <cmath>
#include <functional>

#include "rewards/code_reward.h"
#include "rewards/combined_reward.h"
#include "rewards/command_reward.h"
#include "rewards/exact_reward.h"
#include "rewards/math_reward.h"
#include "rewards/reward.h"
#include "rewards/routed_reward.h"

namespace quads {
namespace {

struct Entry {
  std::function<std::unique_ptr<Reward>(const RewardOptions& options)> make;
  bool needs_label;
};

const std::map<std::string, Entry>& table() {
  static const std::map<std::string, Entry> entries = {
      {"code", {make_code_reward, false}},  // test cases may be in the metadata
      {"command", {make_command_reward, false}},
      {"exact", {make_exact_reward, true}},
      {"math", {make_math_reward, true}},
  };
  return entries;
}

const Entry& entry(const std::string& option, const std::string& type) {
  const auto it = table().find(type);
  require(it != table().end(), "{}: unknown reward '{}'; there are: {}", option, type,
          fmt::join(reward_types(), ", "));
  return it->second;
}

// metadata[key] if it is a text that is not empty.
std::optional<std::string> text_in(const Json* metadata, const char* key) {
  if (metadata == nullptr) return std::nullopt;
  const auto it = metadata->find(key);
  if (it == metadata->end() || !it->is_string()) return std::nullopt;
  std::string text = it->get<std::string>();
  return text.empty() ? std::nullopt : std::optional(std::move(text));
}

}  // namespace

void check(const RewardOptions& options) {
  require(!options.types.empty(), "--rm-type: no reward is named; there are: {}",
          fmt::join(reward_types(), ", "));
  require(options.timeout_s > 0 && options.timeout_s < 1e6, "--rm-timeout: {} s is not in (0, 1e6)",
          options.timeout_s);
  require(options.weights.empty() || options.weights.size() == options.types.size(),
          "--rm-weights: {} weights for {} rewards ({})", options.weights.size(),
          options.types.size(), fmt::join(options.types, ", "));
  std::set<std::string> seen;
  for (const std::string& type : options.types) {
    entry("--rm-type", type);
    require(seen.insert(type).second, "--rm-type: '{}' is named twice", type);
  }
  for (const double weight : options.weights) {
    require(std::isfinite(weight), "--rm-weights: {} is not finite", weight);
  }
  for (const auto& [source, type] : options.by_source) {
    entry("--rm-by-source", type);
    seen.insert(type);
  }
  require(!seen.contains("command") || !options.command.empty(),
          "--rm-type command needs --rm-command");
}

std::unique_ptr<Reward> make_reward(const RewardOptions& options) {
  check(options);
  // One object a name, whoever uses it: some own processes.
  std::map<std::string, std::shared_ptr<Reward>> made;
  const auto get = [&](const std::string& option, const std::string& type) {
    const Entry& found = entry(option, type);
    std::shared_ptr<Reward>& reward = made[type];
    if (!reward) reward = found.make(options);
    return reward;
  };
  std::vector<CombinedReward::Part> parts;
  for (size_t i = 0; i < options.types.size(); ++i) {
    const std::string& type = options.types[i];
    const double weight = options.weights.empty() ? 1.0 : options.weights[i];
    parts.push_back({type, weight, get("--rm-type", type)});
  }
  for (const auto& [source, type] : options.by_source) get("--rm-by-source", type);
  for (const std::string& type : options.by_problem) get("'rm_type'", type);
  return std::make_unique<RoutedReward>(std::make_unique<CombinedReward>(std::move(parts)),
                                        std::move(made), options);
}

std::optional<std::string> own_reward(const Json* metadata) {
  if (metadata != nullptr && metadata->is_object()) {
    const auto it = metadata->find("rm_type");
    if (it != metadata->end() && !it->is_null() && !it->is_string()) {
      fail("metadata: 'rm_type' is {}, expected the name of a reward", json_excerpt(*it));
    }
  }
  return text_in(metadata, "rm_type");
}

std::vector<std::string> rewards_of(const RewardOptions& options, const Json* metadata) {
  if (auto type = own_reward(metadata)) return {*std::move(type)};
  const auto it = options.by_source.find(text_in(metadata, "data_source").value_or(""));
  return it != options.by_source.end() ? std::vector{it->second} : options.types;
}

bool needs_label(const std::string& type) { return entry("--rm-type", type).needs_label; }

std::vector<std::string> reward_types() {
  std::vector<std::string> names;
  for (const auto& [name, found] : table()) names.push_back(name);
  return names;
}

}  // namespace quads
