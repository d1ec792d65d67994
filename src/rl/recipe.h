// Recipes: a precision for the rollout and one for the trainer's forward, under the paper's names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/precision.h"

namespace quads {

struct Recipe {
  std::string name;
  Precision rollout;
  Precision trainer;
  /// The trainer's forward is the rollout's own, compensation masks included: log-probs equal to
  /// the bit with shared kernels.
  bool replays() const { return rollout == trainer; }
};

/// One line of the table of recipes.
struct RecipeInfo {
  std::string_view name;
  Precision rollout, trainer;  // a ratio of compensation in them is the default
  std::string_view what_for;
};
/// All recipes, in the order of the documentation.
const std::vector<RecipeInfo>& recipes();

std::vector<std::string> recipe_names();

struct RecipeOverrides {
  std::optional<double> rac_ratio;  // of recipes with compensation; an error on others if not 0
  RacGranularity rac_granularity = RacGranularity::kChannel;
  bool rac_scale_floor = false;
  std::optional<std::string> rollout_precision;  // any pair instead of the recipe's
  std::optional<std::string> trainer_precision;
};

/// The recipe `name` with its overrides. A compensated recipe with ratio 0 is the same without
/// compensation. Error on an unknown name (with the list) or overrides that do not fit.
Recipe make_recipe(std::string_view name, const RecipeOverrides& overrides);

}  // namespace quads
