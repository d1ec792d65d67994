// Where a model is quantised: which inputs of linears a precision covers under a scope, and how
// wide they are. A pure function of (configuration, precision, scope), whatever the device.
#pragma once

#include <cstdint>

#include "io/model_config.h"
#include "model/precision.h"

namespace quads {

struct QuantisedSites {
  ModelConfig config;
  Precision precision;
  QuantizeScope scope;

  int64_t num_layers() const { return config.num_hidden_layers; }
  /// Whether the linears at this site are quantised.
  bool quantised(int64_t layer, Site site) const;
  /// Channels of a site's input; 0 where the layer has no such site.
  int64_t width(int64_t layer, Site site) const;
  /// Whether the residual of a site's input is looked at: its activations are NVFP4.
  bool has_residuals(int64_t layer, Site site) const {
    return precision.activations == Format::kNvfp4 && quantised(layer, site);
  }
  /// Whether masks take part.
  bool compensated() const {
    return precision.rac.ratio > 0 && precision.activations == Format::kNvfp4;
  }
};

}  // namespace quads
