// Loads a checkpoint, quantised or not, and saves it dequantised in BF16, for
// tests/oracle/test_quantised_checkpoints.py: checkpoints_tool MODEL OUT.
#include "base/error.h"
#include "checkpoints/load_weights.h"
#include "tool_main.h"

int main(int argc, char** argv) {
  return quads::tool_main([&] {
    quads::require(argc == 3, "usage: checkpoints_tool MODEL OUT");
    quads::save_parameters(quads::load_weights(argv[1]).parameters, argv[2]);
  });
}
