// AdamW on a GPU has the CPU's bits.
#include "cuda/cuda_optimizer.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/cuda/device_array.h"
#include "model/side.h"
#include "rollout/testing.h"

namespace quads::testing {
namespace {

using cuda::CudaOptimizer;
using cuda::DeviceParameters;
using cuda::HostParameters;

struct Both {
  explicit Both(const AdamwOptions& options)
      : parameters(random_parameters()),
        runtime(kernels::best_isa(), 2),
        cpu(runtime.context(), parameters, options),
        on_device(HostParameters(parameters), stream.get()),
        device(stream.get(), on_device, options) {}

  static Parameters random_parameters() {
    Parameters random(moe_config());
    randomise(random, 3);
    return random;
  }
  int64_t total() const { return parameters.layout().total; }
  void set_grads(const std::vector<float>& grads) {
    std::ranges::copy(grads, cpu.grads());
    kernels::cuda::check_cuda(cudaMemcpy(device.grads(), grads.data(), grads.size() * sizeof(float),
                                         cudaMemcpyHostToDevice),
                              "gradients");
  }
  /// Gradients of all sizes, subnormal ones too; zeros in the padding.
  std::vector<float> random_grads(uint64_t seed) const {
    std::vector<float> grads(static_cast<size_t>(total()), 0.0F);
    RandomSequence random(seed, RandomStream::kTask, 1);
    for (const Parameter& p : parameters.layout().parameters) {
      for (int64_t i = 0; i < p.size(); ++i) {
        const float size = random.below(16) == 0 ? 1e-40F : random.below(4) == 0 ? 1e-5F : 0.1F;
        grads[static_cast<size_t>(p.offset + i)] = (random.uniform() - 0.5F) * size;
      }
    }
    return grads;
  }
  void expect_same(const std::string& what) {
    for (const auto which : {Optimizer::State::kMaster, Optimizer::State::kFirstMoment,
                             Optimizer::State::kSecondMoment}) {
      const std::span<const float> a = cpu.state(which), b = device.state(which);
      EXPECT_EQ(bits({a.begin(), a.end()}), bits({b.begin(), b.end()}))
          << what << ", state " << static_cast<int>(which);
    }
    Parameters values(parameters.config());
    on_device.download(values, stream.get());
    EXPECT_TRUE(std::equal(values.values(), values.values() + total(), parameters.values()))
        << what;
  }

  Parameters parameters;
  kernels::CpuRuntime runtime;
  CpuOptimizer cpu;
  cuda::Stream stream;
  DeviceParameters on_device;
  CudaOptimizer device;
};

TEST(CudaOptimizer, StepsHaveTheCpusBits) {
  QUADS_NEEDS_DEVICE();
  for (const bool bf16_masters : {false, true}) {
    Both both({.weight_decay = 0.1F, .max_grad_norm = 0.5F, .bf16_masters = bf16_masters});
    for (uint64_t step = 0; step < 4; ++step) {
      both.set_grads(both.random_grads(step));
      const Optimizer::Result a = both.cpu.step(1e-3F, 0.25F);
      const Optimizer::Result b = both.device.step(1e-3F, 0.25F);
      EXPECT_EQ(a.grad_norm, b.grad_norm);
      EXPECT_TRUE(b.applied);
      both.expect_same("step " + std::to_string(step));
    }
    EXPECT_EQ(both.device.updates(), 4);
  }
}

TEST(CudaOptimizer, ANonFiniteGradientChangesNothingAndIsForgotten) {
  QUADS_NEEDS_DEVICE();
  Both both({});
  std::vector<float> grads = both.random_grads(1);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    grads[grads.size() / 2] = bad;
    both.set_grads(grads);
    both.cpu.step(1e-3F, 1.0F);
    EXPECT_FALSE(both.device.step(1e-3F, 1.0F).applied);
    EXPECT_EQ(both.device.updates(), 0);
    both.expect_same("after a gradient that is not finite");
  }
  EXPECT_EQ(both.device.step(1e-3F, 1.0F).grad_norm, 0.0);
}

TEST(CudaOptimizer, StatesComeBackAndMastersGiveTheParameters) {
  QUADS_NEEDS_DEVICE();
  Both both({});
  both.set_grads(both.random_grads(7));
  both.device.step(1e-2F, 1.0F);
  std::vector<std::vector<float>> states;
  for (const auto which : {Optimizer::State::kMaster, Optimizer::State::kFirstMoment,
                           Optimizer::State::kSecondMoment}) {
    const std::span<const float> state = both.device.state(which);
    states.emplace_back(state.begin(), state.end());
  }
  Parameters trained(both.parameters.config());
  both.on_device.download(trained, both.stream.get());
  DeviceParameters other(HostParameters(both.parameters), both.stream.get());
  CudaOptimizer restored(both.stream.get(), other, {});
  restored.set_state(Optimizer::State::kMaster, states[0]);
  restored.set_state(Optimizer::State::kFirstMoment, states[1]);
  restored.set_state(Optimizer::State::kSecondMoment, states[2]);
  restored.set_updates(1);
  restored.publish();
  Parameters values(both.parameters.config());
  other.download(values, both.stream.get());
  EXPECT_TRUE(std::equal(values.values(), values.values() + both.total(), trained.values()));
  EXPECT_MENTIONS(error_of([&] {
                    restored.set_state(Optimizer::State::kMaster, {states[0].data(), 3});
                  }),
                  "given 3");
}

}  // namespace
}  // namespace quads::testing
