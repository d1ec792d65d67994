// The learning rate as a function of the update's number.
#pragma once

#include <cstdint>

#include "rl/names.h"

namespace quads {

enum class LrDecay { kConstant, kCosine, kLinear };

template <>
inline constexpr std::array<std::pair<std::string_view, LrDecay>, 3> kNames<LrDecay>{
    {{"constant", LrDecay::kConstant}, {"cosine", LrDecay::kCosine}, {"linear", LrDecay::kLinear}}};

struct LrSchedule {
  LrDecay decay = LrDecay::kConstant;
  double lr = 0;             // reached at the end of the warm-up
  double min_lr = 0;         // reached at total_steps; not used by kConstant
  int64_t warmup_steps = 0;  // within total_steps
  int64_t total_steps = 0;   // updates of the whole run; not used by kConstant
};

/// Learning rate of update `step` (from 0). Warm-up: lr (step + 1) / warmup_steps, so the first
/// update does something. Then from lr at step warmup_steps to min_lr at total_steps, along half a
/// cosine or a line, and min_lr beyond. Errors: a negative step or count, min_lr not in [0, lr], a
/// decay with warmup_steps >= total_steps.
double learning_rate(const LrSchedule& schedule, int64_t step);

}  // namespace quads
