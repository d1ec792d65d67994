// Log-probabilities of a rollout's tokens under the trainer's forward.
#pragma once

#include <span>
#include <vector>

#include "model/blocks.h"
#include "model/packed_model.h"
#include "rollout/rollout.h"
#include "trainer/sequence_batch.h"

namespace quads {

/// The samples' sequences as a trainer packs them; `tokens` holds what the result points to.
/// Samples without a response are left out.
std::vector<TrainSequence> train_sequences(std::span<const Sample> samples,
                                           std::vector<std::vector<int32_t>>& tokens);

/// Of all response tokens, concatenated in the order of the samples, at `temperature`. `model`
/// gives shapes; `blocks` computes.
std::vector<float> trainer_logprobs(Blocks& blocks, PackedModel& model,
                                    std::span<const Sample> samples, float temperature);

}  // namespace quads
