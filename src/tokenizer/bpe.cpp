// Reads a BPE model; splits pieces into characters (or bytes) and merges them.
#include "tokenizer/bpe.h"

#include <algorithm>

#include "tokenizer/component.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

// Of "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> pair_of(const Json& json, size_t index,
                                                      const std::string& where) {
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
    return {json[0].get_ref<const std::string&>(), json[1].get_ref<const std::string&>()};
  }
  if (json.is_string()) {
    const std::string_view text = json.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  fail("{}: merge {}: {} is neither \"a b\" nor [\"a\", \"b\"]", where, index, json_excerpt(json));
}

}  // namespace

Bpe::Bpe(const Json& json, const std::string& where)
    : vocabulary_(member(json, "vocab", where), where),
      merges_(array_of(json, "merges", where).size()),
      fuse_unknown_(get_or(json, "fuse_unk", false, where)),
      ignore_merges_(get_or(json, "ignore_merges", false, where)) {
  check_options(json,
                {"vocab", "merges", "dropout", "unk_token", "continuing_subword_prefix",
                 "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges"},
                where);
  require(get_or(json, "dropout", 0.0, where) == 0, "{}: dropout {} is not supported", where,
          json.value("dropout", Json()).dump());
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto text = get_or<std::string>(json, key, "", where);
    require(text.empty(), "{}: {} '{}' is not supported", where, key, text);
  }
  if (const auto name = find_key<std::string>(json, "unk_token", where)) {
    unknown_ = vocabulary_.find(*name);
  }
  for (char32_t c = 0; c < short_characters_.size(); ++c) {
    std::string text;
    utf8_append(text, c);
    short_characters_[c] = vocabulary_.find(text).value_or(-1);
  }
  if (get_or(json, "byte_fallback", false, where)) {
    bytes_.emplace();
    for (size_t byte = 0; byte < 256; ++byte) {
      (*bytes_)[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
    }
  }
  add_merges(json["merges"], where);
}

void Bpe::add_merges(const Json& merges, const std::string& where) {
  const auto id_of = [&](std::string_view token, size_t index) {
    const std::optional<int32_t> id = vocabulary_.find(token);
    require(id.has_value(), "{}: merge {}: token '{}' is not in the vocabulary", where, index,
            token);
    return *id;
  };
  for (size_t i = 0; i < merges.size(); ++i) {
    if (merges[i].is_string() && merges[i].get_ref<const std::string&>().starts_with("#version")) {
      continue;
    }
    const auto [left, right] = pair_of(merges[i], i, where);
    const int32_t left_id = id_of(left, i);
    const int32_t right_id = id_of(right, i);
    const int32_t result = id_of(std::string(left) + std::string(right), i);
    merges_.insert(left_id, right_id, {static_cast<uint32_t>(i), result});
  }
}

std::optional<int32_t> Bpe::find_character(std::string_view character) const {
  const char32_t c = utf8_code_point(character, 0).value;
  if (c < short_characters_.size()) {
    return short_characters_[c] < 0 ? std::nullopt : std::optional(short_characters_[c]);
  }
  return vocabulary_.find(character);
}

void Bpe::encode(const Piece& piece, std::vector<int32_t>& ids) const {
  const std::string_view text = piece.text;
  if (ignore_merges_) {
    if (const auto id = vocabulary_.find(text)) {
      ids.push_back(*id);
      return;
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(text.size());
  // As `tokenizers` does it, an unknown token waits for the next character that is known: bytes
  // that fall back pass it.
  bool waiting = false;
  for (size_t i = 0; i < text.size();) {
    const std::string_view character = text.substr(i, utf8_length(text, i));
    if (const auto id = find_character(character)) {
      if (waiting) {
        symbols.push_back(*unknown_);
        waiting = false;
      }
      symbols.push_back(*id);
    } else if (bytes_ && std::all_of(character.begin(), character.end(), [&](char c) {
                 return (*bytes_)[static_cast<unsigned char>(c)] >= 0;
               })) {
      for (const char c : character) {
        symbols.push_back((*bytes_)[static_cast<unsigned char>(c)]);
      }
    } else {
      require(unknown_.has_value(),
              "'{}' of the piece at byte {} of the (normalized) text to encode has no token",
              character, piece.offset);
      if (waiting && !fuse_unknown_) {
        symbols.push_back(*unknown_);
      }
      waiting = true;
    }
    i += character.size();
  }
  if (waiting) {
    symbols.push_back(*unknown_);
  }
  merge_symbols(symbols, merges_);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

}  // namespace quads
