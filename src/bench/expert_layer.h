// The experts of one layer on a GPU, kernel by kernel, as the engine runs them, with random weights
// and routing.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/device_memory.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/route.h"

namespace quads::bench {

struct ExpertShape {
  int experts = 0;
  int top_k = 0;
  int64_t hidden = 0;
  int64_t width = 0;
};

enum class Projection : uint8_t { kGateUp, kDown };

/// Rows and columns of an expert's matrix.
struct MatrixShape {
  int64_t n, k;
  int64_t size() const { return n * k; }
};
MatrixShape matrix_of(const ExpertShape& shape, Projection projection);

/// [experts][n][k], the same with every call.
cuda::DeviceArray<Bf16> random_experts(const ExpertShape& shape, Projection projection);

/// Copies of a projection's weights, `bytes` each, that calls take in turn so that none finds its
/// own in the L2 cache: several times that cache, but 3..12 copies.
int weight_copies(int64_t bytes);

/// prepare() comes first, each time when nothing that the layer launched still runs.
class ExpertLayer {
 public:
  using CudaContext = kernels::cuda::CudaContext;
  using WeightFormat = kernels::cuda::WeightFormat;

  /// For up to max_tokens tokens. Error, naming what is too large, on sizes that the kernels do not
  /// take.
  ExpertLayer(const ExpertShape& shape, WeightFormat format, int64_t max_tokens);

  /// Routes so many tokens, the same in every format, compensates `percent` of the blocks (NVFP4)
  /// and runs all kernels once.
  void prepare(int64_t tokens, int percent);
  int used_experts() const { return used_experts_; }

  /// Each launches its kernels. The products multiply what was quantised last, whatever that was.
  void route(const CudaContext& context);
  void sort(const CudaContext& context);
  void quantize(const CudaContext& context, Projection projection);
  void multiply(const CudaContext& context, Projection projection, int copy);
  void combine(const CudaContext& context);
  void all(const CudaContext& context, int copy);

  /// The product, for a tile other than the chosen one.
  kernels::cuda::GroupedGemm gemm(Projection projection, int copy) const;

  /// With residual sums from here on.
  void count_residuals(bool on) { count_residuals_ = on; }

  const ExpertShape& shape() const { return shape_; }
  WeightFormat format() const { return format_; }
  /// [experts + 1] on the device: the sorted rows of each expert.
  const int32_t* expert_offsets() const { return offsets_.data(); }

 private:
  struct Weights {
    MatrixShape shape;
    int copies = 0;
    int64_t bytes = 0;  // of a copy
    cuda::DeviceArray<uint8_t> fragments;
    cuda::DeviceArray<float> global_scales;
  };
  Weights make_weights(Projection projection, const cuda::DeviceArray<int32_t>& positions) const;
  int residual_blocks(Projection projection) const;

  ExpertShape shape_;
  WeightFormat format_;
  int64_t tokens_ = 0;
  int percent_ = 0;
  int used_experts_ = 0;
  bool count_residuals_ = false;
  cuda::DeviceArray<int32_t> hidden_positions_, width_positions_;
  Weights gate_up_, down_;
  cuda::DeviceArray<Bf16> x_;
  cuda::DeviceArray<float> logits_, choice_weights_;
  cuda::DeviceArray<Bf16> expanded_;  // silu(gate) * up
  cuda::DeviceArray<float> parts_, y_;
  cuda::DeviceArray<int32_t> ids_, offsets_, sorted_rows_, sorted_tokens_;
  cuda::DeviceArray<kernels::cuda::ImageRow> image_rows_, sorted_image_rows_;
  cuda::DeviceArray<Bf16> q1_, q2_;
  cuda::DeviceArray<float> row_scales_;
  cuda::DeviceArray<int64_t> residual_sums_;
  cuda::DeviceArray<int32_t> first_bad_row_;
};

}  // namespace quads::bench
