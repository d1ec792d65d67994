// Residual activation compensation.
#include "numerics/rac.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "numerics/e4m3.h"

namespace quads {
namespace {

// The floor under q2's scale for the q1 scale `s1` (a code, not 0): a power of two >= 2^-9.
uint8_t correction_scale_floor(uint8_t s1) {
  const int exponent = std::ilogb(e4m3_decode(s1));
  return e4m3_encode(std::max(kE4m3MinSubnormal, std::ldexp(1.0F, exponent - 3)));
}

// Applies the floor to q2 block by block; only blocks whose scale rises are encoded again.
void raise_scales(std::span<const float> residual, const QuantisedRow& main, QuantisedRow& q2) {
  for (size_t block = 0; block < main.block_scales.size(); ++block) {
    const std::span<const float> r = residual.subspan(block * kNvfp4Block, kNvfp4Block);
    const bool any = std::any_of(r.begin(), r.end(), [](float value) { return value != 0.0F; });
    if (main.block_scales[block] == 0 || !any) continue;
    const uint8_t floor = correction_scale_floor(main.block_scales[block]);
    uint8_t& sf = q2.block_scales[block];
    if (sf >= floor) continue;  // positive E4M3 codes are ordered like their values
    sf = floor;
    for (int64_t i = 0; i < kNvfp4Block; ++i) {
      const size_t at = block * kNvfp4Block + i;
      q2.codes[at] = nvfp4_code(r[i], sf, q2.global_scale);
      q2.values[at] = nvfp4_value(q2.codes[at], sf, q2.global_scale);
    }
  }
}

}  // namespace

CompensatedRow compensate_row(std::span<const float> x, float g, std::span<const uint8_t> mask,
                              bool scale_floor, std::string_view tensor, int64_t row) {
  require(mask.size() == x.size(), "{}: a mask of {} channels for a row of {}", tensor, mask.size(),
          x.size());
  require(is_power_of_two(g), "{}: global scale {}; compensation needs a power of two", tensor, g);
  CompensatedRow result{quantise_row(x, g, tensor, row), {}, std::vector<float>(x.size())};
  std::vector<float> selected(x.size(), 0.0F);
  for (size_t i = 0; i < x.size(); ++i) {
    result.residual[i] = x[i] - result.main.values[i];
    if (mask[i] != 0) selected[i] = result.residual[i];
  }
  result.correction = quantise_row(selected, g, tensor, row);
  if (scale_floor) raise_scales(selected, result.main, result.correction);
  return result;
}

int64_t residual_units(float r, float g) {
  const double units = std::fabs(static_cast<double>(r)) / g * 65536.0;
  require(units < 0x1p40, "residual {} under the global scale {} is out of range", r, g);
  return std::llrint(units);
}

std::vector<uint8_t> select_mask(std::span<const int64_t> residual_sums, double ratio,
                                 RacGranularity granularity) {
  const auto k = static_cast<int64_t>(residual_sums.size());
  const int64_t width = granularity == RacGranularity::kBlock ? kNvfp4Block : 1;
  require(ratio >= 0.0 && ratio <= 1.0, "RAC ratio {}; it must be in [0, 1]", ratio);
  require(k % width == 0, "RAC: {} channels; blocks need a multiple of 16", k);
  std::vector<int64_t> sums(k / width, 0);
  for (int64_t channel = 0; channel < k; ++channel) {
    require(residual_sums[channel] >= 0 && residual_sums[channel] < (int64_t{1} << 59),
            "RAC: channel {}: residual sum {} is out of range", channel, residual_sums[channel]);
    sums[channel / width] += residual_sums[channel];
  }
  const auto units = static_cast<int64_t>(sums.size());
  // A product like .07 * 100 = 7.000000000000001 means 7.
  const auto count = static_cast<int64_t>(std::ceil(ratio * static_cast<double>(units) - 1e-9));
  std::vector<int64_t> order(units);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return sums[a] > sums[b]; });
  std::vector<uint8_t> mask(k, 0);
  for (int64_t i = 0; i < count; ++i) {
    std::fill_n(mask.begin() + order[i] * width, width, uint8_t{1});
  }
  return mask;
}

double covered_share(std::span<const int64_t> residual_sums, std::span<const uint8_t> mask) {
  require(mask.size() == residual_sums.size(), "RAC: a mask of {} channels for sums of {}",
          mask.size(), residual_sums.size());
  double total = 0.0;
  double covered = 0.0;
  for (size_t i = 0; i < mask.size(); ++i) {
    total += static_cast<double>(residual_sums[i]);
    if (mask[i] != 0) covered += static_cast<double>(residual_sums[i]);
  }
  return total > 0.0 ? covered / total : 1.0;
}

}  // namespace quads
