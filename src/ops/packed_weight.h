// Weights of one shape, quantised and packed for the kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "kernels/cpu/gemm_kernels.h"

namespace quads::ops {

class PackedWeight {
 public:
  /// w [experts, n, k] BF16, k a multiple of 32; NVFP4 has a global scale (a power of two) for each
  /// expert. Error, naming `where`, expert, row and column, on a NaN or an infinity.
  PackedWeight(const at::Tensor& w, kernels::WeightFormat format, std::string_view where);

  const kernels::PackedMatrix& matrix(int64_t expert) const {
    return matrices_[static_cast<size_t>(expert)];
  }
  const kernels::PackedMatrix* matrices() const { return matrices_.data(); }

  /// What the kernels multiply with: BF16 [experts, n, k].
  at::Tensor dequantized() const;

 private:
  at::Tensor tiles_, scales_;  // uint8 [experts, bytes]
  std::vector<kernels::PackedMatrix> matrices_;
};

/// The dequantised values of a packed matrix, BF16 [n, k], in the natural order of K.
at::Tensor unpack(const kernels::PackedMatrix& matrix);

}  // namespace quads::ops
