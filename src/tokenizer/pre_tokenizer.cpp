// The pre-tokenizers of `tokenizers`.
#include "tokenizer/pre_tokenizer.h"

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/component.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/pattern.h"
#include "tokenizer/split.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

// The characters of `text` that have a property, each a match.
template <class Predicate>
std::vector<Span> characters_that(std::string_view text, const Predicate& predicate) {
  std::vector<Span> matches;
  for (size_t i = 0; i < text.size();) {
    const auto [c, length] = utf8_code_point(text, i);
    if (predicate(c)) {
      matches.push_back({i, i + length});
    }
    i += length;
  }
  return matches;
}

// Cuts by a property of characters.
class CharacterSplit : public PreTokenizer {
 public:
  CharacterSplit(bool (*is_delimiter)(char32_t), SplitBehavior behavior)
      : is_delimiter_(is_delimiter), behavior_(behavior) {}

  void split(Piece piece, std::vector<Piece>& out) const override {
    split_piece(piece, characters_that(piece.text, is_delimiter_), behavior_, false, out);
  }

 private:
  bool (*is_delimiter_)(char32_t);
  SplitBehavior behavior_;
};

// Words and what stands between words and spaces: \w+|[^\w\s]+.
class Whitespace : public PreTokenizer {
 public:
  void split(Piece piece, std::vector<Piece>& out) const override {
    const std::string& text = piece.text;
    enum class Kind { kSpace, kWord, kOther };
    Kind kind = Kind::kSpace;
    size_t begin = 0;
    const auto cut = [&](size_t end) {
      if (kind != Kind::kSpace) {
        out.push_back(piece.part(begin, end));
      }
      begin = end;
    };
    for (size_t i = 0; i < text.size();) {
      const auto [c, length] = utf8_code_point(text, i);
      const Kind next = is_word(c) ? Kind::kWord : is_whitespace(c) ? Kind::kSpace : Kind::kOther;
      if (next != kind) {
        cut(i);
        kind = next;
      }
      i += length;
    }
    cut(text.size());
  }
};

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(Piece piece, std::vector<Piece>& out) const override {
    split_piece(piece, pattern_.find_all(piece.text), behavior_, invert_, out);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevel : public PreTokenizer {
 public:
  // The pattern is GPT-2's.
  ByteLevel(bool add_prefix_space, bool use_regex, const std::string& where)
      : add_prefix_space_(add_prefix_space) {
    if (use_regex) {
      regex_.emplace(
          R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", where);
    }
  }

  void split(Piece piece, std::vector<Piece>& out) const override {
    if (add_prefix_space_ && !piece.text.starts_with(' ')) {
      piece.text = " " + piece.text;
    }
    const size_t first = out.size();
    if (regex_) {
      split_piece(piece, regex_->find_all(piece.text), SplitBehavior::kIsolated, false, out);
    } else {
      out.push_back(std::move(piece));
    }
    for (size_t i = first; i < out.size(); ++i) {
      out[i].text = to_byte_alphabet(out[i].text);
    }
  }

 private:
  bool add_prefix_space_;
  std::optional<Regex> regex_;
};

class MetaspaceSplit : public PreTokenizer {
 public:
  explicit MetaspaceSplit(Metaspace options) : options_(std::move(options)) {}

  void split(Piece piece, std::vector<Piece>& out) const override {
    const std::string& mark = options_.replacement;
    std::string text;
    text.reserve(piece.text.size() + mark.size());
    for (const char c : piece.text) {
      if (c == ' ') {
        text += mark;
      } else {
        text += c;
      }
    }
    if (!text.starts_with(mark) &&
        (options_.prepend == Metaspace::Prepend::kAlways ||
         (options_.prepend == Metaspace::Prepend::kFirst && piece.at_start))) {
      text = mark + text;
    }
    piece.text = std::move(text);
    if (!options_.split) {
      out.push_back(std::move(piece));
      return;
    }
    const char32_t delimiter = utf8_code_point(mark, 0).value;
    split_piece(piece, characters_that(piece.text, [&](char32_t c) { return c == delimiter; }),
                SplitBehavior::kMergedWithNext, false, out);
  }

 private:
  Metaspace options_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}

  void split(Piece piece, std::vector<Piece>& out) const override {
    std::vector<Piece> pieces;
    pieces.push_back(std::move(piece));
    for (const auto& part : parts_) {
      std::vector<Piece> next;
      next.reserve(pieces.size());
      for (Piece& p : pieces) {
        part->split(std::move(p), next);
      }
      pieces = std::move(next);
    }
    std::move(pieces.begin(), pieces.end(), std::back_inserter(out));
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where) {
  const std::string type = component_type(json, where);
  const std::string what = fmt::format("{} {}", where, type);
  if (type == "ByteLevel") {
    // trim_offsets is about offsets, which nobody asks for here.
    check_options(json, {"add_prefix_space", "trim_offsets", "use_regex"}, what);
    return std::make_unique<ByteLevel>(get<bool>(json, "add_prefix_space", what),
                                       get_or(json, "use_regex", true, what), what);
  }
  if (type == "Split") {
    check_options(json, {"pattern", "behavior", "invert"}, what);
    return std::make_unique<Split>(Pattern(get<Json>(json, "pattern", what), what),
                                   split_behavior(get<std::string>(json, "behavior", what), what),
                                   get<bool>(json, "invert", what));
  }
  if (type == "Digits") {
    check_options(json, {"individual_digits"}, what);
    const bool individual = get<bool>(json, "individual_digits", what);
    return std::make_unique<CharacterSplit>(
        is_numeric, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    check_options(json, {"behavior"}, what);
    return std::make_unique<CharacterSplit>(
        is_punctuation,
        split_behavior(get_or<std::string>(json, "behavior", "Isolated", what), what));
  }
  if (type == "Whitespace") {
    check_options(json, {}, what);
    return std::make_unique<Whitespace>();
  }
  if (type == "WhitespaceSplit") {
    check_options(json, {}, what);
    return std::make_unique<CharacterSplit>(is_whitespace, SplitBehavior::kRemoved);
  }
  if (type == "Metaspace") {
    return std::make_unique<MetaspaceSplit>(read_metaspace(json, what));
  }
  require(type == "Sequence",
          "{}: type '{}' is not supported (ByteLevel, Split, Digits, Punctuation, Whitespace, "
          "WhitespaceSplit, Metaspace, Sequence are)",
          where, type);
  check_options(json, {"pretokenizers"}, what);
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const Json& part : array_of(json, "pretokenizers", what)) {
    parts.push_back(make_pre_tokenizer(part, where));
  }
  return std::make_unique<Sequence>(std::move(parts));
}

}  // namespace quads
