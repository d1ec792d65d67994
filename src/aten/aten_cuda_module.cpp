// The entry of libquads_aten_cuda.so.
#include "aten/aten_blocks.h"
#include "aten/cuda_device.h"

extern "C" quads::Blocks* quads_aten_cuda_blocks(const quads::DeviceOperands& operands) {
  return new quads::AtenBlocks(quads::make_aten_cuda(operands));
}
