// Residual activation compensation: what the first quantisation of a row leaves is quantised again
// on selected channels, so that y = W q1 + W_sel q2; and the statistics and the rule of the
// selection.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "numerics/nvfp4.h"

namespace quads {

struct CompensatedRow {
  QuantisedRow main;            // q1
  QuantisedRow correction;      // q2, under the same global scale
  std::vector<float> residual;  // x - q1 of every channel, selected or not [k]
};

/// q1 and q2 of a row x [k] under the power-of-two g. `mask` [k] is non-zero on the selected
/// channels; the others count as 0 before q2's block scales are taken. With `scale_floor`, a block
/// whose q1 scale s1 is not 0 and whose residual is not all 0 has a q2 scale of at least
/// max(2^-9, 2^(floor(log2 s1) - 3)); q1 + q2 then fits 11 significand bits.
/// For BF16 x the residual is exact in BF16. Errors as for quantise_row, and on a mask of another
/// size.
CompensatedRow compensate_row(std::span<const float> x, float g, std::span<const uint8_t> mask,
                              bool scale_floor, std::string_view tensor, int64_t row = 0);

/// |r| / g in units of 2^-16, rounded to nearest even: integers, because their sums do not depend
/// on the order of the rows. Fails from 2^40 on, which no residual under its own row's g can reach.
int64_t residual_units(float r, float g);

enum class RacGranularity { kChannel, kBlock };

/// The mask [k] (0 or 1) that selects the ceil(ratio * units) units with the largest residual sums,
/// ties to the lower index. `residual_sums` [k] are sums of residual_units; a unit is a channel or
/// an aligned block of 16 channels, whose sums are added. Fails unless 0 <= ratio <= 1, every sum
/// is in [0, 2^59) and, for blocks, k is a multiple of 16.
std::vector<uint8_t> select_mask(std::span<const int64_t> residual_sums, double ratio,
                                 RacGranularity granularity);

/// The share of the residual that the mask covers, in [0, 1]; 1 when there is no residual.
double covered_share(std::span<const int64_t> residual_sums, std::span<const uint8_t> mask);

}  // namespace quads
