// Finding runs, grouping them into recipes, and telling groups apart.
#include "report/runs.h"

#include <unistd.h>

#include "base/error.h"
#include "report/temporary_directory.h"

namespace quads {
namespace {

class RunsTest : public TemporaryDirectory {
 protected:
  void run(const std::string& name, const std::string& metrics = "{\"step\":0}\n") {
    write(name + "/metrics.jsonl", metrics);
  }
  std::vector<RunGroup> load(const std::vector<std::string>& names = {""}) {
    std::vector<std::filesystem::path> paths;
    for (const std::string& name : names) paths.push_back(directory() / name);
    return load_runs(paths);
  }
  std::vector<std::string> names(const std::vector<RunGroup>& groups) {
    std::vector<std::string> names;
    for (const RunGroup& group : groups) names.push_back(group.name);
    return names;
  }
};

using Names = std::vector<std::string>;

TEST_F(RunsTest, SeedsOfARecipeFormOneGroupInOrderOfTheirValue) {
  for (const char* seed : {"seed10", "seed2", "seed1"}) run(std::string("quads/") + seed);
  write("quads/seed2/config.toml", "lr = 1");
  const auto groups = load();
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].name, "quads");
  ASSERT_EQ(groups[0].runs.size(), 3U);
  EXPECT_EQ(groups[0].runs[0].seed, "1");
  EXPECT_EQ(groups[0].runs[1].seed, "2");
  EXPECT_EQ(groups[0].runs[1].config, "lr = 1");
  EXPECT_EQ(groups[0].runs[2].seed, "10");
}

TEST_F(RunsTest, RecipesComeInTheOrderOfTheDocumentsAndSweepsByRatio) {
  for (const char* name : {"zebra", "quads-k100", "quads-aligned", "nvfp4", "quads-k12.5", "bf16",
                           "quads-k50", "quads-k0"}) {
    run(std::string(name) + "/seed1");
  }
  EXPECT_EQ(names(load()), (Names{"bf16", "nvfp4", "quads-k0", "quads-k12.5", "quads-k50",
                                  "quads-k100", "quads-aligned", "zebra"}));
}

TEST_F(RunsTest, ARunOfAnotherNameIsAGroupOfItsOwn) {
  run("mine");
  run("yours");
  const auto groups = load({"yours", "mine"});
  EXPECT_EQ(names(groups), (Names{"mine", "yours"}));
  EXPECT_EQ(groups[0].runs[0].seed, "");
}

TEST_F(RunsTest, EqualNamesAreToldApartByTheFoldersAbove) {
  run("a/quads/seed1");
  run("b/quads/seed1");
  run("b/bf16/seed1");
  EXPECT_EQ(names(load({"a", "b"})), (Names{"bf16", "a/quads", "b/quads"}));
}

TEST_F(RunsTest, ARunNamedTwiceCountsOnce) {
  run("quads/seed1");
  EXPECT_EQ(load({"quads/seed1", "quads", "quads/../quads/seed1"}).at(0).runs.size(), 1U);
}

TEST_F(RunsTest, AnEmptySeedFolderIsARunWithoutSteps) {
  std::filesystem::create_directories(directory() / "quads/seed1");
  const auto groups = load();
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_TRUE(groups[0].runs.at(0).lines.empty());
}

TEST_F(RunsTest, FoldersInsideARunAreNotRuns) {
  run("quads/seed1");
  write("quads/seed1/checkpoints/step_000010/config.toml", "");
  EXPECT_EQ(load().at(0).runs.size(), 1U);
}

TEST_F(RunsTest, ATornLastLineIsDroppedAndRealDamageNamesTheFile) {
  run("a", "{\"step\":0}\n{\"step\":1");
  EXPECT_EQ(load({"a"}).at(0).runs.at(0).lines.size(), 1U);
  run("b", "{\"step\":0}\nx\n{\"step\":2}\n");
  EXPECT_TRUE(contains(error_of([&] { load({"b"}); }), "b/metrics.jsonl:2"));
}

TEST_F(RunsTest, APathWithoutARunIsAnErrorThatNamesIt) {
  run("a");
  write("empty/notes.txt", "");
  EXPECT_TRUE(contains(error_of([&] { load({"a", "empty"}); }), "empty: no run"));
  EXPECT_TRUE(contains(error_of([&] { load({"none"}); }), "none: not a directory"));
  EXPECT_TRUE(contains(error_of([&] { load({"a/metrics.jsonl"}); }), "not a directory"));
}

TEST_F(RunsTest, ALoopOfLinksEnds) {
  run("a");
  std::filesystem::create_directory_symlink(directory(), directory() / "loop");
  EXPECT_EQ(load().size(), 1U);
}

TEST(NaturalLess, ComparesNumbersByValue) {
  EXPECT_TRUE(natural_less("k2", "k10"));
  EXPECT_FALSE(natural_less("k10", "k2"));
  EXPECT_TRUE(natural_less("k12.5", "k50"));
  EXPECT_FALSE(natural_less("a", "a"));
  EXPECT_TRUE(natural_less("a", "ab"));
  EXPECT_TRUE(natural_less("9", "99999999999999999999999"));
  EXPECT_FALSE(natural_less("007", "7"));
  EXPECT_FALSE(natural_less("7", "007"));
}

}  // namespace
}  // namespace quads
