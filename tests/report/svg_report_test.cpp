// The SVG picture as text; that a browser draws it is tested in tests/oracle.
#include "report/svg_report.h"

#include <cmath>

#include "report/fake_runs.h"
#include "report/temporary_directory.h"

namespace quads {
namespace {

using SvgReportTest = TemporaryDirectory;

TEST(TickStep, IsOneTwoOrFiveTimesAPowerOfTen) {
  EXPECT_DOUBLE_EQ(tick_step(1, 5), 0.2);
  EXPECT_DOUBLE_EQ(tick_step(0.9, 6), 0.2);
  EXPECT_DOUBLE_EQ(tick_step(249, 6), 50);
  EXPECT_DOUBLE_EQ(tick_step(6, 6), 1);
  EXPECT_DOUBLE_EQ(tick_step(7000, 6), 2000);
  EXPECT_DOUBLE_EQ(tick_step(1e-6, 6), 2e-7);
}

TEST_F(SvgReportTest, HasALineInBothPanelsAndAKeyForEveryRecipe) {
  write_fake_comparison(directory(), 2, 20);
  const std::string svg = svg_report(load_runs({directory()}));
  EXPECT_EQ(count_of(svg, "<polyline"), 2 * fake_recipes().size());
  EXPECT_EQ(count_of(svg, "<polygon"), 2 * fake_recipes().size());
  EXPECT_EQ(count_of(svg, "class=\"key "), fake_recipes().size());
  EXPECT_TRUE(contains(svg, ">exactly 0</text>"));
  EXPECT_TRUE(contains(svg, ">quads-aligned</text>"));
  EXPECT_FALSE(contains(svg, "nan"));
  EXPECT_FALSE(contains(svg, "inf"));
}

TEST_F(SvgReportTest, OneSeedHasNoBandAndNoZeroHasNoFoot) {
  write("quads/seed1/metrics.jsonl",
        "{\"step\":0,\"reward/mean\":-1,\"gap/max\":2}\n{\"step\":1,\"gap/max\":3}\n");
  const std::string svg = svg_report(load_runs({directory()}));
  EXPECT_EQ(count_of(svg, "<polyline"), 2U);
  EXPECT_EQ(count_of(svg, "<polygon"), 0U);
  EXPECT_FALSE(contains(svg, "exactly 0"));
}

TEST_F(SvgReportTest, ManyRecipesWrapTheLegendIntoRows) {
  for (int i = 0; i < 30; ++i) {
    write("a-recipe-with-a-name-" + std::to_string(i) + "/seed1/metrics.jsonl", "{\"step\":0}\n");
  }
  const std::string svg = svg_report(load_runs({directory()}));
  double right = 0;
  for (size_t at = svg.find("class=\"key "); at != std::string::npos;
       at = svg.find("class=\"key ", at + 1)) {
    const size_t x2 = svg.find("x2=\"", at) + 4;
    right = std::max(right, std::stod(svg.substr(x2)));
  }
  EXPECT_GT(right, 500);
  EXPECT_LT(right, 1000 - 160);  // room for the name beside the key
}

TEST_F(SvgReportTest, NamesAreEscapedAndEmptyRunsGiveEmptyPanels) {
  std::filesystem::create_directories(directory() / "<script>&/seed1");
  const std::string svg = svg_report(load_runs({directory()}));
  EXPECT_TRUE(contains(svg, "&lt;script&gt;&amp;"));
  EXPECT_FALSE(contains(svg, "<script"));
  EXPECT_EQ(count_of(svg, "<polyline"), 0U);
}

TEST_F(SvgReportTest, WritesTheFile) {
  write_fake_comparison(directory(), 1, 3);
  const auto groups = load_runs({directory()});
  write_svg(directory() / "curves.svg", groups);
  EXPECT_EQ(read(directory() / "curves.svg"), svg_report(groups));
}

}  // namespace
}  // namespace quads
