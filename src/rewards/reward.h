// What scores responses, and how it is chosen by name.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "io/json.h"

namespace quads {

/// One response to score. The views must live as long as the call.
struct RewardRequest {
  std::string_view prompt{};
  std::string_view response{};  // decoded; make_reward's rewards see it without a stop token's text
  std::string_view label{};     // the right answer, in the form that the reward expects
  const Json* metadata = nullptr;  // an object; null if the problem has none
};

struct RewardResult {
  double value = 0;
  /// Why no value could be had: a worker died, the infrastructure was too slow. Empty when scored.
  /// A response that is at fault itself (it hangs the checker, say) is scored, with 0.
  std::string failure{};
};

/// The user stopped the program while responses were being scored.
class Interrupted : public Error {
 public:
  using Error::Error;
};

class Reward {
 public:
  virtual ~Reward() = default;

  /// One result a request, in order. May use processes and threads of its own; deterministic for a
  /// deterministic scorer. Throws Error only where nothing can be scored at all, and Interrupted
  /// once RewardOptions::cancel is set.
  virtual std::vector<RewardResult> score(std::span<const RewardRequest> requests) = 0;

  /// The answer in `request.response` in a normal form: equal answers have equal texts (majority
  /// voting counts them). Nothing if the response has no answer or answers have no normal form.
  virtual std::optional<std::string> normal_answer(const RewardRequest& /*request*/) {
    return std::nullopt;
  }
};

struct RewardOptions {
  /// Names as reward_types() has them; several are added up.
  std::vector<std::string> types = {"exact"};
  /// One a type; none: all 1.
  std::vector<double> weights{};
  /// Names for the problems whose metadata has one of these values as "data_source", as verl's data
  /// have it: these are scored by that reward alone.
  std::map<std::string, std::string> by_source{};
  /// Names that problems have as "rm_type" in their metadata, as slime's data may: that reward
  /// alone scores them.
  std::set<std::string> by_problem{};
  /// Texts of stop tokens, one of which is taken off the response's end before it is scored.
  std::vector<std::string> stops{};
  /// Program of the reward `command`, with its arguments, as a shell would split it.
  std::string command{};
  /// Python with math-verify, for the reward `math`: a program in PATH or a path.
  std::string python = "python3";
  /// Processes that score at once; 0: one a core.
  int workers = 0;
  /// Seconds for one response, where processes score; for one test of a response's program
  /// (`code`).
  double timeout_s = 10;
  /// Where `code` runs programs: "bwrap", or "none" for programs that are trusted (sandbox.h).
  std::string code_sandbox = "bwrap";
  /// `code` is the fraction of the tests that are passed; else 1 for all of them and 0 for fewer.
  bool code_fraction = false;
  /// Ends score() with Interrupted once it is true; may be null.
  const std::atomic<bool>* cancel = nullptr;

  int num_workers() const { return workers > 0 ? workers : available_cores(); }
};

/// Error for values that are wrong whatever is scored: an unknown name, a name twice, another
/// number of weights than of types, a weight that is not finite, a type without an option that it
/// needs.
void check(const RewardOptions& options);

/// The reward that `options` describe. Error as check, for an unknown name in by_problem, or where
/// a program that scores cannot be started.
std::unique_ptr<Reward> make_reward(const RewardOptions& options);

/// The reward that a problem's metadata name as "rm_type", if they do.
std::optional<std::string> own_reward(const Json* metadata);

/// The names of what scores a problem with this metadata (null if it has none): its "rm_type", else
/// what by_source says, else `types`.
std::vector<std::string> rewards_of(const RewardOptions& options, const Json* metadata);

/// Whether the reward compares with a label, so that a problem must have one.
bool needs_label(const std::string& type);

/// The names that make_reward knows, sorted.
std::vector<std::string> reward_types();

}  // namespace quads
