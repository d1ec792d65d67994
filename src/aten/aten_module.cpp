// The entry of libquads_aten.so.
#include "aten/aten_blocks.h"
#include "aten/aten_linear.h"

extern "C" const quads::AtenEngine* quads_aten_engine() {
  static const quads::AtenEngine engine = {
      .make_blocks = [](const quads::kernels::CpuContext& context,
                        const quads::PackedModel& model) -> std::unique_ptr<quads::CopyingBlocks> {
        return std::make_unique<quads::AtenBlocks>(context, model);
      },
      .make_linear = quads::make_aten_linear,
      .set_num_threads = quads::set_aten_threads};
  return &engine;
}
