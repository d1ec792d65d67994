// The JSON by which tests/oracle asks a tool for a side.
#pragma once

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/model/side.h"

namespace quads::testing {

/// {"precision", "ratio", "granularity", "quantize", "first", "last", "threads", "masks"}: all but
/// the precision optional; masks are [layers * sites] lists.
inline Side::Options side_options(const nlohmann::json& json) {
  Side::Options options;
  Rac rac;
  rac.ratio = json.value("ratio", 0.0);
  rac.granularity = parse_granularity(json.value("granularity", "channel"));
  options.precision = parse_precision(json.at("precision").get<std::string>(), rac);
  options.scope.what = parse_quantize(json.value("quantize", "experts"));
  options.scope.high_precision_first_layers = json.value("first", 0);
  options.scope.high_precision_last_layers = json.value("last", 0);
  options.threads = json.value("threads", 1);
  if (json.contains("masks")) {
    json.at("masks").get_to(options.masks.masks);
  }
  return options;
}

inline void write_floats(const std::string& path, std::span<const float> values) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(values.data()),
            static_cast<std::streamsize>(values.size_bytes()));
  require(out.good(), "{}: cannot be written", path);
}

}  // namespace quads::testing
