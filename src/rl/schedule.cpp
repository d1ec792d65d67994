#include "rl/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace quads {

double learning_rate(const LrSchedule& schedule, int64_t step) {
  require(step >= 0, "learning_rate: step is {}, expected at least 0", step);
  require(schedule.lr >= 0 && std::isfinite(schedule.lr),
          "--lr is {}, expected a finite value of at least 0", schedule.lr);
  require(schedule.min_lr >= 0 && schedule.min_lr <= schedule.lr,
          "--min-lr is {}, expected 0 to --lr {}", schedule.min_lr, schedule.lr);
  require(schedule.warmup_steps >= 0, "--lr-warmup-steps: warm-up is {} steps, expected at least 0",
          schedule.warmup_steps);
  const bool decays = schedule.decay != LrDecay::kConstant;
  require(
      !decays || schedule.warmup_steps < schedule.total_steps,
      "--lr-warmup-steps: a warm-up of {} steps leaves nothing of {} to decay over; give fewer, "
      "or --lr-decay constant",
      schedule.warmup_steps, schedule.total_steps);
  if (step < schedule.warmup_steps) {
    return schedule.lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  if (!decays) return schedule.lr;
  const double progress =
      std::min(1.0, static_cast<double>(step - schedule.warmup_steps) /
                        static_cast<double>(schedule.total_steps - schedule.warmup_steps));
  const double remaining = schedule.decay == LrDecay::kLinear
                               ? 1.0 - progress
                               : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return schedule.min_lr + (schedule.lr - schedule.min_lr) * remaining;
}

}  // namespace quads
