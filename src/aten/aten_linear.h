// ATen's linear layer in BF16 (oneDNN on x86): the peer that matrix products are held against.
#pragma once

#include "aten/aten_engine.h"

namespace quads {

/// As AtenEngine::make_linear and AtenEngine::set_num_threads.
std::unique_ptr<LinearLayer> make_aten_linear(const Bf16* weight, int64_t n, int64_t k,
                                              const Bf16* x, int64_t m);
void set_aten_threads(int threads);

}  // namespace quads
