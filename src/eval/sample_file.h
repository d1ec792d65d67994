// The lines that `quads rollout` writes.
#pragma once

#include <string>

#include "eval/prompt_file.h"
#include "rewards/reward.h"
#include "rollout/rollout.h"

namespace quads {

/// One sample as a line of JSON, with its newline: index, sample, prompt, prompt_tokens (if the
/// prompt was given as ids), response, response_tokens, logprobs, finish_reason, and if it was
/// scored
/// (`reward` not null) reward, or null and reward_failure. Texts are null without a tokenizer.
std::string sample_line(const PromptLine& prompt, const Sample& sample, const Tokenizer* tokenizer,
                        const RewardResult* reward);

}  // namespace quads
