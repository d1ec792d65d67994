// The entries of libquads_aten_cuda.so.
#include "aten/aten_blocks.h"
#include "aten/cuda_device.h"
#include "aten/device_product.h"

extern "C" quads::Blocks* quads_aten_cuda_blocks(const quads::DeviceOperands& operands) {
  return new quads::AtenBlocks(quads::make_aten_cuda(operands));
}

extern "C" quads::DeviceProduct* quads_aten_cuda_product(
    const quads::DeviceProductOperands& operands) {
  return quads::make_device_product(operands).release();
}
