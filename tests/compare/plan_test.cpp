// Which runs a comparison asks for.
#include "compare/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quads {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PlanOptions options() {
  return {.out = "out",
          .recipes = {"bf16", "quads"},
          .variants = {},
          .shares = {},
          .compensated = {"quads"},
          .seeds = {1, 2},
          .config = "",
          .common_arguments = {}};
}

std::vector<std::string> names(const PlanOptions& options) {
  std::vector<std::string> result;
  for (const PlannedRun& run : plan_runs(options)) result.push_back(run.name);
  return result;
}

TEST(Plan, RecipesBySeedsWholeSeedsFirst) {
  EXPECT_THAT(names(options()),
              ElementsAre("bf16/seed1", "quads/seed1", "bf16/seed2", "quads/seed2"));
  EXPECT_EQ(plan_runs(options())[3].directory, "out/quads/seed2");
}

TEST(Plan, ASweepRunsCompensatedRecipesWithEveryShareAndOthersOnce) {
  PlanOptions o = options();
  o.shares = {0, 12.5, 100};
  o.seeds = {3};
  EXPECT_THAT(names(o),
              ElementsAre("bf16/seed3", "quads-k0/seed3", "quads-k12.5/seed3", "quads-k100/seed3"));
  EXPECT_THAT(plan_runs(o)[2].arguments, ElementsAre("--recipe", "quads", "--rac-ratio", "12.5%",
                                                     "--seed", "3", "--rollout-seed", "3"));
}

TEST(Plan, VariantsComeAfterTheCommonFlagsSoThatTheyWin) {
  PlanOptions o = options();
  o.recipes = {};
  o.variants = {"nvfp4-tis=--recipe nvfp4 --use-tis"};
  o.seeds = {1};
  o.config = "demo.toml";
  o.common_arguments = {"--load", "base"};
  EXPECT_THAT(plan_runs(o)[0].arguments,
              ElementsAre("--config", "demo.toml", "--load", "base", "--recipe", "nvfp4",
                          "--use-tis", "--seed", "1", "--rollout-seed", "1"));
  EXPECT_EQ(plan_runs(o)[0].directory, "out/nvfp4-tis/seed1");
}

std::string error_of(const PlanOptions& options) {
  try {
    plan_runs(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Plan, WhatCannotBeRunIsAnError) {
  PlanOptions o = options();
  o.variants = {"../evil=--recipe bf16"};
  EXPECT_THAT(error_of(o), HasSubstr("'../evil' cannot name a folder"));
  o.variants = {"bf16=--recipe bf16"};
  EXPECT_THAT(error_of(o), HasSubstr("'bf16' is asked for twice"));
  o.variants = {"no flags"};
  EXPECT_THAT(error_of(o), HasSubstr("NAME=\"FLAGS\""));
  o = options();
  o.seeds = {1, 1};
  EXPECT_THAT(error_of(o), HasSubstr("twice"));
  o = options();
  o.shares = {120};
  EXPECT_THAT(error_of(o), HasSubstr("0..100"));
  o = options();
  o.recipes = {};
  EXPECT_THAT(error_of(o), HasSubstr("nothing to run"));
}

TEST(SplitFlags, SplitsAtSpacesButNotWithinQuotes) {
  EXPECT_THAT(split_flags("  --a 1\t--b='x y' \"\" "), ElementsAre("--a", "1", "--b=x y", ""));
  EXPECT_THAT(split_flags(""), ElementsAre());
  EXPECT_THROW(split_flags("--a 'x"), Error);
}

}  // namespace
}  // namespace quads
