// The HTML report: one file that needs nothing else.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/runs.h"

namespace quads {

/// A page with the curves of report_charts() (mean over seeds, band from the lowest to the
/// highest), the table of format_table() and the runs' configurations. Styles, scripts and Chart.js
/// are inline, and a content security policy forbids every request. The same runs give the same
/// bytes. Once all charts are drawn, <html data-charts> holds their number.
std::string html_report(const std::vector<RunGroup>& groups);

/// Writes html_report() to `path`, whole or not at all. Throws Error if it cannot be written.
void write_html_report(const std::filesystem::path& path, const std::vector<RunGroup>& groups);

}  // namespace quads
