// Reads and finds added tokens, by the rules of `tokenizers`.
#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/component.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

// A search looks at so many bytes behind each one of the text.
constexpr size_t kMostPatternBytes = 256;

bool touches_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(utf8_code_point_before(text, begin).value)) ||
         (end < text.size() && is_word(utf8_code_point(text, end).value));
}

size_t before_spaces(std::string_view text, size_t begin, size_t lowest) {
  while (begin > lowest) {
    const auto [c, length] = utf8_code_point_before(text, begin);
    if (!is_whitespace(c)) {
      break;
    }
    begin -= length;
  }
  return begin;
}

size_t behind_spaces(std::string_view text, size_t end) {
  while (end < text.size()) {
    const auto [c, length] = utf8_code_point(text, end);
    if (!is_whitespace(c)) {
      break;
    }
    end += length;
  }
  return end;
}

}  // namespace

int32_t TokenTrie::child(int32_t node, unsigned char byte) const {
  if (node == 0) {
    return first_[byte];
  }
  for (const auto& [key, next] : nodes_[static_cast<size_t>(node)].children) {
    if (key == byte) {
      return next;
    }
  }
  return -1;
}

bool TokenTrie::insert(std::string_view text, int32_t value) {
  int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      if (node == 0) {
        first_[byte] = next;
      } else {
        nodes_[static_cast<size_t>(node)].children.emplace_back(byte, next);
      }
    }
    node = next;
  }
  Node& end = nodes_[static_cast<size_t>(node)];
  return std::exchange(end.value, end.value < 0 ? value : end.value) < 0;
}

std::pair<int32_t, size_t> TokenTrie::longest(std::string_view text, size_t position) const {
  std::pair<int32_t, size_t> found = {-1, 0};
  int32_t node = 0;
  for (size_t i = position; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node < 0) {
      break;
    }
    if (nodes_[static_cast<size_t>(node)].value >= 0) {
      found = {nodes_[static_cast<size_t>(node)].value, i + 1 - position};
    }
  }
  return found;
}

AddedTokens::AddedTokens(const Json& json, const Vocabulary& vocabulary,
                         const Normalizer* normalizer, const std::string& where) {
  require(json.is_array(), "{}: 'added_tokens' is {}, not an array", where, json_excerpt(json));
  int32_t next_id = vocabulary.size();
  for (const Json& entry : json) {
    const std::string what = fmt::format("{}: added_tokens[{}]", where, tokens_.size());
    AddedToken token;
    token.id = get<int32_t>(entry, "id", what);
    token.content = get<std::string>(entry, "content", what);
    token.single_word = get<bool>(entry, "single_word", what);
    token.lstrip = get<bool>(entry, "lstrip", what);
    token.rstrip = get<bool>(entry, "rstrip", what);
    token.normalized = get<bool>(entry, "normalized", what);
    token.special = get<bool>(entry, "special", what);
    check_options(
        entry, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}, what);
    require(!token.content.empty(), "{}: an empty token", what);
    require(ids_.emplace(token.content, token.id).second, "{}: token '{}' is there twice", what,
            token.content);
    const std::optional<int32_t> known = vocabulary.find(token.content);
    const int32_t expected = known ? *known : next_id++;
    require(token.id == expected, "{}: token '{}' has id {}, but {} is {}", what, token.content,
            token.id, known ? "its id in the vocabulary" : "the next free id", expected);
    token.pattern = token.content;
    if (token.normalized && normalizer != nullptr) {
      Piece piece{.text = token.content};
      normalizer->normalize(piece);
      token.pattern = std::move(piece.text);
    }
    require(token.pattern.size() <= kMostPatternBytes,
            "{}: a token of {} bytes after the normalizer, more than {}", what,
            token.pattern.size(), kMostPatternBytes);
    require(!token.pattern.empty() && tries_[token.normalized ? 1 : 0].insert(
                                          token.pattern, static_cast<int32_t>(tokens_.size())),
            "{}: token '{}' is '{}' after the normalizer, which is empty or another token", what,
            token.content, token.pattern);
    tokens_.push_back(std::move(token));
  }
}

std::optional<int32_t> AddedTokens::find(const std::string& content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void AddedTokens::split(const Piece& piece, bool normalized, bool special_as_text,
                        std::vector<Piece>& out) const {
  const TokenTrie& trie = tries_[normalized ? 1 : 0];
  const std::string_view text = piece.text;
  size_t done = 0;  // what stands before is in `out`
  for (size_t i = 0; i < text.size();) {
    const auto [index, length] = trie.longest(text, i);
    if (index < 0) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = i;
    size_t end = i + length;
    i = end;  // also where the token does not count: nothing is found within it
    if ((special_as_text && token.special) ||
        (token.single_word && touches_word(text, begin, end))) {
      continue;
    }
    if (token.lstrip) {
      begin = before_spaces(text, begin, std::min(done, begin));
    }
    if (token.rstrip) {
      end = behind_spaces(text, end);
    }
    if (done < begin) {
      out.push_back(piece.part(done, begin));
    }
    out.push_back(piece.part(begin, end));
    out.back().id = token.id;
    done = end;
  }
  if (done < text.size()) {
    out.push_back(piece.part(done, text.size()));
  }
}

}  // namespace quads
