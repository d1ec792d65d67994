// The tests of the CUDA kernels, or with --bench [FORMAT] (experts), --bench-dense [PRODUCT],
// --bench-linears or --bench-gradients their speed as JSON.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <exception>

#include "kernels/cuda/bench.h"

int main(int argc, char** argv) {
  const bool experts = argc > 1 && std::strcmp(argv[1], "--bench") == 0;
  const bool dense = argc > 1 && std::strcmp(argv[1], "--bench-dense") == 0;
  const bool linears = argc > 1 && std::strcmp(argv[1], "--bench-linears") == 0;
  const bool gradients = argc > 1 && std::strcmp(argv[1], "--bench-gradients") == 0;
  if (experts || dense || linears || gradients) {
    try {
      const char* only = argc > 2 ? argv[2] : "";
      if (experts) quads::kernels::cuda::run_bench(only);
      if (dense) quads::kernels::cuda::run_dense_bench(only);
      if (linears) quads::kernels::cuda::run_linears_bench();
      if (gradients) quads::kernels::cuda::run_gradients_bench();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "bench: %s\n", error.what());
      return 1;
    }
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
