// Supervised training of a base on a task's own solutions: where reinforcement learning starts.
#pragma once

#include <atomic>

#include "report/metrics.h"
#include "report/progress.h"
#include "rl/schedule.h"
#include "tasks/task.h"
#include "tokenizer/tokenizer.h"
#include "trainer/trainer.h"

namespace quads {

/// The model of a base for a built-in task unless told otherwise: 4 layers of 128, 8 experts of 64,
/// top-2; its vocabulary is the task's.
ModelConfig default_base_model();

struct SupervisedOptions {
  int64_t num_steps = 1000;
  int64_t batch_size = 256;  // solutions an update
  uint64_t seed = 1;
  LrSchedule lr;
};

/// Trains on solutions to training problems 0, 1, 2, ...; the loss is the mean
/// negative log-prob of the solutions' tokens. One row of metrics a step. Error if the task has no
/// solutions. Stops early, leaving the policy as it is, once `stop` is set; returns the steps done.
int64_t train_supervised(Trainer& trainer, const Task& task, const Tokenizer& tokenizer,
                         const SupervisedOptions& options, MetricsSink& metrics, Progress& progress,
                         const std::atomic<bool>& stop);

}  // namespace quads
