// What a run will take of a device's memory, known before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "model/sites.h"

namespace quads::cuda {

class MemoryPlan {
 public:
  void add(std::string name, int64_t bytes) { parts_.push_back({std::move(name), bytes}); }
  int64_t total() const;
  /// "parameters (BF16) 1.2 GiB, ...".
  std::string describe() const;
  /// Error with the plan unless it fits `free` bytes.
  void require_fits(int64_t free) const;

 private:
  struct Part {
    std::string name;
    int64_t bytes;
  };
  std::vector<Part> parts_;
};

/// What the device has free now.
int64_t free_bytes();

/// Bytes that a CudaModel takes: its weights, and, unless its source is `resident` on the device,
/// the largest layer's matrices in BF16, from which they are quantised.
int64_t model_bytes(const ParameterLayout& layout, const QuantisedSites& sites, bool resident);

}  // namespace quads::cuda
