#include "model/stored_weights.h"

#include "base/error.h"

namespace quads {

void require_stored(const StoredWeights& stored, const ParameterLayout& layout,
                    const Precision& precision, const std::vector<bool>& quantised) {
  require(
      precision.weights == Format::kNvfp4,
      "precision {} does not multiply with NVFP4 weights, so the checkpoint's cannot be used as "
      "stored",
      precision_name(precision));
  size_t used = 0;
  for (size_t i = 0; i < quantised.size(); ++i) {
    const Parameter& p = layout.parameters[i];
    const auto found = stored.find(static_cast<int64_t>(i));
    const bool is_stored = found != stored.end();
    require(is_stored || !quantised[i],
            "{} is to be multiplied as NVFP4, but the checkpoint stores it unquantised", p.name);
    require(quantised[i] || !is_stored,
            "the checkpoint stores {} as NVFP4, but it is not among the weights to be quantised "
            "here",
            p.name);
    if (!is_stored) continue;
    ++used;
    const auto codes = std::ssize(found->second.codes),
               scales = std::ssize(found->second.block_scales);
    require(codes == p.size() / 2 && scales == p.size() / 16,
            "{}: {} bytes of codes and {} scales are stored for [{}, {}]", p.name, codes, scales,
            p.rows, p.cols);
  }
  require(used == stored.size(), "{} stored weights are of no matrix of the model",
          stored.size() - used);
}

}  // namespace quads
