// Residual statistics and masks: which rows count, and the calibration of the first masks.
#include <algorithm>

#include "rollout/testing.h"

namespace quads {
namespace {

using namespace quads::testing;

Precision rac(double ratio) { return parse_precision("nvfp4-rac", {.ratio = ratio}); }

std::vector<std::vector<int64_t>> sums_of(TestModel& m, const std::vector<Request>& requests,
                                          GenerateOptions options) {
  Engine engine(m.backend, {.max_context = 64});
  ResidualSums sums(m.model.sites(), m.runtime.num_threads());
  options.residual_sums = &sums;
  engine.generate(requests, options);
  return sums.totals();
}

bool all_zero(const std::vector<std::vector<int64_t>>& sums) {
  return std::ranges::all_of(sums, [](const std::vector<int64_t>& site) {
    return std::ranges::all_of(site, [](int64_t sum) { return sum == 0; });
  });
}

TEST(ResidualStatistics, PromptPositionsDoNotCount) {
  TestModel m(rac(0.5));
  GenerateOptions options = make_options();
  options.max_new_tokens = 1;  // drawn, but never fed
  EXPECT_TRUE(all_zero(sums_of(m, make_requests(2), options)));
  options.max_new_tokens = 2;
  options.stop_tokens.clear();
  EXPECT_FALSE(all_zero(sums_of(m, make_requests(2), options)));
}

TEST(ResidualStatistics, AddOverSamples) {
  TestModel m(rac(0.5));
  const std::vector<Request> requests = make_requests(2);
  std::vector<std::vector<int64_t>> total = sums_of(m, {requests[0]}, make_options());
  const std::vector<std::vector<int64_t>> rest =
      sums_of(m, {requests.begin() + 1, requests.end()}, make_options());
  for (size_t s = 0; s < total.size(); ++s) {
    for (size_t c = 0; c < total[s].size(); ++c) total[s][c] += rest[s][c];
  }
  EXPECT_EQ(total, sums_of(m, requests, make_options()));
}

TEST(Calibration, SelectsByTheResidualsUnderFullMasks) {
  TestModel m(rac(0.25));
  Engine engine(m.backend, {.max_context = 64});
  const std::vector<Request> requests = make_requests(2);
  const RacMasks masks = calibrate_masks(engine, requests, make_options());
  EXPECT_EQ(m.model.masks(), masks);

  TestModel full(rac(0.25));
  full.model.refresh(full.runtime.context(), full_masks(full.model.sites()));
  EXPECT_EQ(select_masks(sums_of(full, requests, make_options()), {.ratio = 0.25}), masks);
  // Sparse layers 0 and 2: a quarter of 64 and of 32 channels; nothing elsewhere.
  for (int64_t layer = 0; layer < 3; ++layer) {
    const auto selected = [&](Site site) {
      const std::vector<uint8_t>& mask = masks.at(layer, site);
      return std::ranges::count(mask, 1);
    };
    EXPECT_EQ(selected(Site::kAttentionIn), 0);
    EXPECT_EQ(selected(Site::kAttentionOut), 0);
    EXPECT_EQ(selected(Site::kFfnIn), layer == 1 ? 0 : 16);
    EXPECT_EQ(selected(Site::kFfnMid), layer == 1 ? 0 : 8);
  }
}

TEST(Calibration, ChangesTheRolloutsThatFollow) {
  // Otherwise equal masks above would prove little.
  TestModel m(rac(0.25));
  Engine engine(m.backend, {.max_context = 64});
  const std::vector<Sample> before = engine.generate(make_requests(2), make_options());
  calibrate_masks(engine, make_requests(2), make_options());
  const std::vector<Sample> after = engine.generate(make_requests(2), make_options());
  bool differ = false;
  for (size_t i = 0; i < before.size(); ++i) differ |= before[i].logprobs != after[i].logprobs;
  EXPECT_TRUE(differ);
}

TEST(Calibration, SelectsEverythingWithoutSampling) {
  TestModel m(rac(1));
  Engine engine(m.backend, {.max_context = 64});
  EXPECT_EQ(calibrate_masks(engine, {}, make_options()), full_masks(m.model.sites()));
  EXPECT_EQ(m.model.masks(), full_masks(m.model.sites()));
}

TEST(MasksFit, TheModelThatTheyWereMadeForAndNoOther) {
  const TestModel m(rac(0.25));
  EXPECT_TRUE(masks_fit(m.masks, m.model.sites()));
  EXPECT_FALSE(masks_fit({}, m.model.sites()));
  EXPECT_FALSE(masks_fit(full_masks(m.model.sites()), m.model.sites()));
  EXPECT_FALSE(masks_fit(m.masks, TestModel(rac(0.5)).model.sites()));
  EXPECT_FALSE(masks_fit(m.masks, TestModel(Precision{}).model.sites()));
  const QuantizeScope linears{.what = QuantizeScope::What::kLinears};
  EXPECT_FALSE(masks_fit(m.masks, TestModel(rac(0.25), linears).model.sites()));
}

TEST(Calibration, HasNothingToSelectWithoutCompensation) {
  TestModel m(parse_precision("nvfp4", {}));
  Engine engine(m.backend, {.max_context = 64});
  EXPECT_TRUE(calibrate_masks(engine, make_requests(1), make_options()).empty());
}

}  // namespace
}  // namespace quads
