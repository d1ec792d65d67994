// Precision is a value: what a side (rollout or trainer) multiplies with, passed down to whoever
// computes. No globals, no modes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/rac.h"

namespace quads {

enum class Format : uint8_t { kBf16, kFp8, kNvfp4 };

/// Residual activation compensation; ratio 0 is none.
struct Rac {
  double ratio = 0.0;
  RacGranularity granularity = RacGranularity::kChannel;
  bool scale_floor = false;
  friend bool operator==(const Rac&, const Rac&) = default;
};

struct Precision {
  Format weights = Format::kBf16;
  Format activations = Format::kBf16;
  Rac rac;
  friend bool operator==(const Precision&, const Precision&) = default;
};

/// What parse_precision takes, in the order of its documentation.
const std::vector<std::string>& precision_names();
/// Parses "bf16", "fp8" (W8A8), "nvfp4" (W4A4), "w4a16", "w16a4", "w8a16", and "nvfp4-rac" (W4A4
/// with compensation of `rac.ratio`, an error if that is 0). Error on anything else, with the list.
Precision parse_precision(std::string_view name, const Rac& rac);
/// The inverse: "nvfp4-rac50" says the ratio in per cent.
std::string precision_name(const Precision& precision);
RacGranularity parse_granularity(std::string_view name);
std::string_view granularity_name(RacGranularity granularity);

/// The inputs of a layer's linears: what a mask belongs to.
enum class Site : uint8_t { kAttentionIn, kAttentionOut, kFfnIn, kFfnMid, kSharedMid };
inline constexpr int kSites = 5;

/// Which linears a precision applies to; all others are BF16. kExperts: the experts that a router
/// chooses from; kLinears: all linears, shared experts among them. Routers, a shared expert's gate
/// and the language-model head never are.
struct QuantizeScope {
  enum class What : uint8_t { kExperts, kLinears } what = What::kExperts;
  int64_t high_precision_first_layers = 0;
  int64_t high_precision_last_layers = 0;
  friend bool operator==(const QuantizeScope&, const QuantizeScope&) = default;

  /// `sparse`: whether the layer's feed-forward part has experts.
  bool covers(int64_t layer, int64_t num_layers, bool sparse, Site site) const;
};
QuantizeScope::What parse_quantize(std::string_view name);  // "experts" or "linears"
std::string_view quantize_name(QuantizeScope::What what);

/// The compensated channels of every layer and site: [layers * kSites] masks of 0 and 1, empty
/// where nothing is compensated. Static between two syncs and part of every rollout.
struct RacMasks {
  std::vector<std::vector<uint8_t>> masks;
  const std::vector<uint8_t>& at(int64_t layer, Site site) const {
    return masks[static_cast<size_t>(layer * kSites + static_cast<int64_t>(site))];
  }
  std::vector<uint8_t>& at(int64_t layer, Site site) {
    return masks[static_cast<size_t>(layer * kSites + static_cast<int64_t>(site))];
  }
  bool empty() const { return masks.empty(); }
  friend bool operator==(const RacMasks&, const RacMasks&) = default;
};

}  // namespace quads
