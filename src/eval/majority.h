// maj@k: whether the answer that most samples of a problem give is right.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace quads {

struct Vote {
  std::optional<std::string> answer{};  // in normal form; none does not vote
  bool right = false;
};

/// Mean over the floor(n / k) blocks of k samples, one after the other, of a problem's n votes:
/// independent draws, so unbiased for k samples. A block's answer is the most frequent one; among
/// equally frequent ones each has the same chance, so the share of right ones counts. A block in
/// which nobody votes is wrong. Samples of one answer are as right as the first of them. Needs
/// 1 <= k <= n.
double majority_at_k(std::span<const Vote> votes, int64_t k);

}  // namespace quads
