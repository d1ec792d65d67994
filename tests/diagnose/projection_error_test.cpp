// Relative errors of projections, against values that are known beforehand.
#include "diagnose/projection_error.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "diagnose/testing.h"

namespace quads {
namespace {

constexpr Precision kW4A4{Format::kNvfp4, Format::kNvfp4, {}};
constexpr Precision kW4A16{Format::kNvfp4, Format::kBf16, {}};
constexpr QuantizeScope kLinears{.what = QuantizeScope::What::kLinears};

std::vector<Sample> some_samples() {
  std::vector<Sample> samples(3);
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].prompt = {1, 2, static_cast<int32_t>(3 + i)};
    for (int32_t t = 0; t < 20; ++t) {
      samples[i].response.push_back((t * 7 + static_cast<int32_t>(i)) % 32);
    }
  }
  return samples;
}

class ProjectionErrorTest : public testing::Test {
 protected:
  ProjectionErrorTest() : runtime_(kernels::best_isa(), 2), parameters_(small_moe()) {
    parameters_.initialise(5);
  }
  std::unique_ptr<PackedModel> pack(const Precision& precision, const QuantizeScope& scope = {}) {
    auto model = std::make_unique<PackedModel>(
        parameters_, PackedModel::Options{.precision = precision, .scope = scope});
    model->refresh(runtime_.context(), {});
    return model;
  }
  std::vector<ProjectionError> errors(const PackedModel& candidate) {
    const auto reference = pack({});
    const PackedModel* candidates[] = {&candidate};
    return projection_errors(runtime_.context(), *reference, candidates, some_samples());
  }

  kernels::CpuRuntime runtime_;
  Parameters parameters_;
};

TEST_F(ProjectionErrorTest, WeightsOnTheGridHaveNoErrorUnderW4A16) {
  // Each block of 16 holds a 6, so it has the scale 1, and every value is one of E2M1.
  constexpr float kGrid[] = {0, .5F, 1, 1.5F, 2, 3, 4, 6};
  RandomSequence random(1, RandomStream::kTask, 0);
  for (const Parameter& p : parameters_.layout().parameters) {
    if (p.vector) continue;
    for (int64_t i = 0; i < p.size(); ++i) {
      const float value = i % 16 == 0 ? 6.0F : kGrid[random.below(8)];
      parameters_.values()[p.offset + i] = to_bf16(random.below(2) ? value : -value);
    }
  }
  for (const ProjectionError& error : errors(*pack(kW4A16, kLinears))) {
    EXPECT_EQ(error.relative[0], 0) << error.layer << " " << error.projection;
  }
}

TEST_F(ProjectionErrorTest, RandomWeightsHaveTheErrorOfFourBits) {
  // Rounding to E2M1 under block scales leaves a relative error of about a tenth.
  const auto found = errors(*pack(kW4A16, kLinears));
  ASSERT_EQ(found.size(), 8);  // four projections in two layers
  EXPECT_EQ(found[0].projection, "qkv");
  EXPECT_EQ(found[1].projection, "out");
  EXPECT_EQ(found[2].projection, "gate_up");
  EXPECT_EQ(found[3].projection, "down");
  for (const ProjectionError& error : found) {
    EXPECT_GT(error.relative[0], .05) << error.projection;
    EXPECT_LT(error.relative[0], .15) << error.projection;
  }
}

TEST_F(ProjectionErrorTest, QuantisedActivationsAddTheirErrorInSquares) {
  const auto w4a16 = errors(*pack(kW4A16, kLinears)), w4a4 = errors(*pack(kW4A4, kLinears));
  const auto w16a4 = errors(*pack({Format::kBf16, Format::kNvfp4, {}}, kLinears));
  for (size_t i = 0; i < w4a4.size(); ++i) {
    const double sum = std::hypot(w4a16[i].relative[0], w16a4[i].relative[0]);
    EXPECT_NEAR(w4a4[i].relative[0], sum, .15 * sum) << w4a4[i].projection;
  }
}

TEST_F(ProjectionErrorTest, OnlyQuantisedProjectionsAreListed) {
  const auto found = errors(*pack(kW4A4, {.high_precision_first_layers = 1}));
  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(found[0].layer, 1);
  EXPECT_EQ(found[0].projection, "gate_up");
  EXPECT_EQ(found[1].projection, "down");
}

TEST_F(ProjectionErrorTest, ThreadsDoNotChangeIt) {
  const auto candidate = pack(kW4A4);
  const auto two = errors(*candidate);
  kernels::CpuRuntime one(kernels::best_isa(), 1);
  const auto reference = pack({});
  const PackedModel* candidates[] = {candidate.get()};
  const auto alone = projection_errors(one.context(), *reference, candidates, some_samples());
  for (size_t i = 0; i < two.size(); ++i) EXPECT_EQ(two[i].relative[0], alone[i].relative[0]);
}

}  // namespace
}  // namespace quads
