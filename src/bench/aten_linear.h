// ATen's linear layer in BF16 (oneDNN on x86): the peer that matrix products are held against.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "numerics/bf16.h"

namespace quads::bench {

class AtenLinear {
 public:
  /// y = x W^T for W [n, k] and x [m, k], row-major; the pointers must outlive this object.
  AtenLinear(const Bf16* weight, int64_t n, int64_t k, const Bf16* x, int64_t m);
  ~AtenLinear();
  AtenLinear(AtenLinear&&) noexcept;
  void run() const;

  /// ATen's threads belong to the process.
  static void set_num_threads(int threads);

 private:
  struct Tensors;
  std::unique_ptr<Tensors> tensors_;
};

/// The version of PyTorch that this program was built with.
std::string torch_version();

}  // namespace quads::bench
