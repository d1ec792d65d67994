// The colour and dash of each recipe, the same in every report.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quads {

/// How a recipe's line is drawn, on a light and on a dark ground. The hues are those of Okabe and
/// Ito
/// ("Color universal design", 2008), told apart by people with any common colour blindness, with
/// their lightness moved until each has a contrast of 3:1 with its ground (WCAG 1.4.11); the dash
/// is a second sign where hues come close.
struct LineStyle {
  std::string light;      // "#rrggbb"
  std::string dark;       // "#rrggbb"
  std::vector<int> dash;  // lengths on, off, ... in pixels; empty is solid
};

/// Styles for groups of these names, in their order: a known recipe has its own style in every
/// report; the others take, in turn, what is left, then the colours again with other dashes. A
/// sweep (names that differ in a suffix -k<ratio> alone, three or more) runs from orange to blue by
/// ratio.
std::vector<LineStyle> line_styles(const std::vector<std::string>& names);

/// The place of a recipe in tables and legends: by its name without -k<ratio>; unknown ones come
/// last.
int recipe_rank(std::string_view name);

}  // namespace quads
