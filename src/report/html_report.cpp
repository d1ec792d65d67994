// The HTML report: one file that needs nothing else.
#include "report/html_report.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "io/atomic_file.h"
#include "report/assets.h"
#include "report/charts.h"
#include "report/escape.h"
#include "report/palette.h"
#include "report/tables.h"

namespace quads {
namespace {

using nlohmann::ordered_json;

// Six digits are more than a screen shows, and a third of the page's size.
double short_number(double value) {
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

using Curves = std::vector<std::vector<CurvePoint>>;  // a curve a group

ordered_json points_json(const std::vector<CurvePoint>& points, const LogAxis* axis) {
  const auto place = [&](double value) { return short_number(axis ? axis->place(value) : value); };
  ordered_json json = ordered_json::array();
  for (const CurvePoint& point : points) {
    json.push_back({point.step, place(point.mean), place(point.min), place(point.max)});
  }
  return json;
}

Curves curves_of(const std::vector<RunGroup>& groups, const ChartSpec& chart, double decay) {
  Curves curves;
  for (const RunGroup& group : groups)
    curves.push_back(curve(group, std::string(chart.key), decay));
  return curves;
}

ordered_json chart_json(const std::vector<RunGroup>& groups, const ChartSpec& chart) {
  const Curves raw = curves_of(groups, chart, 0);
  const LogAxis axis = log_axis(raw);
  const LogAxis* log = chart.log ? &axis : nullptr;
  ordered_json json = {{"id", chart.id},         {"unit", chart.unit},
                       {"smooth", chart.smooth}, {"share", chart.share},
                       {"axis", nullptr},        {"series", ordered_json::array()}};
  if (log) json["axis"] = {{"min", axis.min}, {"max", axis.max}, {"has_zero", axis.has_zero}};
  for (size_t i = 0; i < groups.size(); ++i) {
    if (raw[i].empty()) continue;
    ordered_json series = {
        {"group", i}, {"runs", groups[i].runs.size()}, {"raw", points_json(raw[i], log)}};
    if (chart.smooth) {
      series["smooth"] = points_json(curve(groups[i], std::string(chart.key), kSmoothing), nullptr);
    }
    json["series"].push_back(std::move(series));
  }
  return json;
}

std::string line_key(const LineStyle& style) {
  std::string dashes;
  for (const int length : style.dash) dashes += fmt::format("{} ", length);
  return fmt::format(
      "<svg class=\"key\" style=\"--light:{};--dark:{}\" aria-hidden=\"true\">"
      "<line x1=\"0\" y1=\"5\" x2=\"26\" y2=\"5\" stroke-dasharray=\"{}\"/></svg>",
      style.light, style.dark, dashes);
}

std::string count_text(size_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

std::string controls_html(const std::vector<RunGroup>& groups,
                          const std::vector<LineStyle>& styles) {
  std::string html = "<div class=\"bar\" role=\"group\" aria-label=\"Recipes shown\">\n";
  for (size_t i = 0; i < groups.size(); ++i) {
    html += fmt::format(
        "<button type=\"button\" data-group=\"{}\" aria-pressed=\"true\">{}{}</button>\n", i,
        line_key(styles[i]), escape_html(groups[i].name));
  }
  return html +
         "<label><input type=\"checkbox\" id=\"smooth\" checked> smooth the curves</label>\n"
         "</div>\n";
}

std::string chart_html(const ChartSpec& chart, bool wide, bool has_data) {
  const std::string plot =
      has_data ? fmt::format("<canvas id=\"chart-{}\" role=\"img\" aria-label=\"{}\"></canvas>",
                             chart.id, escape_html(chart.title))
               : fmt::format("<p class=\"empty\">no run has reported {} yet</p>",
                             escape_html(chart.key));
  return fmt::format(
      "<figure{}><figcaption><h3>{}</h3><p>{}</p></figcaption><div class=\"plot\">{}</div>"
      "</figure>\n",
      wide ? " class=\"wide\"" : "", escape_html(chart.title), escape_html(chart.note), plot);
}

std::string table_html(const TableText& table, const std::vector<LineStyle>& styles) {
  std::string html = "<div class=\"scroll\"><table>\n<thead><tr>";
  for (const std::string& cell : table.header) {
    html += "<th scope=\"col\">" + escape_html(cell) + "</th>";
  }
  html += "</tr></thead>\n<tbody>\n";
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const auto& row = table.rows[i];
    html += "<tr><th scope=\"row\">" + line_key(styles[i]) + escape_html(row.front()) + "</th>";
    for (size_t j = 1; j < row.size(); ++j) {
      const bool exact_zero = j == kGapColumn && row[j] == "0";
      html += (exact_zero ? "<td class=\"zero\">" : "<td>") + escape_html(row[j]) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table></div>\n";
}

// One fold a recipe; of runs whose files are the same, only the first is shown.
std::string configs_html(const std::vector<RunGroup>& groups) {
  std::string html;
  for (const RunGroup& group : groups) {
    html += "<details><summary>" + escape_html(group.name) + "</summary>\n";
    std::set<std::string> shown;
    for (const Run& run : group.runs) {
      if (!shown.insert(run.config).second) continue;
      const std::string name =
          run.seed.empty() ? run.directory.filename().string() : "seed " + run.seed;
      html += "<h3>" + escape_html(name) + "</h3><pre>" +
              (run.config.empty() ? "(no config.toml)" : escape_html(run.config)) + "</pre>\n";
    }
    html += "</details>\n";
  }
  return html;
}

}  // namespace

std::string html_report(const std::vector<RunGroup>& groups) {
  std::vector<std::string> names;
  std::vector<Summary> summaries;
  size_t num_runs = 0;
  for (const RunGroup& group : groups) {
    names.push_back(group.name);
    summaries.push_back(summarize(group));
    num_runs += group.runs.size();
  }
  const std::vector<LineStyle> styles = line_styles(names);

  ordered_json data = {{"groups", ordered_json::array()}, {"charts", ordered_json::array()}};
  for (size_t i = 0; i < groups.size(); ++i) {
    data["groups"].push_back({{"name", names[i]},
                              {"light", styles[i].light},
                              {"dark", styles[i].dark},
                              {"dash", styles[i].dash}});
  }
  std::string charts;
  for (const ChartSpec& chart : report_charts()) {
    ordered_json json = chart_json(groups, chart);
    charts += chart_html(chart, chart.id == "reward" || chart.id == "gap", !json["series"].empty());
    data["charts"].push_back(std::move(json));
  }
  const std::string json =
      escape_script_json(data.dump(-1, ' ', false, ordered_json::error_handler_t::replace));

  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "script-src 'unsafe-inline'; style-src 'unsafe-inline'\">\n"
      "<title>Quads report</title>\n<style>\n";
  html += kReportCss;
  html += "</style>\n</head>\n<body>\n<main>\n<header>\n<h1>Quads report</h1>\n";
  html += fmt::format(
      "<p class=\"lead\">{}, {}. A line is the mean over a recipe's seeds, the band around it "
      "reaches from the lowest seed to the highest.</p>\n</header>\n",
      count_text(groups.size(), "recipe"), count_text(num_runs, "run"));
  html += controls_html(groups, styles);
  html += "<div class=\"charts\">\n" + charts + "</div>\n<h2>Results</h2>\n";
  html += table_html(format_table(summaries), styles);
  html += fmt::format(
      "<p class=\"note\">Mean ± standard deviation over seeds; with one seed, pass@1 carries the "
      "standard error of its evaluation (s.e.). Reward and gap are means over the last {} steps, "
      "pass@1 is the last evaluation, tokens/s the median over the steps.</p>\n",
      kLastSteps);
  html += "<h2>Configuration</h2>\n" + configs_html(groups);
  html += "</main>\n<script type=\"application/json\" id=\"data\">" + json + "</script>\n<script>";
  html += kChartJs;
  html += "</script>\n<script>";
  html += kReportJs;
  html += "</script>\n</body>\n</html>\n";
  return html;
}

void write_html_report(const std::filesystem::path& path, const std::vector<RunGroup>& groups) {
  write_file_atomically(path, html_report(groups));
}

}  // namespace quads
