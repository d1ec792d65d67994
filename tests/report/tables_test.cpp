// The table's cells, and its two files.
#include "report/tables.h"

#include <nlohmann/json.hpp>

#include "report/temporary_directory.h"

namespace quads {
namespace {

using TablesTest = TemporaryDirectory;
using Row = std::vector<std::string>;

Summary summary_of(const std::string& name) {
  Summary summary;
  summary.name = name;
  summary.seeds = {"1", "2"};
  summary.min_steps = 240;
  summary.max_steps = 250;
  summary.pass_at_1 = spread_of({0.8, 0.82});
  summary.reward = spread_of({0.85, 0.85});
  summary.gap_max = spread_of({0, 0});
  summary.tokens_per_s = spread_of({1234567, 1234567});
  summary.gap_steps = summary.gap_zero_steps = 490;
  return summary;
}

TEST(FormatTable, ShowsMeanAndSpreadOverSeeds) {
  EXPECT_EQ(format_table({summary_of("quads-aligned")}).rows.at(0),
            (Row{"quads-aligned", "1, 2", "240–250", "0.810 ± 0.014", "0.850 ± 0.000", "0",
                 "490 of 490", "1,234,567"}));
}

TEST(FormatTable, WithOneSeedShowsTheStandardErrorOfTheEvaluation) {
  Summary summary = summary_of("quads");
  summary.seeds = {"7"};
  summary.pass_at_1 = spread_of({0.8});
  summary.pass_at_1_stderr = spread_of({0.009});
  summary.gap_max = spread_of({3.71});
  const Row row = format_table({summary}).rows.at(0);
  EXPECT_EQ(row[1], "7");
  EXPECT_EQ(row[3], "0.800 ± 0.009 s.e.");
  EXPECT_EQ(row[kGapColumn], "3.7");
}

TEST(FormatTable, ATinyGapIsNotShownAsZero) {
  Summary summary = summary_of("x");
  summary.gap_max = spread_of({1e-9, 3e-9});
  EXPECT_EQ(format_table({summary}).rows.at(0)[kGapColumn], "2e-09 ± 1e-09");
}

TEST(FormatTable, MarksWhatNoRunHas) {
  Summary summary;
  summary.name = "new";
  summary.seeds = {""};
  EXPECT_EQ(format_table({summary}).rows.at(0), (Row{"new", "1", "0", "–", "–", "–", "–", "–"}));
}

TEST(MarkdownTable, EscapesMarkupInNames) {
  const std::string text = markdown_table({{"a", "b", "c"}, {{"x|<b>\n`y`", "1", "2"}}});
  EXPECT_EQ(text, "| a | b | c |\n| --- | --- | ---: |\n| x\\|\\<b\\> \\`y\\` | 1 | 2 |\n");
}

TEST(JsonTable, HoldsEveryFigureOfEverySeed) {
  const auto json = nlohmann::json::parse(json_table({summary_of("a\xFF")}));
  const auto& recipe = json.at("recipes").at(0);
  EXPECT_EQ(recipe.at("recipe"), "a\uFFFD");
  EXPECT_EQ(recipe.at("seeds"), (nlohmann::json{"1", "2"}));
  EXPECT_EQ(recipe.at("steps").at("max"), 250);
  EXPECT_EQ(recipe.at("gap_zero_steps"), 490);
  const auto& pass = recipe.at("metrics").at("eval/pass@1");
  EXPECT_DOUBLE_EQ(pass.at("mean"), 0.81);
  EXPECT_EQ(pass.at("n"), 2);
  EXPECT_EQ(pass.at("values"), (nlohmann::json{0.8, 0.82}));
  EXPECT_TRUE(recipe.at("metrics").at("eval/pass@1_stderr").at("mean").is_null());
}

TEST(JsonTable, HasNoSpreadForOneSeed) {
  Summary summary = summary_of("x");
  summary.reward = spread_of({0.5});
  const auto json = nlohmann::json::parse(json_table({summary}));
  EXPECT_TRUE(json["recipes"][0]["metrics"]["reward/mean"]["std"].is_null());
}

TEST_F(TablesTest, WritesBothFiles) {
  write_tables(directory(), {{"quads", {quads::Run{}}}});
  EXPECT_TRUE(contains(read(directory() / "table.md"), "| quads | 1 | 0 |"));
  EXPECT_TRUE(contains(read(directory() / "table.json"), "\"recipe\": \"quads\""));
}

}  // namespace
}  // namespace quads
