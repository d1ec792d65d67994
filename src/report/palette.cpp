// The colour and dash of each recipe, the same in every report.
#include "report/palette.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace quads {
namespace {

struct KnownStyle {
  std::string_view recipe;
  LineStyle style;
};

// In the order of tables and legends: the reference, what stays stable beside it, the collapse, the
// partial cures, the cure.
const std::array<KnownStyle, 9>& known_styles() {
  static const std::array<KnownStyle, 9> styles = {{
      {"bf16", {"#3d3d3d", "#d9d9d9", {6, 4}}},
      {"fp8", {"#b07d00", "#e8b23a", {}}},
      {"w4a16", {"#2b93c4", "#7cc8ee", {3, 3}}},
      {"nvfp4", {"#d55e00", "#ff8a3d", {}}},
      {"nvfp4-rac", {"#8a6d3b", "#cdaa70", {8, 3, 2, 3}}},
      {"qat-w4a16", {"#7b52ab", "#b898e6", {8, 3, 2, 3}}},
      {"qat-w4a4", {"#bf5690", "#ee9cc6", {}}},
      {"quads", {"#0067ab", "#4fabec", {}}},
      {"quads-aligned", {"#008560", "#33c79b", {}}},
  }};
  return styles;
}

constexpr std::array<std::array<int, 2>, 2> kOtherDashes = {{{2, 3}, {10, 4}}};

// "quads-k50" is {"quads", 50}; a name without -k<ratio> has no ratio.
struct RecipeName {
  std::string_view base;
  std::optional<double> ratio;
};

RecipeName split_name(std::string_view name) {
  const size_t at = name.rfind("-k");
  if (at == std::string_view::npos || at + 2 == name.size()) return {name, std::nullopt};
  const std::string digits(name.substr(at + 2));
  if (digits.find_first_not_of("0123456789.") != std::string::npos || digits.front() == '.' ||
      std::count(digits.begin(), digits.end(), '.') > 1 || digits.size() > 8) {
    return {name, std::nullopt};
  }
  return {name.substr(0, at), std::stod(digits)};
}

const KnownStyle* find_known(std::string_view recipe) {
  const auto& styles = known_styles();
  const auto found = std::find_if(styles.begin(), styles.end(),
                                  [&](const KnownStyle& known) { return known.recipe == recipe; });
  return found == styles.end() ? nullptr : &*found;
}

using Rgb = std::array<int, 3>;

// A ramp through three stops, at `t` in [0, 1].
std::string ramp(const std::array<Rgb, 3>& stops, double t) {
  const int from = t < 0.5 ? 0 : 1;
  const double share = 2 * t - from;
  Rgb rgb;
  for (int i = 0; i < 3; ++i) {
    rgb[i] =
        static_cast<int>(std::lround(stops[from][i] * (1 - share) + stops[from + 1][i] * share));
  }
  return fmt::format("#{:02x}{:02x}{:02x}", rgb[0], rgb[1], rgb[2]);
}

LineStyle sweep_style(double t) {
  constexpr std::array<Rgb, 3> kLight = {
      {{0xd9, 0x7b, 0x00}, {0xbf, 0x3f, 0x7f}, {0x2f, 0x3d, 0xa8}}};
  constexpr std::array<Rgb, 3> kDark = {
      {{0xff, 0xbb, 0x5c}, {0xf2, 0x7a, 0xa8}, {0x86, 0x98, 0xff}}};
  return {ramp(kLight, t), ramp(kDark, t), {}};
}

}  // namespace

int recipe_rank(std::string_view name) {
  const KnownStyle* known = find_known(split_name(name).base);
  const auto& styles = known_styles();
  return static_cast<int>(known == nullptr ? styles.size() : known - styles.data());
}

std::vector<LineStyle> line_styles(const std::vector<std::string>& names) {
  std::map<std::string_view, std::vector<size_t>> sweeps;
  std::set<std::string_view> taken;
  for (size_t i = 0; i < names.size(); ++i) {
    const RecipeName name = split_name(names[i]);
    if (name.ratio) sweeps[name.base].push_back(i);
    if (const KnownStyle* known = find_known(names[i])) taken.insert(known->recipe);
  }
  std::vector<std::optional<LineStyle>> styles(names.size());
  for (auto& [base, members] : sweeps) {
    if (members.size() < 3) continue;
    std::stable_sort(members.begin(), members.end(), [&](size_t a, size_t b) {
      return *split_name(names[a]).ratio < *split_name(names[b]).ratio;
    });
    for (size_t rank = 0; rank < members.size(); ++rank) {
      styles[members[rank]] =
          sweep_style(static_cast<double>(rank) / static_cast<double>(members.size() - 1));
    }
  }
  std::vector<LineStyle> spare;  // what unknown names take, the strongest colours first
  for (const std::string_view recipe : {"quads", "nvfp4", "quads-aligned", "qat-w4a4", "fp8",
                                        "qat-w4a16", "w4a16", "nvfp4-rac", "bf16"}) {
    if (!taken.contains(recipe)) spare.push_back(find_known(recipe)->style);
  }
  for (const auto& dash : kOtherDashes) {
    for (const KnownStyle& known : known_styles()) {
      spare.push_back({known.style.light, known.style.dark, {dash[0], dash[1]}});
    }
  }
  std::vector<LineStyle> result;
  size_t next = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (const KnownStyle* known = find_known(names[i])) {
      result.push_back(known->style);
    } else if (styles[i]) {
      result.push_back(*styles[i]);
    } else {
      // A lone "quads-k50" looks like its recipe where that is not shown itself.
      const KnownStyle* base = find_known(split_name(names[i]).base);
      const bool free = base != nullptr && taken.insert(base->recipe).second;
      result.push_back(free ? base->style : spare[next++ % spare.size()]);
    }
  }
  return result;
}

}  // namespace quads
