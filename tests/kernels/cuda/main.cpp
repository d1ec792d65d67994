// The tests of the CUDA kernels, or with --bench (experts) or --bench-dense their speed as JSON.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <exception>

#include "kernels/cuda/bench.h"

int main(int argc, char** argv) {
  const bool experts = argc > 1 && std::strcmp(argv[1], "--bench") == 0;
  const bool dense = argc > 1 && std::strcmp(argv[1], "--bench-dense") == 0;
  if (experts || dense) {
    try {
      experts ? quads::kernels::cuda::run_bench() : quads::kernels::cuda::run_dense_bench();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "bench: %s\n", error.what());
      return 1;
    }
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
