// Drives the report library from the oracle tests.
//   report_tool events DIR FIRST LAST RESUME   TensorBoard scalars for steps FIRST..LAST-1
//   report_tool fake DIR SEEDS STEPS           run directories with realistic curves
//   report_tool report OUT.html RUN...         the HTML report
//   report_tool svg OUT.svg RUN...             the SVG picture
//   report_tool tables DIR RUN...              table.md and table.json
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "report/fake_runs.h"
#include "report/html_report.h"
#include "report/svg_report.h"
#include "report/tables.h"
#include "report/tensorboard_sink.h"
#include "tool_main.h"

namespace {

void write_events(const std::filesystem::path& directory, int first, int last, int resume) {
  quads::TensorBoardSink sink(directory, resume);
  for (int step = first; step < last; ++step) {
    quads::MetricsRow row(step);
    row.set("reward/mean", 0.1 * step);
    row.set("train/lr", 1e-4 / (step + 1));
    row.set("gap/max", step == 3 ? HUGE_VAL : 0.0);
    row.set("count", step);
    row.set("note", "strings are not scalars");
    sink.write(row);
  }
}

void run(const std::vector<std::string>& args) {
  quads::require(args.size() >= 3, "usage: see report_tool.cpp");
  const std::string& command = args[0];
  const std::filesystem::path out = args[1];
  if (command == "events")
    return write_events(out, std::stoi(args.at(2)), std::stoi(args.at(3)), std::stoi(args.at(4)));
  if (command == "fake") {
    return quads::write_fake_comparison(out, std::stoi(args.at(2)), std::stoi(args.at(3)));
  }
  const auto groups = quads::load_runs({args.begin() + 2, args.end()});
  if (command == "report") return quads::write_html_report(out, groups);
  if (command == "svg") return quads::write_svg(out, groups);
  if (command == "tables") return quads::write_tables(out, groups);
  quads::fail("unknown command '{}'", command);
}

}  // namespace

int main(int argc, char** argv) {
  return quads::tool_main([&] { run({argv + 1, argv + argc}); });
}
