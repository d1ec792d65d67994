// Chat prompts: messages and their rendering in ChatML.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace quads {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content{};
  std::optional<std::string> reasoning{};  // an assistant's "reasoning_content"
};

/// The messages of a prompt: an array of objects with "role" and "content" (a text; an assistant's
/// may be null), perhaps "reasoning_content". Error for an empty array, another role, a last
/// message that is not the user's, content in parts (images), and calls of tools.
std::vector<ChatMessage> read_messages(const Json& json, const std::string& where);

/// The prompt up to the start of the assistant's answer, as the chat template of Qwen3 writes it
/// without tools and with add_generation_prompt: thinking parts of assistants before the last
/// question are left out; without `enable_thinking` the answer starts with an empty one.
std::string render_chatml(std::span<const ChatMessage> messages, bool enable_thinking);

}  // namespace quads
