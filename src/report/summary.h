// The figures of a recipe that a table shows, over its seeds.
#pragma once

#include <string>
#include <vector>

#include "report/runs.h"

namespace quads {

/// Mean and spread over runs. `std` is the sample standard deviation (n - 1); it is 0 for n < 2,
/// where it says nothing. `values` are the runs' own figures in the order of the group.
struct Spread {
  double mean = 0;
  double std = 0;
  std::vector<double> values;
  int n() const { return static_cast<int>(values.size()); }
};

Spread spread_of(std::vector<double> values);

/// One row of the table. A run that lacks a figure is not counted in it.
struct Summary {
  std::string name;
  std::vector<std::string> seeds;
  int64_t min_steps = 0;  // rows of metrics of the shortest and the longest run
  int64_t max_steps = 0;
  Spread pass_at_1;         // eval/pass@1, the last evaluation
  Spread pass_at_1_stderr;  // eval/pass@1_stderr beside it
  Spread reward;            // reward/mean, mean of the last 10 steps
  Spread gap_max;           // gap/max, mean of the last 10 steps
  Spread tokens_per_s;      // perf/rollout_tokens_per_s, median over the steps
  int64_t gap_steps = 0;    // steps, over all runs, that measured gap/max, non-finite ones included
  int64_t gap_zero_steps = 0;  // those of them in which it was exactly 0
};

constexpr int kLastSteps = 10;

Summary summarize(const RunGroup& group);

}  // namespace quads
