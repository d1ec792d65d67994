#include "eval/sample_file.h"

#include "io/json.h"

namespace quads {

std::string sample_line(const PromptLine& prompt, const Sample& sample, const Tokenizer* tokenizer,
                        const RewardResult* reward) {
  nlohmann::ordered_json line;
  line["index"] = sample.prompt_index;
  line["sample"] = sample.sample_index;
  line["prompt"] = nullptr;
  if (!prompt.prompt.empty()) {
    line["prompt"] = prompt.prompt;
  } else if (tokenizer) {
    line["prompt"] = tokenizer->decode(sample.prompt);
  }
  if (prompt.from_tokens) line["prompt_tokens"] = sample.prompt;
  line["response"] = nullptr;
  if (tokenizer) line["response"] = tokenizer->decode(sample.response);
  line["response_tokens"] = sample.response;
  line["logprobs"] = sample.logprobs;
  line["finish_reason"] = finish_reason_name(sample.finish);
  if (prompt.label) line["label"] = *prompt.label;
  if (reward != nullptr) {
    line["reward"] = nullptr;
    if (reward->failure.empty()) {
      line["reward"] = reward->value;
    } else {
      line["reward_failure"] = reward->failure;
    }
  }
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace quads
