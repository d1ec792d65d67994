// How a line of a data file is read as a problem.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "io/json.h"
#include "tasks/task.h"

namespace quads {

/// Names of fields may lead into objects: "reward_model.ground_truth". An empty name stands for the
/// first that a line has of those given below.
struct ProblemFormat {
  /// The prompt: a text, or a list of messages. By default "prompt" (slime, verl), "problem" (AIME,
  /// HMMT), "question" or "question_content" (LiveCodeBench).
  std::string input_key{};
  /// The right answer: a text, number or boolean, a list of one of these (as verl's data may have
  /// it), or, where no label is needed, any JSON, which is handed on as text. By default "label"
  /// (slime), "reward_model.ground_truth" (verl) or "answer" (AIME, HMMT).
  std::string label_key{};
  /// An object for the reward, or a text that is one. By default "metadata" (slime) or "extra_info"
  /// (verl); lines with "question_content" (LiveCodeBench) give all their other fields with those
  /// of "metadata". verl's "data_source" is always added.
  std::string metadata_key{};
  /// For prompts that are texts: where they go in a longer one, in place of "{prompt}".
  std::string prompt_template{};
  /// LiveCodeBench's problems are asked as its own prompts ask them: whether a program or a
  /// function is wanted, and in which form.
  bool live_code_bench_prompts = false;
  /// Renders prompts in ChatML; a prompt that is a text is the user's only message. Without it a
  /// list of messages is an error.
  bool apply_chat_template = false;
  bool enable_thinking = true;
  /// Whether a problem with this metadata (null for none) must have a label; all, if not set.
  /// May throw Error, for metadata that name an unknown reward.
  std::function<bool(const Json* metadata)> needs_label{};
};

/// The problem in `line`; its index is 0. Errors start with `where`.
Problem read_problem(const Json& line, const ProblemFormat& format, const std::string& where);

}  // namespace quads
