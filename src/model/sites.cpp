#include "model/sites.h"

namespace quads {

bool QuantisedSites::quantised(int64_t layer, Site site) const {
  if (precision.weights == Format::kBf16 && precision.activations == Format::kBf16) return false;
  if (site == Site::kSharedMid && !config.has_shared_expert(layer)) return false;
  return scope.covers(layer, config.num_hidden_layers, config.is_sparse(layer), site);
}

int64_t QuantisedSites::width(int64_t layer, Site site) const {
  switch (site) {
    case Site::kAttentionOut:
      return config.num_attention_heads * config.head_dim;
    case Site::kFfnMid:
      return config.is_sparse(layer) ? config.moe_intermediate_size : config.intermediate_size;
    case Site::kSharedMid:
      return config.has_shared_expert(layer) ? config.shared_expert_intermediate_size : 0;
    case Site::kAttentionIn:
    case Site::kFfnIn:
      break;
  }
  return config.hidden_size;
}

}  // namespace quads
