// One mixture-of-experts block against the scalar quantisers of src/numerics in plain loops: proves
// that formats, scales, masks and the order of blocks are wired to the kernels as they should be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "numerics/fp8.h"
#include "numerics/nvfp4.h"
#include "numerics/rac.h"
#include "tests/model/side.h"

namespace quads::testing {
namespace {

constexpr int64_t kRows = 48, kHidden = 64, kWidth = 64, kExperts = 6, kTopK = 2;

std::vector<float> values_of(const Parameters& parameters, int64_t index) {
  std::vector<float> values;
  for (int64_t i = 0; i < parameters.layout().at(index).size(); ++i) {
    values.push_back(to_float(parameters.of(index)[i]));
  }
  return values;
}

std::vector<float> weight_values(const Parameters& parameters, int64_t index, Format format) {
  const Parameter& p = parameters.layout().at(index);
  const std::vector<float> w = values_of(parameters, index);
  if (format == Format::kNvfp4) return fake_quantise_nvfp4(w, p.rows, p.cols, p.name);
  if (format == Format::kFp8) {
    return dequantise_fp8(quantise_fp8(w, p.rows, p.cols, kFp8Block, p.name), p.name);
  }
  return w;
}

/// What the product multiplies in place of x: q1 + q2.
std::vector<float> activation_values(const std::vector<float>& x, const Precision& precision,
                                     const std::vector<uint8_t>& mask) {
  const auto k = std::ssize(x);
  if (precision.activations == Format::kFp8) {
    return dequantise_fp8(quantise_fp8(x, 1, k, 1, "x"), "x");
  }
  if (precision.activations == Format::kBf16) return x;
  const QuantisedRow row = quantise_activation_row(x, "x");
  std::vector<float> q = row.values;
  if (!mask.empty()) {
    const CompensatedRow both = compensate_row(x, row.global_scale, mask, false, "x");
    for (size_t i = 0; i < q.size(); ++i) q[i] += both.correction.values[i];
  }
  return q;
}

std::vector<double> product(const std::vector<float>& w, const std::vector<float>& x) {
  std::vector<double> y(w.size() / x.size());
  for (size_t n = 0; n < y.size(); ++n) {
    for (size_t k = 0; k < x.size(); ++k) y[n] += double{w[n * x.size() + k]} * x[k];
  }
  return y;
}

/// y - x of the block: what the experts add, in double but for the written rounding points.
std::vector<double> expected_update(const Parameters& parameters, const Precision& precision,
                                    const RacMasks& masks, const float* x, const int32_t* experts) {
  const ParameterLayout::Layer& layer = parameters.layout().layers[0];
  const std::vector<float> norm = values_of(parameters, layer.post_norm);
  const std::vector<uint8_t> none;
  const auto& in_mask = masks.empty() ? none : masks.at(0, Site::kFfnIn);
  const auto& mid_mask = masks.empty() ? none : masks.at(0, Site::kFfnMid);
  double squares = 0.0;
  for (int64_t i = 0; i < kHidden; ++i) squares += double{x[i]} * x[i];
  const double scale = 1.0 / std::sqrt(squares / kHidden + 1e-6);
  std::vector<float> h;
  for (int64_t i = 0; i < kHidden; ++i) {
    h.push_back(to_float(to_bf16(static_cast<float>(x[i] * scale * norm[static_cast<size_t>(i)]))));
  }
  const std::vector<double> logits = product(values_of(parameters, layer.router), h);
  double chosen = 0.0;
  for (int64_t s = 0; s < kTopK; ++s) chosen += std::exp(logits[static_cast<size_t>(experts[s])]);

  std::vector<double> update(kHidden);
  const std::vector<float> input = activation_values(h, precision, in_mask);
  for (int64_t s = 0; s < kTopK; ++s) {
    const auto e = static_cast<size_t>(experts[s]);
    const std::vector<double> gu =
        product(weight_values(parameters, layer.gate_up[e], precision.weights), input);
    std::vector<float> middle;
    for (size_t i = 0; i < kWidth; ++i) {
      const double value = gu[i] / (1.0 + std::exp(-gu[i])) * gu[i + kWidth];
      middle.push_back(to_float(to_bf16(static_cast<float>(value))));
    }
    const std::vector<double> out =
        product(weight_values(parameters, layer.down[e], precision.weights),
                activation_values(middle, precision, mid_mask));
    for (size_t i = 0; i < kHidden; ++i) update[i] += std::exp(logits[e]) / chosen * out[i];
  }
  return update;
}

/// Error of each row, as a share of the update's largest value, in rising order.
std::vector<double> row_errors(const Precision& precision, const RacMasks& used,
                               const RacMasks& assumed) {
  Parameters parameters(moe_config());
  randomise(parameters, 3);
  Side::Options options;
  options.precision = precision;
  options.masks = used;
  Side side(parameters, options);
  std::vector<float> x(kRows * kHidden), y(x.size());
  RandomSequence random(9, RandomStream::kTask, 0);
  for (float& v : x) v = std::ldexp(random.uniform() - 0.5F, static_cast<int>(random.below(5)));
  std::vector<int32_t> experts(3 * kRows * kTopK);
  RowBatch batch;
  batch.rows = kRows;
  batch.record_routing = experts.data();
  side.blocks.ffn_forward(0, batch, x.data(), y.data());

  std::vector<double> errors;
  for (int64_t r = 0; r < kRows; ++r) {
    const std::vector<double> expected = expected_update(
        parameters, precision, assumed, x.data() + r * kHidden, experts.data() + r * kTopK);
    double error = 0.0, largest = 0.0;
    for (int64_t i = 0; i < kHidden; ++i) {
      const auto at = static_cast<size_t>(r * kHidden + i);
      const double update = double{y[at]} - x[at];
      error = std::max(error, std::abs(update - expected[static_cast<size_t>(i)]));
      largest = std::max(largest, std::abs(expected[static_cast<size_t>(i)]));
    }
    errors.push_back(error / largest);
  }
  std::ranges::sort(errors);
  return errors;
}

// FP32 sums of 64 terms err by less than 64 * 2^-24 of the terms' magnitudes, here 2e-5 of the
// result. In a few rows the sum lies next to a rounding boundary of BF16, and the neighbour may
// move a four-bit code: those rows are off by one step of one channel.
constexpr double kSummation = 2e-5, kOneStep = 0.1;

void expect_matching(const std::vector<double>& errors) {
  EXPECT_LT(errors[kRows * 8 / 10], kSummation);
  EXPECT_LT(errors.back(), kOneStep);
}

Precision named(const char* name, double ratio = 0.0,
                RacGranularity granularity = RacGranularity::kChannel) {
  return parse_precision(name, {.ratio = ratio, .granularity = granularity});
}

RacMasks some_masks(const Precision& precision, uint64_t seed) {
  Parameters parameters(moe_config());
  Side side(parameters, {.precision = precision});
  return random_masks(side.model, precision.rac, seed);
}

class EachFormat : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Format, EachFormat,
                         ::testing::Values("bf16", "fp8", "w8a16", "w4a16", "w16a4", "nvfp4"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EachFormat, BlockMultipliesTheScalarQuantisersValues) {
  expect_matching(row_errors(named(GetParam()), {}, {}));
}

TEST(CompensatedBlock, MultipliesTheScalarQuantisersValuesUnderAnyMask) {
  for (const RacGranularity granularity : {RacGranularity::kChannel, RacGranularity::kBlock}) {
    for (const double ratio : {0.125, 0.5, 0.75, 1.0}) {
      const Precision precision = named("nvfp4-rac", ratio, granularity);
      const RacMasks masks = some_masks(precision, 23);
      SCOPED_TRACE(precision_name(precision));
      expect_matching(row_errors(precision, masks, masks));
    }
  }
}

// The comparison above would see a wrong order of blocks: masks that differ by a block are far off.
TEST(CompensatedBlock, DiffersFromTheScalarQuantisersUnderAShiftedMask) {
  const Precision precision = named("nvfp4-rac", 0.25, RacGranularity::kBlock);
  const RacMasks used = some_masks(precision, 23);
  for (const Site site : {Site::kFfnIn, Site::kFfnMid}) {
    RacMasks shifted = used;
    std::ranges::rotate(shifted.at(0, site), shifted.at(0, site).begin() + 16);
    EXPECT_GT(row_errors(precision, used, shifted)[kRows / 4], 100 * kSummation);
  }
}

}  // namespace
}  // namespace quads::testing
