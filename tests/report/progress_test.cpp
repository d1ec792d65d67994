// The progress line: its formats, its width, and what reaches a terminal or a log.
#include "report/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "report/temporary_directory.h"

namespace quads {
namespace {

TEST(FormatDuration, PicksTwoUnits) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m 00s");
  EXPECT_EQ(format_duration(187), "3m 07s");
  EXPECT_EQ(format_duration(7500), "2h 05m");
  EXPECT_EQ(format_duration(86400 * 4 + 7200), "4d 02h");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::nan("")), "?");
  EXPECT_EQ(format_duration(HUGE_VAL), "?");
}

TEST(FormatRate, SwitchesUnitForFastSteps) {
  EXPECT_EQ(format_rate(0.3125, "step"), "0.31 s/step");
  EXPECT_EQ(format_rate(0.08, "step"), "12.5 steps/s");
  EXPECT_EQ(format_rate(0, "step"), "? steps/s");
  EXPECT_EQ(format_rate(0.3125, "sample"), "0.31 s/sample");
  EXPECT_EQ(format_rate(0.08, "sample"), "12.5 samples/s");
  EXPECT_EQ(format_rate(0.08, "matrix"), "12.5 matrices/s");
}

TEST(FormatFigure, StaysShort) {
  EXPECT_EQ(format_figure(0), "0");
  EXPECT_EQ(format_figure(-0.0), "0");
  EXPECT_EQ(format_figure(0.8125), "0.812");
  EXPECT_EQ(format_figure(12.34567), "12.35");
  EXPECT_EQ(format_figure(1234), "1234");
  EXPECT_EQ(format_figure(1.234e-5), "1.2e-05");
  EXPECT_EQ(format_figure(250000), "2.5e+05");
  EXPECT_EQ(format_figure(std::nan("")), "nan");
  EXPECT_EQ(format_figure(-HUGE_VAL), "-inf");
}

TEST(FormatBar, HasItsWidthForEveryFraction) {
  EXPECT_EQ(format_bar(0, 4), "────");
  EXPECT_EQ(format_bar(1, 4), "━━━━");
  EXPECT_EQ(format_bar(0.5, 4), "━━──");
  EXPECT_EQ(format_bar(0.375, 4), "━╸──");
  for (const double fraction : {-1.0, 0.01, 0.33, 0.999, 7.0}) {
    EXPECT_EQ(display_width(format_bar(fraction, 13)), 13);
  }
}

ProgressState state_at(int64_t done) {
  return {.label = "quads",
          .done = done,
          .total = 250,
          .elapsed_s = 31,
          .seconds_per_step = 0.31,
          .figures = {{"reward", "0.812"}, {"gap", "0"}}};
}

TEST(FormatProgressLine, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(format_progress_line(state_at(125), 100),
            "quads ━━━━━━━━━━━━━━━─────────────── 125/250  39s left  0.31 s/step  reward 0.812  "
            "gap 0");
  EXPECT_TRUE(contains(format_progress_line(state_at(250), 200), "250/250  in 31s"));
}

TEST(FormatProgressLine, NeverExceedsTheWidthAndDropsTheLastFiguresFirst) {
  for (int width = 0; width < 120; ++width) {
    const std::string line = format_progress_line(state_at(125), width);
    EXPECT_LE(display_width(line), width);
    EXPECT_FALSE(contains(line, "gap 0") && !contains(line, "reward 0.812")) << width;
    EXPECT_FALSE(contains(line, "reward") && !contains(line, "s/step")) << width;
    EXPECT_FALSE(contains(line, "s/step") && !contains(line, "left")) << width;
  }
  EXPECT_EQ(format_progress_line(state_at(125), 15), "quads 125/250");
}

TEST(FormatProgressLine, WorksBeforeTheFirstStepAndForNoSteps) {
  EXPECT_TRUE(contains(format_progress_line({.label = "x", .total = 9}, 60), "0/9  0s"));
  EXPECT_TRUE(contains(format_progress_line({.label = "", .total = 0}, 60), "0/0"));
}

class ProgressTest : public TemporaryDirectory {
 protected:
  ProgressOptions options(int fd) {
    return {.label = "run", .total = 10, .fd = fd, .clock = [this] { return time_; }};
  }
  double time_ = 100;
};

TEST_F(ProgressTest, InALogWritesPlainLinesAtMostEveryInterval) {
  const auto path = write("log", "");
  const int fd = open(path.c_str(), O_WRONLY);
  {
    ProgressOptions with_interval = options(fd);
    with_interval.log_every_s = 5;
    Progress progress(with_interval);
    for (int step = 1; step <= 10; ++step) {
      time_ += 2;
      progress.update(step, {{"reward", format_figure(step / 10.0)}});
    }
  }
  close(fd);
  EXPECT_EQ(read(path),
            "run 1/10  18s left  2.00 s/step  reward 0.100\n"
            "run 4/10  12s left  2.00 s/step  reward 0.400\n"
            "run 7/10  6s left  2.00 s/step  reward 0.700\n"
            "run 10/10  in 20s  2.00 s/step  reward 1.000\n");
}

TEST_F(ProgressTest, OnATerminalRedrawsInPlaceAndShowsTheCursorAgain) {
  int terminal = -1;
  int program = -1;
  winsize size{.ws_row = 24, .ws_col = 50, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(openpty(&terminal, &program, nullptr, nullptr, &size), 0);
  {
    Progress progress(options(program));
    time_ += 1;
    progress.update(1, {{"reward", "0.5"}});
    progress.message("saved");
  }
  // A terminal hands over what was written piece by piece.
  std::string seen;
  pollfd ready{.fd = terminal, .events = POLLIN, .revents = 0};
  while (!seen.ends_with("\x1b[?25h") && poll(&ready, 1, 10'000) == 1) {
    char buffer[4096];
    const ssize_t count = ::read(terminal, buffer, sizeof(buffer));
    ASSERT_GT(count, 0);
    seen.append(buffer, static_cast<size_t>(count));
  }
  EXPECT_TRUE(seen.starts_with("\x1b[?25l\r\x1b[K"));
  EXPECT_TRUE(seen.ends_with("\x1b[?25h"));
  EXPECT_TRUE(contains(seen, "\r\x1b[Ksaved\r\n"));
  EXPECT_TRUE(contains(seen, "1/10  9s left"));
  // A newline only after the message and at the end.
  EXPECT_EQ(std::count(seen.begin(), seen.end(), '\n'), 2);
  close(terminal);
  close(program);
}

TEST_F(ProgressTest, AClosedDescriptorIsIgnored) {
  const int fd = open("/dev/null", O_WRONLY);
  close(fd);
  EXPECT_NO_THROW({
    Progress progress(options(fd));
    progress.update(1);
    progress.message("nobody reads this");
  });
}

}  // namespace
}  // namespace quads
