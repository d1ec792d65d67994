// A linear layer on rows of BF16 activations: quantise as its precision says, then multiply.
#pragma once

#include <string_view>

#include "kernels/cpu/context.h"

namespace quads::kernels {

/// Per-channel residual sums of one linear layer's input, one row of counters per worker; integers,
/// so the total does not depend on who added what.
struct ResidualStats {
  int64_t* sums = nullptr;           // [workers][stride]; null: not gathered
  int64_t stride = 0;                // >= k
  const uint8_t* counted = nullptr;  // [rows of the block] 1 = this row counts; null: all
  int64_t* of_worker(int worker) const { return sums ? sums + worker * stride : nullptr; }
};

/// The operands of one GEMM: `rows` quantised rows.
struct Operand {
  const Bf16* q1 = nullptr;
  const Bf16* q2 = nullptr;
  int64_t ld1 = 0;
  int64_t ld2 = 0;
  int64_t residual_tiles = 0;
};

/// Elements of the two buffers that `quantize` fills for `rows` rows (q2 none without residual).
inline int64_t residual_width(const QuantizeSpec& spec) { return spec.residual_tiles * 32; }

/// Quantises rows x [rows, spec.k] BF16 into buffers from `arena`. `counted` belongs to these rows.
/// Error naming `where` (the layer's input) and the row on NaN or Inf.
Operand quantize(const CpuContext& context, const QuantizeSpec& spec, const Bf16* x, int64_t ldx,
                 int64_t rows, int64_t* stats, const uint8_t* counted, std::string_view where,
                 Arena& arena);

/// y[rows, n] = operand W^T. Split over the threads along n when `rows` is small, along rows
/// otherwise; any split gives the same bits.
void linear(const CpuContext& context, const Operand& operand, int64_t rows,
            const PackedMatrix& weight, float* y, int64_t ldy);

}  // namespace quads::kernels
