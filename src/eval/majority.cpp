#include "eval/majority.h"

#include <map>
#include <string_view>

#include "base/error.h"

namespace quads {
namespace {

double majority(std::span<const Vote> votes) {
  struct Class {
    int64_t count = 0;
    bool right = false;
  };
  std::map<std::string_view, Class> classes;
  int64_t most = 0;
  for (const Vote& vote : votes) {
    if (!vote.answer) continue;
    Class& of_answer = classes[*vote.answer];
    if (of_answer.count++ == 0) of_answer.right = vote.right;
    most = std::max(most, of_answer.count);
  }
  int64_t ties = 0, right = 0;
  for (const auto& [answer, of_answer] : classes) {
    if (of_answer.count < most) continue;
    ++ties;
    right += of_answer.right;
  }
  return ties == 0 ? 0.0 : static_cast<double>(right) / static_cast<double>(ties);
}

}  // namespace

double majority_at_k(std::span<const Vote> votes, int64_t k) {
  require(k >= 1 && k <= std::ssize(votes),
          "maj@k: k is {}, expected 1 to the number of samples {}", k, votes.size());
  const int64_t blocks = std::ssize(votes) / k;
  double sum = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    sum += majority(votes.subspan(static_cast<size_t>(b * k), static_cast<size_t>(k)));
  }
  return sum / static_cast<double>(blocks);
}

}  // namespace quads
