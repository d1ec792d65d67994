// The progress of a run on a terminal.
#include "report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>

namespace quads {
namespace {

constexpr int kMaxBar = 30;
constexpr int kMinBar = 8;
// The rate is an average over about the last ten steps: a run's speed changes as its responses
// grow.
constexpr double kRateDecay = 0.9;
constexpr std::string_view kHideCursor = "\x1b[?25l";
constexpr std::string_view kShowCursor = "\x1b[?25h";
constexpr std::string_view kClearLine = "\r\x1b[K";

int terminal_width(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Cuts to `width` columns without cutting a character in two.
std::string truncated(std::string text, int width) {
  size_t end = 0;
  int columns = 0;
  while (end < text.size()) {
    const bool continuation = (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80;
    if (!continuation && columns++ == width) break;
    ++end;
  }
  text.resize(end);
  return text;
}

std::string count_text(const ProgressState& state) {
  return fmt::format("{}/{}", state.done, state.total);
}

std::string time_text(const ProgressState& state) {
  if (state.done >= state.total) return "in " + format_duration(state.elapsed_s);
  if (!state.seconds_per_step) return format_duration(state.elapsed_s);
  return format_duration(*state.seconds_per_step * static_cast<double>(state.total - state.done)) +
         " left";
}

std::string figure_text(const std::pair<std::string, std::string>& figure) {
  return figure.first + " " + figure.second;
}

}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e15) return "?";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  const int64_t minutes = total / 60;
  const int64_t hours = minutes / 60;
  if (minutes == 0) return fmt::format("{}s", total);
  if (hours == 0) return fmt::format("{}m {:02}s", minutes, total % 60);
  if (hours < 24) return fmt::format("{}h {:02}m", hours, minutes % 60);
  return fmt::format("{}d {:02}h", hours / 24, hours % 24);
}

std::string format_rate(double seconds_per_step, std::string_view unit) {
  if (seconds_per_step >= 0.1) return fmt::format("{:.2f} s/{}", seconds_per_step, unit);
  const std::string units = unit == "matrix" ? "matrices" : fmt::format("{}s", unit);
  return seconds_per_step > 0 ? fmt::format("{:.1f} {}/s", 1 / seconds_per_step, units)
                              : fmt::format("? {}/s", units);
}

std::string format_figure(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value) || value == 0) return fmt::format("{:.0f}", value == 0 ? 0.0 : value);
  if (size < 1e-3 || size >= 1e5) return fmt::format("{:.1e}", value);
  return size < 10 ? fmt::format("{:.3f}", value) : fmt::format("{:.4g}", value);
}

std::string format_bar(double fraction, int width) {
  const int halves = std::clamp(static_cast<int>(std::lround(fraction * 2 * width)), 0, 2 * width);
  std::string bar;
  for (int i = 0; i < halves / 2; ++i) bar += "━";
  if (halves % 2 != 0) bar += "╸";
  for (int i = (halves + 1) / 2; i < width; ++i) bar += "─";
  return bar;
}

int display_width(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
  }));
}

std::string format_progress_line(const ProgressState& state, int width) {
  std::string head = state.label.empty() ? "" : state.label + " ";
  std::string tail = count_text(state);
  const auto room = [&] { return width - display_width(head) - display_width(tail); };
  const auto add = [&](const std::string& part) {
    const bool fits = room() >= display_width(part) + 2;
    if (fits) tail += "  " + part;
    return fits;
  };
  // The bar's least width is set aside first, then what it does not take is given to the text.
  const int bar_room = kMinBar + 1;
  const bool with_bar = room() >= bar_room;
  if (with_bar) head += std::string(bar_room, ' ');
  bool fits = add(time_text(state));
  if (fits && state.seconds_per_step) fits = add(format_rate(*state.seconds_per_step, state.unit));
  for (const auto& figure : state.figures) fits = fits && add(figure_text(figure));
  if (with_bar) {
    head.resize(head.size() - bar_room);
    const double fraction =
        state.total > 0 ? static_cast<double>(state.done) / static_cast<double>(state.total) : 0;
    head += format_bar(fraction, std::min(kMaxBar, room() - 1)) + " ";
  }
  return truncated(head + tail, width);
}

std::string format_progress_log(const ProgressState& state) {
  std::string line = state.label.empty() ? "" : state.label + " ";
  line += count_text(state) + "  " + time_text(state);
  if (state.seconds_per_step) line += "  " + format_rate(*state.seconds_per_step, state.unit);
  for (const auto& figure : state.figures) line += "  " + figure_text(figure);
  return line;
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  state_.label = options_.label;
  state_.unit = options_.unit;
  state_.total = options_.total;
  state_.done = options_.first;
  terminal_ = isatty(options_.fd) == 1;
  start_s_ = last_step_s_ = now();
  if (terminal_) {
    emit(kHideCursor);
    redraw();
  }
}

Progress::~Progress() {
  if (!terminal_) return;
  redraw();
  emit("\n");
  emit(kShowCursor);
}

void Progress::update(int64_t done, ProgressFigures figures) {
  const double time = now();
  const int64_t steps = done - state_.done;
  if (steps > 0) {
    const double latest = (time - last_step_s_) / static_cast<double>(steps);
    state_.seconds_per_step =
        state_.seconds_per_step ? kRateDecay * *state_.seconds_per_step + (1 - kRateDecay) * latest
                                : latest;
    last_step_s_ = time;
  }
  state_.done = done;
  state_.elapsed_s = time - start_s_;
  if (done >= state_.total && done > options_.first) {  // what is over is told as a whole
    state_.seconds_per_step = state_.elapsed_s / static_cast<double>(done - options_.first);
  }
  state_.figures = std::move(figures);
  if (terminal_) {
    redraw();
  } else if (!last_log_s_ || time - *last_log_s_ >= options_.log_every_s || done >= state_.total) {
    last_log_s_ = time;
    emit(format_progress_log(state_) + "\n");
  }
}

void Progress::message(std::string_view text) {
  if (terminal_) emit(kClearLine);
  emit(std::string(text) + "\n");
  if (terminal_) redraw();
}

double Progress::now() const {
  if (options_.clock) return options_.clock();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Progress::emit(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(options_.fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void Progress::redraw() {
  // The last column stays free: a terminal that is exactly full may wrap.
  const int width = std::max(1, terminal_width(options_.fd) - 1);
  emit(std::string(kClearLine) + format_progress_line(state_, width));
}

}  // namespace quads
