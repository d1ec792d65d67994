#include "rewards/command_reward.h"

#include "io/json.h"

namespace quads {
namespace {

RewardResult result_of(const WorkerReply& reply) {
  if (reply.outcome != WorkerReply::Outcome::kAnswered) return {.failure = reply.failure};
  try {
    const Json answer = parse_json(reply.line, "the answer");
    if (const auto error = find_key<std::string>(answer, "error", "the answer")) {
      return {.failure = error->empty() ? "the program gave an error without a text" : *error};
    }
    return {.value = get<double>(answer, "reward", "the answer")};
  } catch (const Error& error) {
    return {.failure = fmt::format("{}; right are {{\"reward\": number}} and {{\"error\": text}}",
                                   error.what())};
  }
}

}  // namespace

CommandReward::CommandReward(WorkerPoolOptions options) : pool_(std::move(options)) {
  const RewardRequest empty;
  score({&empty, 1});
}

std::vector<RewardResult> CommandReward::score(std::span<const RewardRequest> requests) {
  std::vector<std::string> lines;
  for (const RewardRequest& request : requests) {
    const Json line = {{"prompt", request.prompt},
                       {"response", request.response},
                       {"label", request.label},
                       {"metadata", request.metadata == nullptr ? Json() : *request.metadata}};
    lines.push_back(line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  std::vector<RewardResult> results;
  for (const WorkerReply& reply : pool_.run(lines)) results.push_back(result_of(reply));
  return results;
}

std::unique_ptr<Reward> make_command_reward(const RewardOptions& options) {
  require(!options.command.empty(), "--rm-type command needs --rm-command");
  return std::make_unique<CommandReward>(
      WorkerPoolOptions{.command = {"/bin/sh", "-c", options.command},
                        .workers = options.num_workers(),
                        .request_s = options.timeout_s,
                        .cancel = options.cancel});
}

}  // namespace quads
