// The page as text; how it looks and runs in a browser is tested in tests/oracle.
#include "report/html_report.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/assets.h"
#include "report/fake_runs.h"
#include "report/temporary_directory.h"

namespace quads {
namespace {

using HtmlReportTest = TemporaryDirectory;

nlohmann::json data_of(const std::string& html) {
  const std::string open = "id=\"data\">";
  const size_t begin = html.find(open) + open.size();
  return nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin));
}

TEST(Assets, CanStandInsideAScriptOrStyle) {
  for (const std::string_view script : {kChartJs, kReportJs}) {
    EXPECT_FALSE(contains(script, "</script"));
    EXPECT_FALSE(contains(script, "<!--"));
    EXPECT_GT(script.size(), 1000U);
  }
  EXPECT_FALSE(contains(kReportCss, "</"));
}

TEST_F(HtmlReportTest, HoldsEveryCurveOfEveryRecipe) {
  write_fake_comparison(directory(), 2, 30);
  const auto groups = load_runs({directory()});
  const auto data = data_of(html_report(groups));
  ASSERT_EQ(data.at("groups").size(), fake_recipes().size());
  ASSERT_EQ(data.at("charts").size(), 5U);
  for (const auto& chart : data.at("charts")) {
    EXPECT_EQ(chart.at("series").size(), fake_recipes().size()) << chart.at("id");
    for (const auto& series : chart.at("series")) {
      EXPECT_EQ(series.at("raw").size(), chart.at("id") == "pass" ? 4U : 30U);
      EXPECT_EQ(series.contains("smooth"), chart.at("smooth").get<bool>());
    }
  }
}

TEST_F(HtmlReportTest, AGapOfZeroIsDrawnOnTheFootOfTheLogAxis) {
  write_fake_comparison(directory(), 1, 5);
  const auto data = data_of(html_report(load_runs({directory()})));
  const auto& gap = data.at("charts").at(1);
  ASSERT_EQ(gap.at("id"), "gap");
  EXPECT_EQ(gap.at("axis").at("has_zero"), true);
  EXPECT_EQ(gap.at("series").at(0).at("raw").at(0).at(1), gap.at("axis").at("min"));
}

TEST_F(HtmlReportTest, NamesAndConfigurationsCannotBreakOut) {
  const std::string attack = "</script><script>alert(1)</script><!--";
  const std::string folder = "<img src=x onerror=alert(1)>\"'&";
  write(folder + "/seed1/config.toml", "# " + attack);
  write(folder + "/seed1/metrics.jsonl", "{\"step\":0,\"reward/mean\":1,\"" + attack + "\":1}\n");
  const std::string html = html_report(load_runs({directory()}));
  EXPECT_FALSE(contains(html, "alert(1)</script>"));
  EXPECT_FALSE(contains(html, "<img"));
  EXPECT_TRUE(contains(html, "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;!--"));
  EXPECT_EQ(count_of(html, "<script"), 3U);
  EXPECT_EQ(count_of(html, "</script>"), 3U);
  EXPECT_EQ(data_of(html).at("groups").at(0).at("name"), folder);
}

TEST_F(HtmlReportTest, ANameThatIsNotUtf8StillGivesAPage) {
  write("a\xFF/seed1/metrics.jsonl", "{\"step\":0,\"reward/mean\":1}\n");
  EXPECT_EQ(data_of(html_report(load_runs({directory()}))).at("groups").at(0).at("name"),
            "a\uFFFD");
}

TEST_F(HtmlReportTest, ARunWithoutStepsSaysSoInPlaceOfCharts) {
  std::filesystem::create_directories(directory() / "quads/seed1");
  const std::string html = html_report(load_runs({directory()}));
  EXPECT_TRUE(contains(html, "no run has reported reward/mean yet"));
  EXPECT_TRUE(contains(html, "(no config.toml)"));
  EXPECT_FALSE(contains(html, "<canvas"));
}

TEST_F(HtmlReportTest, AsksForNothingFromOutside) {
  write_fake_comparison(directory(), 1, 3);
  const std::string html = html_report(load_runs({directory()}));
  EXPECT_TRUE(contains(html, "default-src 'none'"));
  for (const char* reference : {" src=", " href=", "@import", "url("}) {
    EXPECT_FALSE(contains(html, reference)) << reference;
  }
}

TEST_F(HtmlReportTest, TheSameRunsGiveTheSameBytesInOneFile) {
  write_fake_comparison(directory(), 1, 3);
  const auto groups = load_runs({directory()});
  write_html_report(directory() / "report.html", groups);
  EXPECT_EQ(read(directory() / "report.html"), html_report(groups));
  EXPECT_THROW(write_html_report(directory() / "none" / "report.html", groups), Error);
}

}  // namespace
}  // namespace quads
