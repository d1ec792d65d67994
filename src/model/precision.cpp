#include "model/precision.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace quads {

const std::vector<std::string>& precision_names() {
  static const std::vector<std::string> names = {"bf16",      "fp8",   "w8a16", "nvfp4",
                                                 "nvfp4-rac", "w4a16", "w16a4"};
  return names;
}

Precision parse_precision(std::string_view name, const Rac& rac) {
  const auto make = [](Format weights, Format activations) {
    return Precision{weights, activations, {}};
  };
  if (name == "bf16") return make(Format::kBf16, Format::kBf16);
  if (name == "fp8") return make(Format::kFp8, Format::kFp8);
  if (name == "w8a16") return make(Format::kFp8, Format::kBf16);
  if (name == "nvfp4") return make(Format::kNvfp4, Format::kNvfp4);
  if (name == "w4a16") return make(Format::kNvfp4, Format::kBf16);
  if (name == "w16a4") return make(Format::kBf16, Format::kNvfp4);
  if (name == "nvfp4-rac") {
    require(rac.ratio > 0 && rac.ratio <= 1,
            "precision nvfp4-rac needs a compensated share in (0, 1], got {}", rac.ratio);
    Precision precision = make(Format::kNvfp4, Format::kNvfp4);
    precision.rac = rac;
    return precision;
  }
  fail("unknown precision '{}': use one of {}", name, fmt::join(precision_names(), ", "));
}

std::string precision_name(const Precision& precision) {
  const auto is = [&](Format weights, Format activations) {
    return precision.weights == weights && precision.activations == activations;
  };
  if (is(Format::kBf16, Format::kBf16)) return "bf16";
  if (is(Format::kFp8, Format::kFp8)) return "fp8";
  if (is(Format::kFp8, Format::kBf16)) return "w8a16";
  if (is(Format::kNvfp4, Format::kBf16)) return "w4a16";
  if (is(Format::kBf16, Format::kNvfp4)) return "w16a4";
  if (precision.rac.ratio > 0) return fmt::format("nvfp4-rac{:g}", 100 * precision.rac.ratio);
  return "nvfp4";
}

RacGranularity parse_granularity(std::string_view name) {
  if (name == "channel") return RacGranularity::kChannel;
  if (name == "block") return RacGranularity::kBlock;
  fail("unknown granularity '{}': use channel or block", name);
}

std::string_view granularity_name(RacGranularity granularity) {
  return granularity == RacGranularity::kChannel ? "channel" : "block";
}

QuantizeScope::What parse_quantize(std::string_view name) {
  if (name == "experts") return QuantizeScope::What::kExperts;
  if (name == "linears") return QuantizeScope::What::kLinears;
  fail("unknown --quantize '{}': use experts or linears", name);
}

std::string_view quantize_name(QuantizeScope::What what) {
  return what == QuantizeScope::What::kExperts ? "experts" : "linears";
}

bool QuantizeScope::covers(int64_t layer, int64_t num_layers, bool sparse, Site site) const {
  if (layer < high_precision_first_layers) return false;
  if (layer >= num_layers - high_precision_last_layers) return false;
  if (what == What::kLinears) return true;
  return sparse && (site == Site::kFfnIn || site == Site::kFfnMid);  // not kSharedMid
}

}  // namespace quads
