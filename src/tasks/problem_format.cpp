#include "tasks/problem_format.h"

#include <array>
#include <span>

#include "base/error.h"
#include "tasks/chat_template.h"

namespace quads {
namespace {

constexpr const char* kInputKeys[] = {"prompt", "problem", "question", "question_content"};
constexpr const char* kLabelKeys[] = {"label", "reward_model.ground_truth", "answer"};
constexpr const char* kMetadataKeys[] = {"metadata", "extra_info"};

// The value at a path of names with dots between them; a field with the whole name comes first.
// Null if it is not there, or null itself.
const Json* find_path(const Json& object, std::string_view path) {
  if (!object.is_object()) return nullptr;
  if (const auto it = object.find(path); it != object.end()) {
    return it->is_null() ? nullptr : &*it;
  }
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
    const auto it = object.find(path.substr(0, dot));
    if (it == object.end()) continue;
    if (const Json* found = find_path(*it, path.substr(dot + 1))) return found;
  }
  return nullptr;
}

struct Found {
  std::string key;
  const Json* value = nullptr;
};

Found find_field(const Json& line, const std::string& key, std::span<const char* const> defaults) {
  if (!key.empty()) return {key, find_path(line, key)};
  for (const char* name : defaults) {
    if (const Json* value = find_path(line, name)) return {name, value};
  }
  return {defaults[0], nullptr};
}

std::shared_ptr<const Json> read_metadata(const Json& line, const ProblemFormat& format,
                                          const std::string& where) {
  const Found field = find_field(line, format.metadata_key, kMetadataKeys);
  Json metadata = Json::object();
  if (field.value != nullptr) {
    const std::string what = fmt::format("{}: '{}'", where, field.key);
    metadata =
        field.value->is_string() ? parse_json(field.value->get<std::string>(), what) : *field.value;
    require(metadata.is_object(), "{}: {} is not an object", what, json_excerpt(metadata));
  }
  if (format.metadata_key.empty() && line.contains("question_content")) {
    for (const auto& [key, value] : line.items()) {
      if (key != "question_content" && key != "metadata") metadata.emplace(key, value);
    }
  }
  if (const auto source = line.find("data_source"); source != line.end()) {
    metadata.emplace("data_source", *source);
  }
  return metadata.empty() ? nullptr : std::make_shared<const Json>(std::move(metadata));
}

std::string read_label(const Json& line, const ProblemFormat& format, const Json* metadata,
                       const std::string& where) {
  bool needed = true;
  try {
    if (format.needs_label) needed = format.needs_label(metadata);
  } catch (const Error& error) {
    fail("{}: {}", where, error.what());
  }
  const Found field = find_field(line, format.label_key, kLabelKeys);
  if (field.value == nullptr) {
    require(!needed, "{}: key '{}' is missing", where, field.key);
    return "";
  }
  const Json& only =
      field.value->is_array() && field.value->size() == 1 ? field.value->front() : *field.value;
  if (only.is_string()) return only.get<std::string>();
  require(only.is_number() || only.is_boolean() || !needed,
          "{}: '{}': {} is not a text, a number or a list of one", where, field.key,
          json_excerpt(*field.value));
  return needed ? only.dump() : field.value->dump();
}

// The prompt of LiveCodeBench's lm_styles (code_generation.py, the generic template): the system's
// message and the user's.
std::vector<ChatMessage> live_code_bench_messages(const std::string& question, const Json& line,
                                                  const std::string& where) {
  const auto starter = get_or<std::string>(line, "starter_code", "", where);
  std::string text = fmt::format("### Question:\n{}\n\n", question);
  if (starter.empty()) {
    text +=
        "### Format: Read the inputs from stdin solve the problem and write the answer to stdout "
        "(do not directly test on the sample inputs). Enclose your code within delimiters as "
        "follows. Ensure that when the python program runs, it reads the inputs, runs the "
        "algorithm and writes output to STDOUT.\n```python\n# YOUR CODE HERE\n```\n\n";
  } else {
    text += fmt::format(
        "### Format: You will use the following starter code to write the solution to the problem "
        "and enclose your code within delimiters.\n```python\n{}\n```\n\n",
        starter);
  }
  text += "### Answer: (use the provided format with backticks)\n\n";
  return {{.role = "system",
           .content = "You are an expert Python programmer. You will be given a question (problem "
                      "specification) and will generate a correct Python program that matches the "
                      "specification and passes all tests."},
          {.role = "user", .content = std::move(text)}};
}

std::string fill_template(const std::string& text, const std::string& prompt) {
  constexpr std::string_view kPlace = "{prompt}";
  const size_t place = text.find(kPlace);
  require(place != std::string::npos, "--prompt-template: '{}' has no {}", text, kPlace);
  return text.substr(0, place) + prompt + text.substr(place + kPlace.size());
}

std::string read_prompt(const Json& line, const ProblemFormat& format, const std::string& where) {
  const Found field = find_field(line, format.input_key, kInputKeys);
  require(field.value != nullptr, "{}: key '{}' is missing", where, field.key);
  const std::string what = fmt::format("{}: '{}'", where, field.key);
  std::vector<ChatMessage> messages;
  if (field.value->is_array()) {
    require(format.apply_chat_template,
            "{} is a list of messages: --apply-chat-template renders it in ChatML, "
            "scripts/render_prompts.py in a model's own template",
            what);
    messages = read_messages(*field.value, what);
  } else {
    std::string prompt = json_to<std::string>(*field.value, what);
    require(!prompt.empty(), "{} is empty", what);
    if (format.live_code_bench_prompts && line.contains("question_content")) {
      messages = live_code_bench_messages(prompt, line, where);
    } else {
      if (!format.prompt_template.empty()) prompt = fill_template(format.prompt_template, prompt);
      messages.push_back({.role = "user", .content = std::move(prompt)});
    }
  }
  if (format.apply_chat_template) return render_chatml(messages, format.enable_thinking);
  std::string text;
  for (const ChatMessage& message : messages) {
    text += (text.empty() ? "" : "\n\n") + message.content;
  }
  return text;
}

}  // namespace

Problem read_problem(const Json& line, const ProblemFormat& format, const std::string& where) {
  require(line.is_object(), "{}: {} is not an object", where, json_excerpt(line));
  Problem problem;
  problem.prompt = read_prompt(line, format, where);
  problem.metadata = read_metadata(line, format, where);
  problem.label = read_label(line, format, problem.metadata.get(), where);
  return problem;
}

}  // namespace quads
