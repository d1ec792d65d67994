// The linear layers of a model that a checkpoint may hold quantised.
#pragma once

#include <string>
#include <vector>

#include "model/parameters.h"
#include "model/precision.h"

namespace quads {

/// One parameter: linear layers that share their input and so a global scale (gate and up; q, k and
/// v).
struct QuantisableLinear {
  int64_t parameter;
  int64_t layer;
  Site input;  // whose values it multiplies
  Site site;   // by which a QuantizeScope covers it; differs for a shared expert's gate and up
  bool routed_expert;
};

/// All of them, layer by layer. Routers, a shared expert's gate, embeddings and the language-model
/// head are none.
std::vector<QuantisableLinear> quantisable_linears(const ModelConfig& config,
                                                   const ParameterLayout& layout);

/// "model.layers.0.self_attn.q_proj" of "model.layers.0.self_attn.q_proj.weight".
std::string module_of(const std::string& tensor);

}  // namespace quads
