// What a checkpoint holds of an optimizer, wherever its state lies.
#include "trainer/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/model/side.h"

namespace quads::testing {
namespace {

// As on a device: every state is brought to the same place of the host.
class OneBufferOptimizer : public Optimizer {
 public:
  explicit OneBufferOptimizer(int64_t total) {
    for (std::vector<float>& state : states) state.resize(static_cast<size_t>(total));
  }
  float* grads() override { return nullptr; }
  Result step(float, float) override { return {}; }
  std::span<const float> state(State which) override {
    return buffer_ = states[static_cast<size_t>(which)];
  }
  void set_state(State which, std::span<const float> values) override {
    states[static_cast<size_t>(which)].assign(values.begin(), values.end());
  }
  void publish() override {}

  std::vector<float> states[3];

 private:
  std::vector<float> buffer_;
};

TEST(Checkpoint, HoldsEveryStateOfAnOptimizerThatBringsThemToOnePlace) {
  Parameters parameters(moe_config());
  randomise(parameters, 3);
  const ParameterLayout& layout = parameters.layout();
  OneBufferOptimizer saved(layout.total), loaded(layout.total);
  for (size_t s = 0; s < 3; ++s) {
    for (const Parameter& p : layout.parameters) {
      for (int64_t i = 0; i < p.size(); ++i) {
        saved.states[s][static_cast<size_t>(p.offset + i)] =
            static_cast<float>(s + 1) + static_cast<float>((p.offset + i) % 1021) * 0x1p-10F;
      }
    }
  }
  std::string folder = ::testing::TempDir() + "checkpoint_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  save_checkpoint(
      folder, 3, parameters, saved, {}, {{"step", 3}}, [](const auto&) {}, 0);
  const auto checkpoint = newest_checkpoint(folder);
  ASSERT_TRUE(checkpoint);
  RacMasks masks;
  load_checkpoint(*checkpoint, parameters, loaded, masks);
  for (size_t s = 0; s < 3; ++s) EXPECT_EQ(loaded.states[s], saved.states[s]) << "state " << s;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace quads::testing
