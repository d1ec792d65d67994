// The progress of a run on a terminal.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quads {

/// Live figures beside the bar, most important first: {"reward", "0.812"}.
using ProgressFigures = std::vector<std::pair<std::string, std::string>>;

/// What a progress line shows.
struct ProgressState {
  std::string label;
  int64_t done = 0;
  int64_t total = 0;
  double elapsed_s = 0;
  std::optional<double> seconds_per_step = {};  // unknown before the first step is done
  std::string unit = "step";                    // what is counted, in the singular
  ProgressFigures figures = {};
};

/// "45s", "3m 07s", "2h 05m", "4d 02h"; "?" for a negative or non-finite time.
std::string format_duration(double seconds);

/// "0.31 s/step", or from ten steps a second on "12.5 steps/s".
std::string format_rate(double seconds_per_step, std::string_view unit);

/// A figure in at most 8 columns: "0", "0.812", "12.3", "1234", "1.2e-05", "nan".
std::string format_figure(double value);

/// A bar of `width` columns, `fraction` in [0, 1] of it filled, in steps of half a column.
std::string format_bar(double fraction, int width);

/// One line of at most `width` columns for a terminal: label, bar, count, time left, rate, figures.
/// What does not fit is left out: first figures, from the last, then rate, time left and bar.
std::string format_progress_line(const ProgressState& state, int width);

/// One line of any width for a log: no bar.
std::string format_progress_log(const ProgressState& state);

/// Columns that `text`, UTF-8 of narrow characters, takes on a terminal.
int display_width(std::string_view text);

struct ProgressOptions {
  std::string label{};
  std::string unit = "step";  // what is counted, in the singular
  int64_t total = 0;          // steps in all
  int64_t first = 0;          // steps that were done before (a resumed run)
  double log_every_s = 0;     // not on a terminal: a line at most this often; 0 is a line a step
  int fd = 2;                 // standard error, so that standard output stays for results
  std::function<double()> clock = {};  // seconds; the steady clock if empty
};

/// Draws a line that is redrawn in place on a terminal, with the cursor hidden, and plain lines
/// elsewhere. The last step is always shown. Errors of writing are ignored: a closed terminal must
/// not end a run.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  /// Ends the line and shows the cursor again.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` steps of the total are done.
  void update(int64_t done, ProgressFigures figures = {});

  /// Prints a line of text above the bar.
  void message(std::string_view text);

 private:
  double now() const;
  void emit(std::string_view bytes);
  void redraw();

  ProgressOptions options_;
  ProgressState state_;
  bool terminal_ = false;
  double start_s_ = 0;
  double last_step_s_ = 0;
  std::optional<double> last_log_s_;
};

}  // namespace quads
