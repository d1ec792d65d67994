// Gradients of weight matrices: dW = dY^T X, where X is what the forward multiplied, straight
// through the rounding.
#pragma once

#include <span>

#include "kernels/cpu/linear.h"

namespace quads::kernels {

/// The inputs of a linear layer for all rows of a batch, in the natural order of K: the quantised
/// values, under compensation bf16(q1 + m q2).
class GradientOperand {
 public:
  /// Room for `rows` rows, to be filled by store or quantize.
  GradientOperand(const QuantizeSpec& forward, int64_t rows, Arena& arena);
  /// Rows [.., k] that the forward multiplied as they are; not to be filled.
  GradientOperand(Bf16* values, int64_t k) : spec_{.k = k}, values_(values) {}

  /// Takes `count` rows of the forward's operand as rows row... .
  void store(const CpuContext& context, int64_t row, int64_t count, const Operand& forward);
  /// The same of BF16 rows that the backward need not multiply.
  void quantize(const CpuContext& context, int64_t row, int64_t count, const Bf16* x, int64_t ldx,
                Arena& arena);

  const Bf16* row(int64_t r) const { return values_ + r * spec_.k; }
  int64_t k() const { return spec_.k; }
  /// The factor that the stored values carry.
  float scale() const { return spec_.out_scale; }

 private:
  QuantizeSpec spec_;
  Bf16* values_;  // [rows, k], natural order
};

/// One product dw [n rounded up to 16, k] += dY^T X over `rows` consecutive rows of both.
struct WeightGradient {
  const Bf16* dy;  // [rows, n rounded up to 16], row stride lddy
  int64_t lddy;
  const GradientOperand* x;
  int64_t x_row;  // where the rows of X start
  int64_t rows;
  int64_t n;
  float* dw;
};

/// Runs all products, cut into strips of dw that threads take one by one; the order of summation
/// over the rows does not depend on the threads.
void weight_gradients(const CpuContext& context, std::span<const WeightGradient> products);

}  // namespace quads::kernels
