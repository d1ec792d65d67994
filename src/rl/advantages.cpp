#include "rl/advantages.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace quads {
namespace {

void advantages_of_group(std::span<const float> rewards, const AdvantageOptions& options,
                         std::span<float> advantages) {
  double sum = 0;
  int64_t count = 0;
  for (float reward : rewards) {
    if (std::isnan(reward)) continue;
    sum += reward;
    ++count;
  }
  const double mean = sum / static_cast<double>(count);
  double squares = 0;
  for (float reward : rewards) {
    if (!std::isnan(reward)) squares += (reward - mean) * (reward - mean);
  }
  double scale = 1.0;
  if (options.divide_by_std) {
    scale = 1.0 / (std::sqrt(squares / static_cast<double>(count - 1)) + options.eps);
  }
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (!std::isnan(rewards[i])) advantages[i] = static_cast<float>((rewards[i] - mean) * scale);
  }
}

}  // namespace

std::vector<float> group_advantages(std::span<const float> rewards, int64_t group_size,
                                    const AdvantageOptions& options) {
  require(group_size >= 1, "group_advantages: group_size is {}, expected at least 1", group_size);
  require(options.eps >= 0, "group_advantages: eps is {}, expected at least 0", options.eps);
  const auto size = static_cast<size_t>(group_size);
  require(rewards.size() % size == 0,
          "group_advantages: {} rewards, expected a multiple of the group size {}", rewards.size(),
          group_size);
  for (size_t i = 0; i < rewards.size(); ++i) {
    require(!std::isinf(rewards[i]),
            "rewards: sample {} has reward {}, expected a finite value, or NaN for none", i,
            rewards[i]);
  }
  std::vector<float> advantages(rewards.size(), 0.0F);
  for (size_t begin = 0; begin < rewards.size(); begin += size) {
    const auto group = rewards.subspan(begin, size);
    // The mean of equal rewards may round away from them: equality is decided on the rewards.
    if (!group_is_informative(group)) continue;
    advantages_of_group(group, options, std::span(advantages).subspan(begin, size));
  }
  return advantages;
}

bool group_is_informative(std::span<const float> rewards) {
  float first = std::numeric_limits<float>::quiet_NaN();
  for (float reward : rewards) {
    if (std::isnan(reward)) continue;
    if (std::isnan(first)) first = reward;
    if (reward != first) return true;
  }
  return false;
}

std::vector<bool> trainable_samples(std::span<const float> rewards, int64_t group_size) {
  require(group_size >= 1 && std::ssize(rewards) % group_size == 0,
          "trainable_samples: {} rewards, expected a multiple of the group size {}", rewards.size(),
          group_size);
  const auto size = static_cast<size_t>(group_size);
  std::vector<bool> trainable(rewards.size());
  for (size_t begin = 0; begin < rewards.size(); begin += size) {
    const auto group = rewards.subspan(begin, size);
    const auto missing = std::ranges::count_if(group, [](float r) { return std::isnan(r); });
    if (group_size - missing < std::min<int64_t>(2, group_size)) continue;
    for (size_t i = 0; i < size; ++i) trainable[begin + i] = !std::isnan(group[i]);
  }
  return trainable;
}

float overlong_penalty(int64_t length, int64_t max_length, int64_t cache_length) {
  require(cache_length > 0 && cache_length <= max_length,
          "overlong_penalty: cache length is {}, expected 1 to the maximum length {}", cache_length,
          max_length);
  require(length >= 0, "overlong_penalty: length is {}, expected at least 0", length);
  const int64_t soft_limit = max_length - cache_length;
  if (length <= soft_limit) return 0.0F;
  if (length >= max_length) return -1.0F;
  return static_cast<float>(static_cast<double>(soft_limit - length) /
                            static_cast<double>(cache_length));
}

}  // namespace quads
