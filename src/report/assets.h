// Files that are compiled into the library (see cmake/embed_text.cmake).
#pragma once

#include <string_view>

namespace quads {

extern const std::string_view kChartJs;    // Chart.js, from Debian's libjs-chart.js
extern const std::string_view kReportJs;   // assets/report.js
extern const std::string_view kReportCss;  // assets/report.css

}  // namespace quads
