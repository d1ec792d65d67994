// Finding and reading run directories, and grouping them into recipes.
#include "report/runs.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "io/file.h"
#include "report/palette.h"

namespace quads {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kSearchDepth = 3;  // DIR/<recipe>/seed<S>, and one folder of experiments above

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The S of "seed<S>", or nothing.
std::string seed_of(const fs::path& directory) {
  const std::string name = directory.filename().string();
  if (!name.starts_with("seed") || name.size() == 4) return "";
  return std::all_of(name.begin() + 4, name.end(), is_digit) ? name.substr(4) : "";
}

bool is_run(const fs::path& directory) {
  return fs::exists(directory / "metrics.jsonl") || fs::exists(directory / "config.toml") ||
         !seed_of(directory).empty();
}

void find_runs(const fs::path& directory, int depth, std::set<fs::path>& found) {
  if (is_run(directory)) {
    found.insert(fs::canonical(directory));  // a link to a run is that run
  } else if (depth > 0) {
    for (const auto& entry : fs::directory_iterator(directory)) {
      const bool hidden = entry.path().filename().string().starts_with('.');
      if (entry.is_directory() && !hidden) find_runs(entry.path(), depth - 1, found);
    }
  }
}

Run load_run(const fs::path& directory) {
  Run run;
  run.directory = directory;
  run.seed = seed_of(directory);
  if (fs::exists(directory / "config.toml"))
    run.config = read_text_file(directory / "config.toml", kMaxConfigBytes);
  if (fs::exists(directory / "metrics.jsonl")) {
    run.lines = read_metrics_file(directory / "metrics.jsonl");
  }
  return run;
}

// The last `parts` names of `path`, joined by slashes.
std::string tail_of(const fs::path& path, int parts) {
  fs::path rest = path;
  std::string tail = rest.filename().string();
  for (int i = 1; i < parts && rest.has_parent_path() && rest.parent_path() != rest; ++i) {
    rest = rest.parent_path();
    if (!rest.filename().empty()) tail = fmt::format("{}/{}", rest.filename().string(), tail);
  }
  return tail;
}

// Names the group folders by as few of their last folders as tell all of them apart.
std::map<fs::path, std::string> name_groups(const std::map<fs::path, std::vector<Run>>& groups) {
  std::map<fs::path, std::string> names;
  for (const auto& [folder, runs] : groups) {
    int parts = 1;
    const auto clashes = [&, &folder = folder](int count) {
      return std::any_of(groups.begin(), groups.end(), [&](const auto& other) {
        return other.first != folder && tail_of(other.first, count) == tail_of(folder, count);
      });
    };
    const int deepest = static_cast<int>(std::distance(folder.begin(), folder.end()));
    while (parts < deepest && clashes(parts)) ++parts;
    names[folder] = tail_of(folder, parts);
  }
  return names;
}

}  // namespace

bool run_has_begun(const fs::path& directory) {
  return fs::exists(directory / "config.toml") || fs::exists(directory / "metrics.jsonl") ||
         fs::exists(directory / "checkpoints");
}

bool run_has_steps(const fs::path& directory) {
  const fs::path metrics = directory / "metrics.jsonl";
  return (fs::exists(metrics) && !fs::is_empty(metrics)) || fs::exists(directory / "checkpoints");
}

bool natural_less(std::string_view a, std::string_view b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const auto number = [](std::string_view text, size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view left = number(a, i);
    const std::string_view right = number(b, j);
    if (left.size() != right.size()) return left.size() < right.size();
    if (left != right) return left < right;
  }
  return a.size() - i < b.size() - j;
}

std::vector<RunGroup> load_runs(const std::vector<fs::path>& paths) {
  std::set<fs::path> directories;
  for (const fs::path& path : paths) {
    require(fs::is_directory(path), "{}: not a directory", path.string());
    std::set<fs::path> found;
    try {
      find_runs(fs::canonical(path), kSearchDepth, found);
    } catch (const fs::filesystem_error& error) {
      fail("{}: cannot be searched for runs: {}", path.string(), error.code().message());
    }
    require(!found.empty(), "{}: no run in it (a run directory holds metrics.jsonl)",
            path.string());
    directories.merge(found);
  }
  std::map<fs::path, std::vector<Run>> by_folder;
  for (const fs::path& directory : directories) {
    Run run = load_run(directory);
    const fs::path folder = run.seed.empty() ? directory : directory.parent_path();
    by_folder[folder].push_back(std::move(run));
  }
  const auto names = name_groups(by_folder);
  std::vector<RunGroup> groups;
  for (auto& [folder, runs] : by_folder) {
    std::sort(runs.begin(), runs.end(),
              [](const Run& a, const Run& b) { return natural_less(a.seed, b.seed); });
    groups.push_back({names.at(folder), std::move(runs)});
  }
  std::sort(groups.begin(), groups.end(), [](const RunGroup& a, const RunGroup& b) {
    const int left = recipe_rank(a.name);
    const int right = recipe_rank(b.name);
    if (left != right) return left < right;
    return natural_less(a.name, b.name) || (!natural_less(b.name, a.name) && a.name < b.name);
  });
  return groups;
}

}  // namespace quads
