// A small run's rollouts, tokens and bits of the log-probabilities, as written down once: the same
// on every machine and instruction set.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "rollout/testing.h"

namespace quads {
namespace {

using namespace quads::testing;

/// One line a sample: prompt, sample, then token:bits for each token.
std::string as_text(const std::vector<Sample>& samples) {
  std::ostringstream out;
  for (const Sample& s : samples) {
    out << s.prompt_index << ' ' << s.sample_index << ' ' << finish_reason_name(s.finish);
    for (size_t i = 0; i < s.response.size(); ++i) {
      out << ' ' << std::dec << s.response[i] << ':' << std::hex
          << std::bit_cast<uint32_t>(s.logprobs[i]);
    }
    out << std::dec << '\n';
  }
  return out.str();
}

class GoldenRollout : public ::testing::TestWithParam<std::tuple<kernels::Isa, std::string>> {};

TEST_P(GoldenRollout, IsWhatWasWrittenDown) {
  const auto& [isa, precision] = GetParam();
  if (!kernels::isa_available(isa)) {
    GTEST_SKIP() << "this CPU has no " << kernels::isa_name(isa) << ": NOT TESTED";
  }
  TestModel m(parse_precision(precision, {.ratio = 0.5}), {}, 2, isa);
  Engine engine(m.backend, {.max_context = 64});
  if (m.model.precision().rac.ratio > 0) {
    calibrate_masks(engine, make_requests(1), make_options());
  }
  const std::string actual = as_text(engine.generate(make_requests(2), make_options()));
  const std::string path =
      std::string(QUADS_SOURCE_DIR) + "/tests/rollout/golden/" + precision + ".txt";
  const char* update = std::getenv("QUADS_UPDATE_GOLDEN");
  if (update != nullptr && std::string(update) == "1") {
    std::ofstream out(path);
    out << actual;
    ASSERT_TRUE(out.good()) << "cannot write " << path;
    return;
  }
  std::ifstream in(path);
  ASSERT_TRUE(in.good()) << "no golden file " << path << ": make it with QUADS_UPDATE_GOLDEN=1";
  std::istringstream out(actual);
  std::string expected_line, line;
  while (std::getline(out, line)) {
    std::getline(in, expected_line);
    ASSERT_EQ(expected_line, line) << path;
  }
  EXPECT_FALSE(std::getline(in, expected_line)) << path << " has more samples";
}

INSTANTIATE_TEST_SUITE_P(
    EachIsa, GoldenRollout,
    ::testing::Combine(::testing::Values(kernels::Isa::kPortable, kernels::Isa::kAvx2,
                                         kernels::Isa::kAvx512, kernels::Isa::kAmx),
                       ::testing::Values("bf16", "fp8", "nvfp4", "nvfp4-rac")),
    [](const auto& info) {
      std::string name =
          std::string(kernels::isa_name(std::get<0>(info.param))) + "_" + std::get<1>(info.param);
      std::ranges::replace(name, '-', '_');
      return name;
    });

}  // namespace
}  // namespace quads
