// Loads a checkpoint, quantised or not, and saves it dequantised in BF16, for
// tests/oracle/test_quantised_checkpoints.py: checkpoints_tool MODEL OUT.
#include <cstdio>

#include "base/error.h"
#include "checkpoints/load_weights.h"

int main(int argc, char** argv) {
  try {
    quads::require(argc == 3, "checkpoints_tool MODEL OUT");
    quads::save_parameters(quads::load_weights(argv[1]).parameters, argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
