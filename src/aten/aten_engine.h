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

}  // namespace quads
