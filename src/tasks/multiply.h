// The built-in task: multiply two numbers, with the partial products written out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/task.h"

namespace quads {

struct MultiplyOptions {
  int first_digits = 2;   // 1..6; factors have no leading zero
  int second_digits = 2;  // 1..6
  double noise = 0.0;     // in [0, 1]: the probability that a number of a solution is wrong
};

/// 1 if the response ends with '$', has no other '$', and the text between its last '=' (its start,
/// if it has none) and the '$', which is the answer's normal form, is the label exactly; else 0.
class MultiplyReward : public Reward {
 public:
  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override;
  std::optional<std::string> normal_answer(const RewardRequest& request) override;
};

/// The prompt is "37*84=". The solution takes the second factor digit by digit from the lowest,
/// each times its power of ten, zeros included: "37*4+37*80=148+2960=3108$"; with three digits
/// "37*4+37*80+37*200=148+2960+7400=10508$". With a one-digit second factor the only partial
/// product is the answer: "148$". '$' is the stop token.
///
/// Noise: each number that has to be computed (every partial product, then the sum) is wrong with
/// probability `noise`, independently: it is off by one power of ten not above its first digit,
/// upwards or downwards. The sum is that of the numbers as written, wrong ones included, before its
/// own error: the answer thus remains a function of the text before it, so a model learns to add
/// and sees the noise as noise, instead of being asked to guess the product over the heads of the
/// partial products. A solution is right when no number is wrong, but for the rare errors that
/// cancel: with probability about (1 - noise)^(digits + 1), .51 for two digits and noise .2.
///
/// Held-out problems: a quarter of the unordered pairs {a, b}, by a hash with a fixed salt; the
/// training draws take the others, so that neither a*b nor b*a of a held-out pair is trained on.
class MultiplyTask : public Task {
 public:
  /// Error for an option out of range.
  explicit MultiplyTask(const MultiplyOptions& options);

  Problem train_problem(uint64_t seed, int64_t index) const override;
  /// All held-out pairs in a fixed random order, or the first 16,384 of them.
  int64_t num_eval_problems() const override { return static_cast<int64_t>(eval_pairs_.size()); }
  Problem eval_problem(int64_t index) const override;
  std::unique_ptr<Reward> reward() const override { return std::make_unique<MultiplyReward>(); }
  /// `problem` must be one of this task.
  std::optional<std::string> solution(const Problem& problem, uint64_t seed) const override;
  std::optional<CharacterVocabulary> vocabulary() const override;

  static bool is_held_out(uint64_t a, uint64_t b);

 private:
  struct Pair {
    uint64_t a, b;
  };

  MultiplyOptions options_;
  std::vector<Pair> eval_pairs_;
};

/// Options: first_digits, second_digits, noise.
std::unique_ptr<Task> make_multiply_task(const Json& options);

}  // namespace quads
