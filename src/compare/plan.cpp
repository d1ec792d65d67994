#include "compare/plan.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace quads {
namespace {

struct Group {
  std::string name;
  std::vector<std::string> flags;
};

void require_plain_name(const std::string& name) {
  const bool plain = !name.empty() && name[0] != '.' && name[0] != '-' &&
                     std::ranges::all_of(name, [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '+';
                     });
  require(plain, "'{}' cannot name a folder of runs: letters, digits and -_.+ are allowed", name);
}

std::vector<Group> groups_of(const PlanOptions& options) {
  std::vector<Group> groups;
  for (const std::string& recipe : options.recipes) {
    const bool sweeps = std::ranges::find(options.compensated, recipe) != options.compensated.end();
    if (options.shares.empty() || !sweeps) {
      groups.push_back({recipe, {"--recipe", recipe}});
      continue;
    }
    for (double share : options.shares) {
      require(share >= 0 && share <= 100, "--k {}: a share is in 0..100 per cent", share);
      groups.push_back({fmt::format("{}-k{:g}", recipe, share),
                        {"--recipe", recipe, "--rac-ratio", fmt::format("{:g}%", share)}});
    }
  }
  for (const std::string& variant : options.variants) {
    const size_t equals = variant.find('=');
    require(equals != std::string::npos && equals > 0, "--variant '{}': NAME=\"FLAGS\" is expected",
            variant);
    groups.push_back({variant.substr(0, equals), split_flags(variant.substr(equals + 1))});
  }
  return groups;
}

}  // namespace

std::vector<std::string> split_flags(const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (const char c : text) {
    if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else {
      words.back() += c;
    }
  }
  require(quote == 0, "flags '{}': a {} is not closed", text, quote);
  return words;
}

std::vector<PlannedRun> plan_runs(const PlanOptions& options) {
  const std::vector<Group> groups = groups_of(options);
  require(!groups.empty() && !options.seeds.empty(),
          "nothing to run: give --recipes or --variant, and --seeds");
  std::set<std::string> names;
  for (const Group& group : groups) {
    require_plain_name(group.name);
    require(names.insert(group.name).second, "'{}' is asked for twice", group.name);
  }
  require(std::set(options.seeds.begin(), options.seeds.end()).size() == options.seeds.size(),
          "--seeds: a seed is there twice");
  std::vector<PlannedRun> runs;
  for (uint64_t seed : options.seeds) {
    for (const Group& group : groups) {
      PlannedRun& run = runs.emplace_back();
      run.name = fmt::format("{}/seed{}", group.name, seed);
      run.directory = options.out / group.name / fmt::format("seed{}", seed);
      if (!options.config.empty()) run.arguments = {"--config", options.config};
      const auto add = [&](const std::vector<std::string>& more) {
        run.arguments.insert(run.arguments.end(), more.begin(), more.end());
      };
      add(options.common_arguments);
      add(group.flags);
      add({"--seed", fmt::format("{}", seed), "--rollout-seed", fmt::format("{}", seed)});
    }
  }
  return runs;
}

}  // namespace quads
