#include "rl/skipped_updates.h"

#include <utility>

#include "base/error.h"

namespace quads {

bool SkippedUpdates::applied(int64_t step, const Optimizer::Result& result) {
  if (result.applied) {
    in_a_row_ = 0;
    return true;
  }
  ++count_;
  ++in_a_row_;
  require(in_a_row_ <= kMostInARow,
          "step {}: the gradient's norm is {}, and {} updates in a row were left out for such a "
          "norm: a smaller --lr or --clip-grad may help",
          step, result.grad_norm, in_a_row_);
  return false;
}

int64_t SkippedUpdates::take() { return std::exchange(count_, 0); }

}  // namespace quads
