// quads report: the runs' curves and table as one HTML page, or the two main curves as a picture.
#include <cstdio>

#include "cli/command.h"
#include "io/atomic_file.h"
#include "report/html_report.h"
#include "report/plain_table.h"
#include "report/svg_report.h"

namespace quads::cli {
namespace {

struct Options {
  std::vector<std::string> runs;
  std::string out;
};

void run(const Options& o) {
  require_writable_target(o.out);
  const std::string extension = std::filesystem::path(o.out).extension();
  if (extension != ".html" && extension != ".svg") {
    throw CLI::ValidationError("--out", fmt::format("'{}' ends neither with .html, for a page, nor "
                                                    "with .svg, for a picture",
                                                    o.out));
  }
  const std::vector<RunGroup> groups = load_runs({o.runs.begin(), o.runs.end()});
  extension == ".svg" ? write_svg(o.out, groups) : write_html_report(o.out, groups);
  std::vector<Summary> summaries;
  summaries.reserve(groups.size());
  for (const RunGroup& group : groups) summaries.push_back(summarize(group));
  std::printf("%s\nreport: %s\n", plain_table(format_table(summaries)).c_str(), o.out.c_str());
}

}  // namespace

void add_report(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("report", "an HTML page with the curves and the table of runs");
  const auto o = std::make_shared<Options>();
  add_config(command);
  command->add_option("runs", o->runs, "run directories, or folders that hold some")->required();
  command->add_option("--out", o->out, "HTML page to write, or a picture if it ends with .svg")
      ->required();
  command->callback([o] { run(*o); });
}

}  // namespace quads::cli
