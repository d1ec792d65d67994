#include "checkpoints/module_patterns.h"

#include "tests/io/test_files.h"

namespace quads {
namespace {

bool matches(const std::string& entry, const std::string& module) {
  return ModulePatterns({entry}, "list").match(module);
}

TEST(ModulePatterns, NamesAndParentsNamesMatchWholeComponents) {
  EXPECT_TRUE(matches("lm_head", "lm_head"));
  EXPECT_TRUE(matches("model.layers.1", "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(matches("model.layers.1", "model.layers.10.self_attn.q_proj"));
  EXPECT_FALSE(matches("model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(matches("self_attn", "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(ModulePatterns({}, "list").match("lm_head"));
}

TEST(ModulePatterns, WildcardsMatchTheWholeName) {
  EXPECT_TRUE(matches("*.self_attn.*", "model.layers.1.self_attn.q_proj"));
  EXPECT_TRUE(matches("model.layers.0.self_attn*", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(matches("*.self_attn", "model.layers.1.self_attn.q_proj"));
}

TEST(ModulePatterns, RegularExpressionsMatchFromTheStart) {
  EXPECT_TRUE(matches("re:.*lm_head", "lm_head"));
  EXPECT_TRUE(matches("re:.*mlp.gate$", "model.layers.1.mlp.gate"));
  EXPECT_FALSE(matches("re:.*mlp.gate$", "model.layers.1.mlp.gate_proj"));
  EXPECT_FALSE(matches("re:mlp", "model.layers.1.mlp.gate"));
}

TEST(ModulePatterns, MovedAndCopiedListsMatchAsBefore) {
  ModulePatterns first({"lm_head", "re:.*gate$"}, "list");
  const ModulePatterns copy = first;
  const ModulePatterns moved = std::move(first);
  for (const ModulePatterns* patterns : {&copy, &moved}) {
    EXPECT_TRUE(patterns->match("lm_head"));
    EXPECT_TRUE(patterns->match("model.layers.1.mlp.gate"));
  }
}

TEST(ModulePatterns, BadEntriesAreNamed) {
  expect_contains(error_of([] { ModulePatterns({"re:(a"}, "ignore"); }), "ignore: '(a'");
  expect_contains(error_of([] { ModulePatterns({""}, "ignore"); }), "ignore: an entry is empty");
}

TEST(ModulePatterns, AnExpressionThatExplodesIsAnErrorNotAHang) {
  const ModulePatterns patterns({"re:(a+)+$"}, "ignore");
  expect_contains(error_of([&] { patterns.match(std::string(60, 'a') + "b"); }), "(a+)+$");
}

}  // namespace
}  // namespace quads
