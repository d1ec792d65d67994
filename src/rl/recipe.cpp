#include "rl/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace quads {
namespace {

constexpr Precision kBf16{};
constexpr Precision kFp8{Format::kFp8, Format::kFp8, {}};
constexpr Precision kW4A4{Format::kNvfp4, Format::kNvfp4, {}};
constexpr Precision kW4A16{Format::kNvfp4, Format::kBf16, {}};

constexpr Precision compensated(double ratio) {
  return {Format::kNvfp4, Format::kNvfp4, {.ratio = ratio}};
}

}  // namespace

const std::vector<RecipeInfo>& recipes() {
  static const std::vector<RecipeInfo> table = {
      {"bf16", kBf16, kBf16, "the reference"},
      {"fp8", kFp8, kFp8, "the paper's baseline"},
      {"nvfp4", kW4A4, kBf16, "naive; it collapses"},
      {"nvfp4-rac", compensated(.5), kBf16, "ablation: compensation only"},
      {"qat-w4a16", kW4A4, kW4A16, "ablation: weight-only QAT"},
      {"qat-w4a4", kW4A4, kW4A4, "ablation: symmetric QAT"},
      {"quads", compensated(.5), kW4A16, "the paper"},
      {"quads-aligned", compensated(1.), compensated(1.), "the trainer replays the rollout"},
      {"w4a16", kW4A16, kW4A16, "for chips without FP4 units"},
  };
  return table;
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const RecipeInfo& info : recipes()) names.emplace_back(info.name);
  return names;
}

Recipe make_recipe(std::string_view name, const RecipeOverrides& overrides) {
  const auto found = std::ranges::find(recipes(), name, &RecipeInfo::name);
  require(found != recipes().end(), "unknown recipe '{}': use one of {}", name,
          fmt::join(recipe_names(), ", "));
  Recipe recipe{std::string(name), found->rollout, found->trainer};

  const auto rac_for = [&](double default_ratio) {
    Rac rac;
    rac.ratio = overrides.rac_ratio.value_or(default_ratio);
    rac.granularity = overrides.rac_granularity;
    rac.scale_floor = overrides.rac_scale_floor;
    require(rac.ratio >= 0 && rac.ratio <= 1, "--rac-ratio is a share in [0, 1], got {}",
            rac.ratio);
    return rac.ratio > 0 ? rac : Rac{};
  };
  for (Precision* side : {&recipe.rollout, &recipe.trainer}) {
    if (side->rac.ratio > 0) side->rac = rac_for(side->rac.ratio);
  }
  std::string sides = fmt::format("recipe {}", name);
  const auto override_side = [&](const char* option, const std::optional<std::string>& text,
                                 Precision* side) {
    if (!text) return;
    *side = parse_precision(*text, *text == "nvfp4-rac" ? rac_for(.5) : Rac{});
    sides += fmt::format(" {} {}", option, *text);
  };
  override_side("--rollout-precision", overrides.rollout_precision, &recipe.rollout);
  override_side("--trainer-precision", overrides.trainer_precision, &recipe.trainer);
  std::string compensated;
  for (const RecipeInfo& info : recipes()) {
    if (info.rollout.rac.ratio == 0) continue;
    compensated += fmt::format("{}{}", compensated.empty() ? "" : ", ", info.name);
  }
  const bool compensates = recipe.rollout.rac.ratio > 0 || recipe.trainer.rac.ratio > 0;
  require(compensates || overrides.rac_ratio.value_or(0.) == 0.,
          "--rac-ratio {}: {} has no residual compensation; {} have, and so has "
          "--rollout-precision nvfp4-rac",
          overrides.rac_ratio.value_or(0.), sides, compensated);
  return recipe;
}

}  // namespace quads
