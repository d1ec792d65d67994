// The decomposition on a small model, with the rollout's kernels as the trainer's.
#include "diagnose/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "diagnose/diagnosis_report.h"
#include "diagnose/testing.h"
#include "io/json.h"
#include "model/cpu_blocks.h"

namespace quads {
namespace {

class DiagnosisTest : public testing::Test {
 protected:
  DiagnosisTest() : runtime_(kernels::best_isa(), 2), parameters_(small_moe()) {
    parameters_.initialise(3);
    options_.requests = small_requests(6, 4);
    options_.rac.ratio = 1.0;
    options_.sampling.max_new_tokens = 12;
    options_.engine.max_context = context_of(options_.requests, 12);
  }
  Diagnosis run() { return diagnose(runtime_, parameters_, options_); }

  kernels::CpuRuntime runtime_;
  Parameters parameters_;
  DiagnosisOptions options_;
};

bool all_zero(const Delta& delta) {
  return std::ranges::all_of(delta.values, [](double d) { return d == 0; });
}

TEST_F(DiagnosisTest, CoversEveryPairAndEveryTokenAddsUp) {
  const Diagnosis diagnosis = run();
  ASSERT_EQ(diagnosis.pairs.size(), 4);
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"nvfp4", "bf16"}, {"nvfp4", "w4a16"}, {"nvfp4-rac100", "bf16"}, {"nvfp4-rac100", "w4a16"}};
  for (size_t p = 0; p < 4; ++p) {
    const PairDiagnosis& pair = diagnosis.pairs[p];
    EXPECT_EQ(pair.rollout, expected[p].first);
    EXPECT_EQ(pair.trainer, expected[p].second);
    ASSERT_EQ(pair.deltas.size(), 4);
    ASSERT_EQ(pair.deltas[3].values.size(), 6 * 4 * 12);
    for (size_t i = 0; i < pair.deltas[3].values.size(); ++i) {
      ASSERT_EQ(pair.deltas[0].values[i] + pair.deltas[1].values[i] + pair.deltas[2].values[i],
                pair.deltas[3].values[i]);
    }
  }
}

TEST_F(DiagnosisTest, SharedKernelsHaveNoNumericalPartAndW4A16TrainersNoWeightPart) {
  const Diagnosis diagnosis = run();
  for (const PairDiagnosis& pair : diagnosis.pairs) {
    EXPECT_FALSE(all_zero(pair.deltas[0])) << pair.rollout;
    EXPECT_EQ(all_zero(pair.deltas[1]), pair.trainer == "w4a16") << pair.trainer;
    EXPECT_TRUE(all_zero(pair.deltas[2])) << pair.trainer;
  }
}

TEST_F(DiagnosisTest, FullCompensationShrinksTheActivationPart) {
  const Diagnosis diagnosis = run();
  EXPECT_LT(diagnosis.pairs[2].parts[0].mean, .6 * diagnosis.pairs[0].parts[0].mean);
}

TEST_F(DiagnosisTest, OtherKernelsShowUpAsTheNumericalPart) {
  // Blocks of other weights stand for an engine with another rounding.
  Parameters other(small_moe());
  other.initialise(4);
  std::unique_ptr<PackedModel> packed;
  options_.trainer_blocks = [&](const PackedModel& model) {
    packed = std::make_unique<PackedModel>(
        other, PackedModel::Options{.precision = model.precision(), .scope = model.scope()});
    packed->refresh(runtime_.context(), {});
    return std::make_unique<CpuBlocks>(runtime_.context(), *packed);
  };
  const Diagnosis diagnosis = run();
  for (const PairDiagnosis& pair : diagnosis.pairs) {
    EXPECT_FALSE(all_zero(pair.deltas[2]));
    EXPECT_EQ(pair.dominant(), "delta_num");
  }
}

TEST_F(DiagnosisTest, ProjectionErrorsCoverTheExpertsOfEveryLayer) {
  const Diagnosis diagnosis = run();
  EXPECT_EQ(diagnosis.candidates, (std::vector<std::string>{"w4a16", "nvfp4", "nvfp4-rac100"}));
  ASSERT_EQ(diagnosis.projections.size(), 4);
  for (const ProjectionError& error : diagnosis.projections) {
    EXPECT_GT(error.relative[1], error.relative[2]) << error.layer << error.projection;
    EXPECT_GT(error.relative[2], .9 * error.relative[0]) << error.layer << error.projection;
  }
}

TEST_F(DiagnosisTest, JsonHoldsTheFiguresOfTheTables) {
  const Diagnosis diagnosis = run();
  const Json json = parse_json(diagnosis_json(diagnosis), "diagnosis");
  ASSERT_EQ(json["pairs"].size(), 4);
  EXPECT_EQ(json["pairs"][0]["parts"]["gap"]["max"].get<double>(), diagnosis.pairs[0].gap().max);
  EXPECT_EQ(json["projections"][0]["relative_error"]["nvfp4"].get<double>(),
            diagnosis.projections[0].relative[1]);
  EXPECT_THAT(diagnosis_tables(diagnosis), testing::HasSubstr("nvfp4-rac100 / w4a16"));
}

TEST_F(DiagnosisTest, GreedySamplingAndNoCompensationAreErrors) {
  options_.sampling.sampling.temperature = 0;
  EXPECT_THROW(run(), Error);
  options_.sampling.sampling.temperature = 1;
  options_.rac.ratio = 0;
  EXPECT_THROW(run(), Error);
}

}  // namespace
}  // namespace quads
