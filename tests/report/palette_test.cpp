// Colours: the same in every report, different within one, and visible on their ground.
#include "report/palette.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>

namespace quads {
namespace {

const std::vector<std::string> kRecipes = {"bf16",     "fp8",       "w4a16",
                                           "nvfp4",    "nvfp4-rac", "qat-w4a16",
                                           "qat-w4a4", "quads",     "quads-aligned"};

// Relative luminance of "#rrggbb" (WCAG 2.1).
double luminance(const std::string& colour) {
  double sum = 0;
  const double weights[] = {0.2126, 0.7152, 0.0722};
  for (int i = 0; i < 3; ++i) {
    const double c =
        std::stoi(colour.substr(static_cast<size_t>(1 + 2 * i), 2), nullptr, 16) / 255.0;
    sum += weights[i] * (c <= 0.03928 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4));
  }
  return sum;
}

double contrast(const std::string& a, const std::string& b) {
  const double x = luminance(a);
  const double y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

size_t distinct(const std::vector<LineStyle>& styles) {
  std::set<std::tuple<std::string, std::string, std::vector<int>>> seen;
  for (const LineStyle& style : styles) seen.insert({style.light, style.dark, style.dash});
  return seen.size();
}

TEST(LineStyles, EveryColourStandsOutFromItsGround) {
  std::vector<std::string> names = kRecipes;
  for (const char* ratio : {"0", "12.5", "25", "50", "75", "100"}) {
    names.push_back(std::string("quads-k") + ratio);
  }
  for (const LineStyle& style : line_styles(names)) {
    EXPECT_GE(contrast(style.light, "#ffffff"), 3) << style.light;
    EXPECT_GE(contrast(style.dark, "#1f2124"), 3) << style.dark;
  }
}

TEST(LineStyles, ARecipeLooksTheSameInEveryReport) {
  const auto all = line_styles(kRecipes);
  for (size_t i = 0; i < kRecipes.size(); ++i) {
    EXPECT_EQ(line_styles({"other", kRecipes[i]})[1].light, all[i].light);
  }
}

TEST(LineStyles, NoTwoOfAReportLookTheSame) {
  EXPECT_EQ(distinct(line_styles(kRecipes)), kRecipes.size());
  std::vector<std::string> names = kRecipes;
  for (int i = 0; i < 15; ++i) names.push_back("mine" + std::to_string(i));
  EXPECT_EQ(distinct(line_styles(names)), names.size());
  EXPECT_EQ(distinct(line_styles({"quads", "quads-k50", "quads-k25"})), 3U);
}

TEST(LineStyles, ASweepRunsThroughARampInOrderOfItsRatio) {
  const auto styles = line_styles({"quads-k100", "quads-k0", "quads-k12.5"});
  EXPECT_EQ(styles[1].light, "#d97b00");
  EXPECT_EQ(styles[2].light, "#bf3f7f");
  EXPECT_EQ(styles[0].light, "#2f3da8");
}

TEST(LineStyles, NamesThatOnlyLookLikeASweepAreOrdinary) {
  for (const char* name :
       {"-k", "x-k", "x-k.", "x-k1.2.3", "x-k50x", "x-k9999999999999999999999"}) {
    EXPECT_EQ(line_styles({name}).size(), 1U) << name;
  }
}

TEST(RecipeRank, PutsASuffixedRecipeWithItsRecipeAndUnknownOnesLast) {
  EXPECT_EQ(recipe_rank("bf16"), 0);
  EXPECT_EQ(recipe_rank("quads-k50"), recipe_rank("quads"));
  EXPECT_LT(recipe_rank("quads-aligned"), recipe_rank("mine"));
}

}  // namespace
}  // namespace quads
