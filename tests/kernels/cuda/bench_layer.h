// The experts of one layer of Qwen3-30B-A3B on a device, kernel by kernel, for the benchmark.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/device_array.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/route.h"

namespace quads::kernels::cuda {

inline constexpr int kBenchExperts = 128;
inline constexpr int kBenchTopK = 8;
inline constexpr int64_t kBenchHidden = 2048;
inline constexpr int64_t kBenchWidth = 768;
inline constexpr int kBenchMaxTokens = 4096;

enum class Projection : uint8_t { kGateUp, kDown };

/// Weights of one projection in more sets than the L2 cache holds. Two experts are packed, the
/// others are their copies, which moves the same bytes.
class BenchWeights {
 public:
  BenchWeights(int64_t n, int64_t k, WeightFormat format, const std::vector<int32_t>& positions,
               bool paired);
  const uint8_t* set(int i) { return sets_[i % kSets]->data(); }

 private:
  static constexpr int kSets = 3;
  std::unique_ptr<DeviceArray<uint8_t>> sets_[kSets];
};

class BenchLayer {
 public:
  explicit BenchLayer(WeightFormat format);

  /// Every token to experts by a hash, `percent` of the blocks compensated; runs all kernels once.
  void prepare(int tokens, int percent);
  int used_experts() const { return used_experts_; }

  /// Each launches its kernels.
  void route(const CudaContext& context);
  void sort(const CudaContext& context);
  void quantize(const CudaContext& context, Projection projection);
  void multiply(const CudaContext& context, Projection projection, int set, GemmTile tile);
  void multiply(const CudaContext& context, Projection projection, int set);
  void combine(const CudaContext& context);
  void all(const CudaContext& context, int set);

  /// With residual sums from here on.
  void count_residuals(bool on) { statistics_ = on; }
  /// Whether gate_up's product gives silu(gate) * up, as the engine has it, or gates and ups.
  void keep_gates(bool on) { keep_gates_ = on; }
  GroupedGemm gemm(Projection projection, int set);

 private:
  int blocks_of(Projection projection) const;
  bool activates() const { return is_nvfp4(format_) && !keep_gates_; }

  WeightFormat format_;
  int tokens_ = 0;
  int percent_ = 0;
  int used_experts_ = 0;
  bool statistics_ = false;
  bool keep_gates_ = false;
  std::vector<int32_t> hidden_positions_, width_positions_;
  DeviceArray<int32_t> device_hidden_positions_, device_width_positions_;
  BenchWeights gate_up_, down_;
  DeviceArray<float> global_scales_;
  DeviceArray<Bf16> x_;
  DeviceArray<float> logits_, choice_weights_, gate_up_y_, parts_, y_;
  DeviceArray<int32_t> ids_, offsets_, sorted_rows_, sorted_tokens_;
  DeviceArray<ImageRow> image_rows_, sorted_image_rows_;
  DeviceArray<uint16_t> q1_, q2_;
  DeviceArray<float> row_scales_;
  DeviceArray<int64_t> residual_sums_;
  DeviceArray<int32_t> bad_;
};

}  // namespace quads::kernels::cuda
