#include "io/rope_config.h"

#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "base/error.h"

namespace quads {
namespace {

struct TypeKeys {
  RopeType type;
  const char* name;
  std::set<std::string_view> keys;
};

const std::vector<TypeKeys>& types() {
  static const std::vector<TypeKeys> all = {
      {RopeType::kDefault, "default", {}},
      {RopeType::kLinear, "linear", {"factor"}},
      {RopeType::kYarn,
       "yarn",
       {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
        "attention_factor"}},
      {RopeType::kLlama3,
       "llama3",
       {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}},
  };
  return all;
}

const TypeKeys& find_type(const std::string& name, const std::string& where) {
  for (const TypeKeys& type : types()) {
    if (name == type.name) return type;
  }
  fail("{}: rope_type '{}' is not supported; default, linear, yarn and llama3 are", where, name);
}

const TypeKeys& keys_of(RopeType type) { return types()[static_cast<size_t>(type)]; }

// One of the two objects; without the base.
RopeConfig read_scaling(const Json& json, int64_t max_positions, const std::string& where) {
  const auto name = find_key<std::string>(json, "rope_type", where)
                        .value_or(get_or<std::string>(json, "type", "default", where));
  const TypeKeys& type = find_type(name, where);
  for (const auto& [key, value] : json.items()) {
    require(key == "rope_type" || key == "type" || key == "rope_theta" || type.keys.contains(key) ||
                is_off(value) || (key == "partial_rotary_factor" && value == 1),
            "{}: {} = {} is not supported with rope_type '{}'", where, key, json_excerpt(value),
            name);
  }
  RopeConfig rope;
  rope.type = type.type;
  if (rope.type != RopeType::kDefault) rope.factor = get<double>(json, "factor", where);
  if (rope.type == RopeType::kYarn || rope.type == RopeType::kLlama3) {
    rope.original_max_position_embeddings =
        get_or(json, "original_max_position_embeddings", max_positions, where);
  }
  if (rope.type == RopeType::kYarn) {
    rope.beta_fast = get_or(json, "beta_fast", 32.0, where);
    rope.beta_slow = get_or(json, "beta_slow", 1.0, where);
    rope.truncate = get_or(json, "truncate", true, where);
    rope.attention_factor = find_key<double>(json, "attention_factor", where);
  }
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor = get<double>(json, "low_freq_factor", where);
    rope.high_freq_factor = get<double>(json, "high_freq_factor", where);
  }
  return rope;
}

}  // namespace

bool is_off(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         (value.is_structured() && value.empty());
}

void validate(const RopeConfig& rope, const std::string& where) {
  const auto in_range = [&](double value, double least, double most, const char* key) {
    require(value >= least && value <= most, "{}: {} = {} is not in {}..{}", where, key, value,
            least, most);
  };
  in_range(rope.theta, 1.0, 1e12, "rope_theta");
  if (rope.type == RopeType::kDefault) return;
  in_range(rope.factor, 1.0, 1e6, "rope factor");
  if (rope.type == RopeType::kYarn || rope.type == RopeType::kLlama3) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    require(rope.original_max_position_embeddings >= 1 &&
                rope.original_max_position_embeddings <= kMost,
            "{}: original_max_position_embeddings = {} is not in 1..{}", where,
            rope.original_max_position_embeddings, kMost);
  }
  if (rope.type == RopeType::kYarn) {
    require(rope.theta > 1.0, "{}: rope_theta = {} must be above 1 with rope_type 'yarn'", where,
            rope.theta);
    in_range(rope.beta_slow, 1e-6, 1e6, "beta_slow");
    in_range(rope.beta_fast, rope.beta_slow, 1e6, "beta_fast");
    in_range(rope.attention_factor.value_or(1.0), 1e-6, 1e6, "attention_factor");
  }
  if (rope.type == RopeType::kLlama3) {
    in_range(rope.low_freq_factor, 1e-6, 1e6, "low_freq_factor");
    require(rope.high_freq_factor > rope.low_freq_factor && rope.high_freq_factor <= 1e6,
            "{}: high_freq_factor = {} is not above low_freq_factor = {}", where,
            rope.high_freq_factor, rope.low_freq_factor);
  }
}

RopeConfig read_rope(const Json& json, int64_t max_position_embeddings, const std::string& where) {
  std::optional<double> theta = find_key<double>(json, "rope_theta", where);
  std::optional<RopeConfig> rope;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto object = find_key<Json>(json, key, where);
    if (!object) continue;
    const std::string inside = fmt::format("{}: '{}'", where, key);
    const RopeConfig scaling = read_scaling(*object, max_position_embeddings, inside);
    require(!rope || *rope == scaling, "{}: contradicts 'rope_parameters'", inside);
    rope = scaling;
    const auto inner = find_key<double>(*object, "rope_theta", inside);
    require(!inner || !theta || *inner == *theta, "{}: rope_theta {} contradicts {} elsewhere",
            inside, inner.value_or(0), theta.value_or(0));
    theta = theta ? theta : inner;
  }
  require(theta.has_value(), "{}: neither 'rope_parameters' nor 'rope_theta' gives the RoPE base",
          where);
  RopeConfig result = rope.value_or(RopeConfig{});
  result.theta = *theta;
  validate(result, where);
  return result;
}

void write_rope(const RopeConfig& rope, Json& json) {
  Json scaling = {{"rope_type", keys_of(rope.type).name}};
  const auto put = [&](const char* key, const Json& value) {
    if (keys_of(rope.type).keys.contains(key)) scaling[key] = value;
  };
  put("factor", rope.factor);
  put("original_max_position_embeddings", rope.original_max_position_embeddings);
  put("beta_fast", rope.beta_fast);
  put("beta_slow", rope.beta_slow);
  put("truncate", rope.truncate);
  put("low_freq_factor", rope.low_freq_factor);
  put("high_freq_factor", rope.high_freq_factor);
  if (rope.attention_factor) put("attention_factor", *rope.attention_factor);
  json["rope_theta"] = rope.theta;
  json["rope_scaling"] = rope.type == RopeType::kDefault ? Json(nullptr) : scaling;
  scaling["rope_theta"] = rope.theta;
  json["rope_parameters"] = scaling;
}

}  // namespace quads
