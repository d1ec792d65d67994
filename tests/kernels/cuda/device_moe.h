// Runs experts on the device: quantise, multiply.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/device_array.h"
#include "kernels/cuda/experts/fragment_weights.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/moe_problem.h"
#include "kernels/cuda/quantize/quantize_rows.h"

namespace quads::kernels::cuda {

class DeviceMoe {
 public:
  DeviceMoe(const std::vector<Nvfp4Matrix>& weights, Compensation compensation,
            const FragmentForm& form = {});

  /// Takes tokens' rows x [tokens, k] to the device. Images and y are filled with NaNs.
  void load(const Routing& routing, const std::vector<Bf16>& x);
  /// Launches the kernel before the product; `overlap` as in CudaContext.
  void quantize(const CudaContext& context);
  void quantize() { quantize(make_context(nullptr)); }
  /// The bits of y, each in 32 bits; fails the test if anything else was written.
  std::vector<uint32_t> multiply(GemmTile tile, GemmOutput output = GemmOutput::kFp32);

  GroupedGemm gemm(GemmOutput output = GemmOutput::kFp32);
  std::vector<uint16_t> q1() const { return q1_->download(); }
  std::vector<uint16_t> q2() const { return q2_->download(); }
  std::vector<uint32_t> y_bits(GemmOutput output = GemmOutput::kFp32) const;
  std::vector<float> row_scales() const { return row_scales_->download(); }
  int32_t first_bad_row() const { return bad_.download()[0]; }
  void poison_y() { y_->fill_bytes(0xFF); }

 private:
  int residual_stages() const;

  Compensation compensation_;
  WeightFormat format_;
  int experts_;
  int64_t n_, k_;
  DeviceArray<uint8_t> weights_;
  DeviceArray<float> global_scales_;
  DeviceArray<int32_t> positions_;
  DeviceArray<uint8_t> channels_;
  DeviceArray<int32_t> bad_;
  int64_t tokens_ = 0;
  int64_t rows_ = 0;
  int copies_ = 0;
  std::unique_ptr<DeviceArray<int32_t>> offsets_;
  std::unique_ptr<DeviceArray<ImageRow>> image_rows_;
  std::unique_ptr<DeviceArray<Bf16>> x_;
  std::unique_ptr<DeviceArray<uint16_t>> q1_, q2_;
  std::unique_ptr<DeviceArray<float>> row_scales_;  // of an FP16 image
  std::unique_ptr<DeviceArray<uint32_t>> y_;
};

/// The bits of silu(gate) * up as the CPU makes it of the bits of rows [rows, 2 width], gates, then
/// ups, each in 32 bits.
std::vector<uint32_t> silu_mul_bits(const std::vector<uint32_t>& gates_ups, int64_t rows,
                                    int64_t width);

/// Rows x [tokens, k] of token ids.
std::vector<Bf16> token_rows(const std::vector<int64_t>& tokens, int64_t k);

/// `count` weights [n, k] with their seeds from `seed` on.
std::vector<Nvfp4Matrix> random_experts(int count, int64_t n, int64_t k, uint64_t seed);

}  // namespace quads::kernels::cuda
