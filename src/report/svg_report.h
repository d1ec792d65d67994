// The two main curves, reward and largest gap, as one SVG picture.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/runs.h"

namespace quads {

/// Training reward (smoothed) and gap/max (log scale, zero at the foot) side by side: mean over
/// seeds, band from the lowest to the highest. Plain SVG 1.1 with colours for a light ground, and
/// others for viewers that ask for a dark one. The same runs give the same bytes.
std::string svg_report(const std::vector<RunGroup>& groups);

/// Writes svg_report() to `path`, whole or not at all. Throws Error if it cannot be written.
void write_svg(const std::filesystem::path& path, const std::vector<RunGroup>& groups);

/// The step between ticks, 1, 2 or 5 times a power of ten, that divides `range` > 0 into at most
/// `max_ticks` parts.
double tick_step(double range, int max_ticks);

}  // namespace quads
