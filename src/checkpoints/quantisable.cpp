#include "checkpoints/quantisable.h"

namespace quads {

std::vector<QuantisableLinear> quantisable_linears(const ModelConfig& config,
                                                   const ParameterLayout& layout) {
  std::vector<QuantisableLinear> linears;
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const ParameterLayout::Layer& layer = layout.layers[static_cast<size_t>(l)];
    linears.push_back({layer.qkv, l, Site::kAttentionIn, Site::kAttentionIn, false});
    linears.push_back({layer.o, l, Site::kAttentionOut, Site::kAttentionOut, false});
    for (size_t e = 0; e < layer.gate_up.size(); ++e) {
      const bool sparse = config.is_sparse(l);
      const bool shared = sparse && static_cast<int64_t>(e) == config.num_experts;
      const Site middle = shared ? Site::kSharedMid : Site::kFfnMid;
      linears.push_back({layer.gate_up[e], l, Site::kFfnIn,
                         shared ? Site::kSharedMid : Site::kFfnIn, sparse && !shared});
      linears.push_back({layer.down[e], l, middle, middle, sparse && !shared});
    }
  }
  return linears;
}

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

}  // namespace quads
