// Multiplication problems, solutions and their reward.
#include "tasks/multiply.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/random.h"
#include "tasks/permutation.h"

namespace quads {
namespace {

constexpr uint64_t kHeldOutSalt = 0x6D756C7469706C79;  // "multiply"
constexpr uint64_t kMaxEvalProblems = 16'384;
constexpr int kMaxDigits = 6;

// The last word of a draw's counter says what it is for, so that draws never share a counter.
enum Draw : uint32_t { kPair = 0, kHeldOut = 1, kNoise = 2 };

uint64_t power_of_ten(int exponent) {
  uint64_t power = 1;
  for (int i = 0; i < exponent; ++i) {
    power *= 10;
  }
  return power;
}

// Numbers of `digits` digits: from smallest(digits), count(digits) of them.
uint64_t smallest(int digits) { return power_of_ten(digits - 1); }
uint64_t count(int digits) { return 9 * power_of_ten(digits - 1); }

Problem make_problem(int64_t index, uint64_t a, uint64_t b) {
  return {index, fmt::format("{}*{}=", a, b), std::to_string(a * b)};
}

uint64_t parse_factor(std::string_view text, const Problem& problem) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(
      error == std::errc() && end == text.data() + text.size() && value < power_of_ten(kMaxDigits),
      "'{}' is not a multiplication prompt", problem.prompt);
  return value;
}

// `value` moved by one power of ten, up or down, that is not above its first digit; never below 0.
uint64_t off_by_power_of_ten(uint64_t value, uint32_t which, uint32_t direction) {
  const auto digits = static_cast<uint32_t>(std::to_string(value).size());
  const uint64_t step = power_of_ten(static_cast<int>((uint64_t{which} * digits) >> 32));
  return (direction & 1U) != 0 && value >= step ? value - step : value + step;
}

}  // namespace

MultiplyTask::MultiplyTask(const MultiplyOptions& options) : options_(options) {
  for (const int digits : {options.first_digits, options.second_digits}) {
    require(digits >= 1 && digits <= kMaxDigits,
            "task multiply: {} digits for a factor, but 1..{} are supported", digits, kMaxDigits);
  }
  require(options.noise >= 0 && options.noise <= 1, "task multiply: noise = {} is not in [0, 1]",
          options.noise);
  const uint64_t columns = count(options.second_digits);
  const uint64_t num_pairs = count(options.first_digits) * columns;
  const Permutation order(num_pairs, kHeldOutSalt, 0);
  for (uint64_t i = 0; i < num_pairs && eval_pairs_.size() < kMaxEvalProblems; ++i) {
    const uint64_t pair = order(i);
    const uint64_t a = smallest(options.first_digits) + pair / columns;
    const uint64_t b = smallest(options.second_digits) + pair % columns;
    if (is_held_out(a, b)) {
      eval_pairs_.push_back({a, b});
    }
  }
}

bool MultiplyTask::is_held_out(uint64_t a, uint64_t b) {
  const auto [low, high] = std::minmax(a, b);
  return random_words(kHeldOutSalt, RandomStream::kTask, low, static_cast<uint32_t>(high),
                      kHeldOut)[0] %
             4 ==
         0;
}

Problem MultiplyTask::train_problem(uint64_t seed, int64_t index) const {
  for (uint32_t attempt = 0;; ++attempt) {
    const auto words =
        random_words(seed, RandomStream::kTask, static_cast<uint64_t>(index), attempt, kPair);
    const uint64_t a =
        smallest(options_.first_digits) + ((words[0] * count(options_.first_digits)) >> 32);
    const uint64_t b =
        smallest(options_.second_digits) + ((words[1] * count(options_.second_digits)) >> 32);
    if (!is_held_out(a, b)) {
      return make_problem(index, a, b);
    }
  }
}

Problem MultiplyTask::eval_problem(int64_t index) const {
  require(index >= 0 && index < num_eval_problems(),
          "task multiply: evaluation problem {} of {} does not exist", index, num_eval_problems());
  const Pair pair = eval_pairs_[static_cast<size_t>(index)];
  return make_problem(index, pair.a, pair.b);
}

std::vector<RewardResult> MultiplyReward::score(std::span<const RewardRequest> requests) {
  std::vector<RewardResult> results;
  results.reserve(requests.size());
  for (const RewardRequest& request : requests) {
    results.push_back({.value = normal_answer(request) == request.label ? 1.0 : 0.0});
  }
  return results;
}

std::optional<std::string> MultiplyReward::normal_answer(const RewardRequest& request) {
  std::string_view response = request.response;
  if (response.empty() || response.find('$') != response.size() - 1) {
    return std::nullopt;
  }
  response.remove_suffix(1);
  return std::string(response.substr(response.rfind('=') + 1));  // npos + 1 is 0
}

std::optional<std::string> MultiplyTask::solution(const Problem& problem, uint64_t seed) const {
  const std::string_view prompt = problem.prompt;
  const size_t times = prompt.find('*');
  require(times != std::string_view::npos && prompt.ends_with('='),
          "'{}' is not a multiplication prompt", prompt);
  const uint64_t a = parse_factor(prompt.substr(0, times), problem);
  const std::string_view b_digits = prompt.substr(times + 1, prompt.size() - times - 2);
  const uint64_t b = parse_factor(b_digits, problem);

  uint32_t number = 0;  // of the solution, in the order of writing
  const auto write_down = [&](uint64_t value) {
    const auto words = random_words(seed, RandomStream::kTask, static_cast<uint64_t>(problem.index),
                                    number++, kNoise);
    const bool wrong = uniform_from_bits(words[0]) < options_.noise;
    return wrong ? off_by_power_of_ten(value, words[1], words[2]) : value;
  };

  if (b_digits.size() == 1) {
    return fmt::format("{}$", write_down(a * b));
  }
  std::string terms;
  std::string products;
  uint64_t sum = 0;
  for (size_t i = 0; i < b_digits.size(); ++i) {
    const uint64_t power = power_of_ten(static_cast<int>(i));
    const uint64_t factor = b / power % 10 * power;
    const uint64_t product = write_down(a * factor);
    const char* plus = i == 0 ? "" : "+";
    terms += fmt::format("{}{}*{}", plus, a, factor);
    products += fmt::format("{}{}", plus, product);
    sum += product;
  }
  return fmt::format("{}={}={}$", terms, products, write_down(sum));
}

std::optional<CharacterVocabulary> MultiplyTask::vocabulary() const {
  CharacterVocabulary vocabulary{
      .tokens = {"<pad>", "$"}, .special = {"<pad>"}, .eos = "$", .pad = "<pad>"};
  for (const char character : std::string_view("0123456789*+=")) {
    vocabulary.tokens.emplace_back(1, character);
  }
  return vocabulary;
}

std::unique_ptr<Task> make_multiply_task(const Json& options) {
  const std::string where = "task multiply";
  require_known_options(options, {"first_digits", "second_digits", "noise"}, where);
  const MultiplyOptions defaults;
  return std::make_unique<MultiplyTask>(MultiplyOptions{
      .first_digits = get_or(options, "first_digits", defaults.first_digits, where),
      .second_digits = get_or(options, "second_digits", defaults.second_digits, where),
      .noise = get_or(options, "noise", defaults.noise, where),
  });
}

}  // namespace quads
