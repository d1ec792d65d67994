// The two main curves, reward and largest gap, as one SVG picture.
#include "report/svg_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "io/atomic_file.h"
#include "report/charts.h"
#include "report/escape.h"
#include "report/palette.h"

namespace quads {
namespace {

constexpr double kWidth = 1000;
constexpr double kPlotWidth = 410;
constexpr double kPlotHeight = 250;
constexpr double kMargin = 24;
constexpr double kAxisRoom = 62;  // left of a plot, for the tick labels
constexpr double kLegendRow = 22;
constexpr double kKeyWidth = 26;
constexpr double kCharWidth = 7.3;  // of the legend's letters, generously

// Frames a value axis: where a value is drawn, and the labelled ticks.
struct Axis {
  std::function<double(double)> fraction;  // 0 at the foot, 1 at the top
  std::vector<std::pair<double, std::string>> ticks;
  bool zero_at_foot = false;
};

struct Panel {
  const ChartSpec* chart;
  std::vector<std::vector<CurvePoint>> curves;
  double left;
  double top;
};

// Coordinates to a tenth of a pixel.
std::string px(double value) { return fmt::format("{:.1f}", value); }

Axis linear_axis(const std::vector<std::vector<CurvePoint>>& curves) {
  double low = 0;
  double high = 0;
  for (const auto& points : curves) {
    for (const CurvePoint& point : points) {
      low = std::min(low, point.min);
      high = std::max(high, point.max);
    }
  }
  if (high == low) high = low + 1;
  const double step = tick_step(high - low, 6);
  const auto first = static_cast<int64_t>(std::floor(low / step));
  const auto last = static_cast<int64_t>(std::ceil(high / step - 1e-9));
  Axis axis;
  for (int64_t i = first; i <= last; ++i) {
    const double value = static_cast<double>(i) * step;
    axis.ticks.emplace_back(value, fmt::format("{:.6g}", value));
  }
  const double bottom = static_cast<double>(first) * step;
  const double range = static_cast<double>(last - first) * step;
  axis.fraction = [=](double value) { return (value - bottom) / range; };
  return axis;
}

std::string power_of_ten(int exponent) {
  if (exponent >= -3 && exponent <= 3) return fmt::format("{:g}", std::pow(10, exponent));
  return fmt::format("1e{}", exponent);
}

Axis logarithmic_axis(const LogAxis& log) {
  const auto floor = static_cast<int>(std::lround(std::log10(log.min)));
  const auto last = static_cast<int>(std::lround(std::log10(log.max)));
  const int first = log.has_zero ? floor + 1 : floor;
  Axis axis;
  axis.zero_at_foot = log.has_zero;
  if (log.has_zero) axis.ticks.emplace_back(log.min, "exactly 0");
  const int stride = (last - first) / 8 + 1;
  for (int exponent = first; exponent <= last; exponent += stride) {
    axis.ticks.emplace_back(std::pow(10, exponent), power_of_ten(exponent));
  }
  // A little room below the foot, so that a line on it is seen whole.
  const double bottom = floor - (log.has_zero ? 0.15 : 0);
  axis.fraction = [=](double value) {
    return (std::log10(log.place(value)) - bottom) / (last - bottom);
  };
  return axis;
}

class Canvas {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
    svg_ += '\n';
  }
  std::string take() { return std::move(svg_); }

 private:
  std::string svg_;
};

void draw_axes(Canvas& canvas, const Panel& panel, const Axis& axis, int64_t last_step) {
  const double right = panel.left + kPlotWidth;
  const double foot = panel.top + kPlotHeight;
  for (const auto& [value, label] : axis.ticks) {
    const double y = foot - axis.fraction(value) * kPlotHeight;
    const bool zero = axis.zero_at_foot && &label == &axis.ticks.front().second;
    canvas.add(R"(<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>)", zero ? "zero" : "grid",
               px(panel.left), px(y), px(right), px(y));
    canvas.add(R"(<text class="soft" x="{}" y="{}" text-anchor="end">{}</text>)",
               px(panel.left - 8), px(y + 4), label);
  }
  const double step = tick_step(static_cast<double>(last_step), 6);
  for (int64_t i = 0; static_cast<double>(i) * step <= static_cast<double>(last_step); ++i) {
    const double value = static_cast<double>(i) * step;
    const double x = panel.left + value / static_cast<double>(last_step) * kPlotWidth;
    canvas.add(R"(<text class="soft" x="{}" y="{}" text-anchor="middle">{:g}</text>)", px(x),
               px(foot + 20), value);
  }
  canvas.add(R"(<line class="rule" x1="{0}" y1="{1}" x2="{2}" y2="{1}"/>)", px(panel.left),
             px(foot), px(right));
  canvas.add(R"(<text class="soft" x="{}" y="{}" text-anchor="middle">step</text>)",
             px(panel.left + kPlotWidth / 2), px(foot + 40));
  canvas.add(R"(<text class="title" x="{}" y="{}">{}</text>)", px(panel.left), px(panel.top - 18),
             escape_html(panel.chart->title));
}

void draw_curve(Canvas& canvas, const Panel& panel, const Axis& axis, int64_t last_step,
                size_t group) {
  const auto& points = panel.curves[group];
  const auto x = [&](const CurvePoint& point) {
    return panel.left +
           static_cast<double>(point.step) / static_cast<double>(last_step) * kPlotWidth;
  };
  const auto y = [&](double value) { return panel.top + (1 - axis.fraction(value)) * kPlotHeight; };
  std::string band;
  std::string line;
  for (const CurvePoint& point : points) {
    line += fmt::format("{},{} ", px(x(point)), px(y(point.mean)));
    band += fmt::format("{},{} ", px(x(point)), px(y(point.max)));
  }
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    band += fmt::format("{},{} ", px(x(*point)), px(y(point->min)));
  }
  const bool several = std::any_of(points.begin(), points.end(),
                                   [](const CurvePoint& point) { return point.n > 1; });
  if (several) canvas.add(R"(<polygon class="b{}" points="{}"/>)", group, band);
  if (!points.empty()) canvas.add(R"(<polyline class="l{}" points="{}"/>)", group, line);
}

void draw_style(Canvas& canvas, const std::vector<LineStyle>& styles) {
  canvas.add("<style>");
  canvas.add(
      "text{{font:13px system-ui,'Segoe UI','Helvetica Neue','DejaVu Sans',sans-serif;"
      "fill:#1d1d1b}} .soft{{fill:#62625c;font-size:12px}} "
      ".title{{font-size:15px;font-weight:600}} .page{{fill:#ffffff}} "
      "line{{stroke-width:1}} .grid{{stroke:#e9e9e3}} .rule{{stroke:#b9b9b2}} "
      ".zero{{stroke:#8a8a84;stroke-dasharray:2 3}} "
      "polyline,.key{{fill:none;stroke-width:2;stroke-linejoin:round}} "
      "polygon{{opacity:.16}}");
  std::string dark;
  for (size_t i = 0; i < styles.size(); ++i) {
    std::string dashes;
    for (const int length : styles[i].dash) dashes += fmt::format("{} ", length);
    canvas.add(".l{0}{{stroke:{1};stroke-dasharray:{2}}} .b{0}{{fill:{1}}}", i, styles[i].light,
               dashes.empty() ? "none" : dashes);
    dark += fmt::format(".l{0}{{stroke:{1}}} .b{0}{{fill:{1}}} ", i, styles[i].dark);
  }
  canvas.add(
      "@media (prefers-color-scheme: dark){{text{{fill:#ececea}} .soft{{fill:#a3a4a6}} "
      ".page{{fill:#161719}} .grid{{stroke:#2c2f33}} .rule{{stroke:#55595e}} {}}}",
      dark);
  canvas.add("</style>");
}

// The legend's keys from left to right, in as many rows as they need; returns the height they take.
double draw_legend(Canvas& canvas, const std::vector<RunGroup>& groups, double top) {
  double x = kMargin;
  double y = top;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto letters = std::count_if(groups[i].name.begin(), groups[i].name.end(),
                                       [](char c) { return (c & 0xC0) != 0x80; });
    const double width = kKeyWidth + 8 + static_cast<double>(letters) * kCharWidth + 18;
    if (x > kMargin && x + width > kWidth - kMargin) {
      x = kMargin;
      y += kLegendRow;
    }
    canvas.add(R"(<line class="key l{}" x1="{}" y1="{}" x2="{}" y2="{}"/>)", i, px(x), px(y + 10),
               px(x + kKeyWidth), px(y + 10));
    canvas.add(R"(<text x="{}" y="{}">{}</text>)", px(x + kKeyWidth + 8), px(y + 14.5),
               escape_html(groups[i].name));
    x += width;
  }
  return y + kLegendRow - top;
}

const ChartSpec& chart_of(std::string_view id) {
  const auto& charts = report_charts();
  return *std::find_if(charts.begin(), charts.end(),
                       [&](const ChartSpec& chart) { return chart.id == id; });
}

}  // namespace

double tick_step(double range, int max_ticks) {
  const double rough = range / max_ticks;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string svg_report(const std::vector<RunGroup>& groups) {
  std::vector<std::string> names;
  names.reserve(groups.size());
  for (const RunGroup& group : groups) names.push_back(group.name);

  Canvas body;
  const double legend = draw_legend(body, groups, kMargin);
  const double top = kMargin + legend + 52;
  const double height = top + kPlotHeight + 40 + kMargin;
  Panel panels[] = {
      {&chart_of("reward"), {}, kMargin + kAxisRoom - 20, top},
      {&chart_of("gap"), {}, kWidth - kMargin - kPlotWidth, top},
  };
  int64_t last_step = 1;
  for (Panel& panel : panels) {
    for (const RunGroup& group : groups) {
      panel.curves.push_back(
          curve(group, std::string(panel.chart->key), panel.chart->smooth ? kSmoothing : 0));
      if (!panel.curves.back().empty()) {
        last_step = std::max(last_step, panel.curves.back().back().step);
      }
    }
  }
  for (const Panel& panel : panels) {
    const Axis axis =
        panel.chart->log ? logarithmic_axis(log_axis(panel.curves)) : linear_axis(panel.curves);
    draw_axes(body, panel, axis, last_step);
    // The reference comes first in the legend and lies on top where curves coincide: it is dashed.
    for (size_t i = groups.size(); i-- > 0;) draw_curve(body, panel, axis, last_step, i);
  }

  Canvas canvas;
  canvas.add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" )"
             R"(viewBox="0 0 {0} {1}" role="img" aria-label="{2}">)",
             kWidth, height,
             "Training reward, and largest gap between rollout and trainer, by recipe");
  draw_style(canvas, line_styles(names));
  canvas.add(R"(<rect class="page" width="{}" height="{}" rx="8"/>)", kWidth, height);
  return canvas.take() + body.take() + "</svg>\n";
}

void write_svg(const std::filesystem::path& path, const std::vector<RunGroup>& groups) {
  write_file_atomically(path, svg_report(groups));
}

}  // namespace quads
