// ATen, opened when it is first needed: loading libtorch takes longer than most commands, and few
// of them use it. No header of torch's is behind this one.
#pragma once

#include <cstdint>
#include <memory>

#include "model/blocks.h"
#include "model/device_operands.h"
#include "model/packed_model.h"

namespace quads {

/// Blocks that compute with a copy of a packed model's weights.
class CopyingBlocks : public Blocks {
 public:
  /// Takes over the model's weights; call it after each refresh of the model.
  virtual void refresh() = 0;
};

/// y = x W^T in BF16, for the time that it takes.
class LinearLayer {
 public:
  virtual ~LinearLayer() = default;
  virtual void run() const = 0;
};

/// What libquads_aten.so offers.
struct AtenEngine {
  /// aten_blocks.h says how it computes.
  std::unique_ptr<CopyingBlocks> (*make_blocks)(const kernels::CpuContext& context,
                                                const PackedModel& model);
  /// For W [n, k] and x [m, k], row-major; the pointers must outlive the result.
  std::unique_ptr<LinearLayer> (*make_linear)(const Bf16* weight, int64_t n, int64_t k,
                                              const Bf16* x, int64_t m);
  /// ATen's threads belong to the process.
  void (*set_num_threads)(int threads);
};

/// Opens libquads_aten.so beside the program, or in ../lib from there. Error that names the path
/// and the loader's reason if that fails.
const AtenEngine& aten_engine();

/// The same blocks on a GPU (aten_blocks.h, cuda_device.h), from libquads_aten_cuda.so, which loads
/// torch's CUDA libraries; `operands` must outlive the result. Error likewise.
std::unique_ptr<Blocks> make_aten_cuda_blocks(const DeviceOperands& operands);

/// ATen's products on a GPU: y = x W^T in BF16.
enum class DeviceProductKind : uint8_t {
  kLinear,      // of one matrix: cuBLAS
  kGrouped,     // `_grouped_mm`: a matrix an expert
  kGroupedFp8,  // `_scaled_grouped_mm`: the same of E4M3, rounded here, a scale a row
};

/// Device pointers, BF16 values; they must outlive the product.
struct DeviceProductOperands {
  DeviceProductKind kind = DeviceProductKind::kLinear;
  const Bf16* x = nullptr;        // [max_rows, k], sorted by expert
  const Bf16* weights = nullptr;  // [experts, n, k]
  const int32_t* ends = nullptr;  // [experts] where each expert's rows end; read by every call
  int64_t max_rows = 0;
  int experts = 1;
  int64_t n = 0, k = 0;
  int copies = 1;  // of the weights, which calls take in turn
};

class DeviceProduct {
 public:
  virtual ~DeviceProduct() = default;
  /// Multiplies the first `rows` rows by copy call % copies, on the stream, which may be capturing
  /// if a call for as many rows has run on it before.
  virtual void run(CUstream_st* stream, int64_t rows, int call) const = 0;
};

/// From libquads_aten_cuda.so, likewise. Its memory is ATen's allocator's until it is destroyed.
std::unique_ptr<DeviceProduct> make_aten_cuda_product(const DeviceProductOperands& operands);

}  // namespace quads
