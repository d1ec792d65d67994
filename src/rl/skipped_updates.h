// Updates that are left out because their gradients are not finite.
#pragma once

#include <cstdint>

#include "trainer/optimizer.h"

namespace quads {

/// An overflow in one batch is survived by leaving out its update; several in a row say that the
/// weights or the options are broken.
class SkippedUpdates {
 public:
  static constexpr int64_t kMostInARow = 2;

  /// Whether `result` was applied. Error that names the step if more than kMostInARow updates in a
  /// row were not.
  bool applied(int64_t step, const Optimizer::Result& result);
  /// Those left out since the last call.
  int64_t take();

 private:
  int64_t in_a_row_ = 0;
  int64_t count_ = 0;
};

}  // namespace quads
