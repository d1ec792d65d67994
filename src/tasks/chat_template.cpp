#include "tasks/chat_template.h"

#include "base/error.h"

namespace quads {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";

std::string_view without_newlines(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) text.remove_prefix(1);
  while (right && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// The last question is the last user message that does not bring back what a tool answered.
size_t last_question(std::span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const ChatMessage& m = messages[i];
    if (m.role == "user" &&
        !(m.content.starts_with("<tool_response>") && m.content.ends_with("</tool_response>"))) {
      return i;
    }
  }
  return messages.size() - 1;
}

std::string render_assistant(const ChatMessage& message, bool after_last_question) {
  std::string_view content = message.content, reasoning;
  if (message.reasoning) {
    reasoning = *message.reasoning;
  } else if (const size_t first = content.find(kEndThink); first != std::string_view::npos) {
    reasoning = without_newlines(content.substr(0, first), false, true);
    if (const size_t start = reasoning.rfind(kThink); start != std::string_view::npos) {
      reasoning.remove_prefix(start + kThink.size());
    }
    reasoning = without_newlines(reasoning, true, false);
    content.remove_prefix(content.rfind(kEndThink) + kEndThink.size());
    content = without_newlines(content, true, false);
  }
  if (!after_last_question || reasoning.empty()) return std::string(content);
  return fmt::format("{}\n{}\n{}\n\n{}", kThink, without_newlines(reasoning, true, true), kEndThink,
                     without_newlines(content, true, false));
}

}  // namespace

std::vector<ChatMessage> read_messages(const Json& json, const std::string& where) {
  require(json.is_array() && !json.empty(), "{}: {} is not a list of messages", where,
          json_excerpt(json));
  std::vector<ChatMessage> messages;
  for (const Json& element : json) {
    const std::string at = fmt::format("{}[{}]", where, messages.size());
    ChatMessage message{.role = get<std::string>(element, "role", at)};
    require(message.role == "system" || message.role == "user" || message.role == "assistant",
            "{}: role '{}' is not one of system, user, assistant", at, message.role);
    const auto tools = element.find("tool_calls");
    require(tools == element.end() || tools->is_null() || tools->empty(),
            "{}: calls of tools are not supported", at);
    if (message.role == "assistant") {
      message.content = get_or<std::string>(element, "content", "", at);
      message.reasoning = find_key<std::string>(element, "reasoning_content", at);
    } else {
      message.content = get<std::string>(element, "content", at);
    }
    messages.push_back(std::move(message));
  }
  require(messages.back().role == "user", "{}: the last message is the {}'s, not the user's", where,
          messages.back().role);
  return messages;
}

std::string render_chatml(std::span<const ChatMessage> messages, bool enable_thinking) {
  const size_t question = last_question(messages);
  std::string text;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", m.role,
                        m.role == "assistant" ? render_assistant(m, i > question) : m.content);
  }
  text += "<|im_start|>assistant\n";
  if (!enable_thinking) text += fmt::format("{}\n\n{}\n\n", kThink, kEndThink);
  return text;
}

}  // namespace quads
