// quads compare: recipes by seeds, side by side.
#include <cstdio>

#include "base/error.h"
#include "cli/command.h"
#include "compare/child_process.h"
#include "compare/run_all.h"
#include "io/output_lock.h"
#include "report/html_report.h"
#include "report/plain_table.h"
#include "report/svg_report.h"
#include "rl/recipe.h"

namespace quads::cli {
namespace {

struct Options {
  PlanOptions plan;
  std::string out, load;
  std::vector<std::string> train_flags;
  int jobs = 0;
  int threads_per_run = 1;
};

void write_results(const std::filesystem::path& out, const std::vector<PlannedRun>& runs) {
  std::vector<std::filesystem::path> directories;
  for (const PlannedRun& run : runs) {
    if (std::filesystem::exists(run.directory / "metrics.jsonl")) {
      directories.push_back(run.directory);
    }
  }
  if (directories.empty()) return;
  const std::vector<RunGroup> groups = load_runs(directories);
  write_tables(out, groups);
  write_html_report(out / "report.html", groups);
  write_svg(out / "report.svg", groups);
  std::vector<Summary> summaries;
  summaries.reserve(groups.size());
  for (const RunGroup& group : groups) summaries.push_back(summarize(group));
  std::printf("%s\nreport: %s\n", plain_table(format_table(summaries)).c_str(),
              (out / "report.html").c_str());
}

// Before anything is run: a typing error in a flag would end every run in the same way.
void check_arguments(const PlannedRun& run) {
  std::vector<std::string> arguments = run.arguments;
  // What run_all adds, too, so that a flag that is given twice is found here.
  arguments.insert(arguments.end(), {"--out", run.directory.string(), "--threads", "1"});
  try {
    check_train(arguments);
  } catch (const CLI::Success&) {
    throw CLI::ValidationError(fmt::format("{}: --help is not a flag of a run", run.name));
  } catch (const CLI::Error& error) {
    throw CLI::ValidationError(fmt::format("{}: {}", run.name, error.what()));
  }
}

void run(const Options& o) {
  PlanOptions plan = o.plan;
  plan.out = o.out;
  for (const RecipeInfo& info : recipes()) {
    if (info.rollout.rac.ratio > 0) plan.compensated.emplace_back(info.name);
  }
  if (!o.load.empty()) plan.common_arguments = {"--load", o.load};
  plan.common_arguments.insert(plan.common_arguments.end(), o.train_flags.begin(),
                               o.train_flags.end());
  const std::vector<PlannedRun> runs = from_options([&] { return plan_runs(plan); });
  for (const PlannedRun& run : runs) check_arguments(run);
  make_out_folder(o.out);
  const OutputLock lock = OutputLock::inside(o.out);
  const std::atomic<bool>& stop = stop_requested();
  const int jobs = o.jobs > 0 ? o.jobs : std::max(1, available_cores() / o.threads_per_run);
  const std::vector<RunFailure> failures = run_all(
      runs, {.program = this_program(), .jobs = jobs, .threads_per_run = o.threads_per_run}, stop);
  write_results(o.out, runs);
  require(!stop, "stopped; the same command continues the runs");
  std::vector<std::string> failed;
  failed.reserve(failures.size());
  for (const RunFailure& failure : failures) failed.push_back(failure.name);
  require(failed.empty(), "{} of {} runs failed ({}), each for the reason in its log.txt",
          failed.size(), runs.size(), fmt::join(failed, ", "));
}

}  // namespace

void add_compare(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "compare",
      "recipes by seeds: runs of quads train, a table and report.html. The same command continues "
      "what was stopped");
  const auto o = std::make_shared<Options>();
  PlanOptions& plan = o->plan;
  plan.seeds = {1};
  command->add_option("--config", plan.config,
                      "TOML file whose keys are the options of quads train");
  command->add_option("--out", o->out, "folder of the runs, DIR/<recipe>/seed<S>")->required();
  command->add_option("--load", o->load, "model directory to start from (--load of quads train)");
  // Lists are one word, so that -- may follow them.
  command->add_option("--recipes", plan.recipes, "recipes: bf16,nvfp4,quads")
      ->delimiter(',')
      ->check(CLI::IsMember(recipe_names()))
      ->allow_extra_args(false);
  command
      ->add_option("--variant", plan.variants,
                   "NAME=\"FLAGS\": runs named NAME with these flags of quads train; repeatable")
      ->allow_extra_args(false);
  command
      ->add_option("--k", plan.shares,
                   "run each recipe with compensation at these shares, per cent: 0,12.5,25")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0))
      ->allow_extra_args(false);
  command->add_option("--seeds", plan.seeds, "seeds: 1,2,3")
      ->capture_default_str()
      ->check(not_negative())
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--jobs", o->jobs, "runs at a time; 0: cores / --threads-per-run")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--threads-per-run", o->threads_per_run, "threads of a run")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));  // what --threads takes
  command->add_option("train-flags", o->train_flags, "after --: flags of quads train for all runs")
      ->type_name("FLAGS");
  command->callback([o] { run(*o); });
}

}  // namespace quads::cli
