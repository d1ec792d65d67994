// The normalizers of `tokenizers`.
#include "tokenizer/normalizer.h"

#include <optional>
#include <vector>

#include "tokenizer/component.h"
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  void normalize(Piece& piece) const override { piece.text = normal_form(piece.text, form_); }

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  void normalize(Piece& piece) const override { piece.text = lowercase(piece.text); }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  void normalize(Piece& piece) const override {
    const std::string& text = piece.text;
    size_t begin = 0;
    size_t end = text.size();
    while (left_ && begin < end) {
      const auto [c, length] = utf8_code_point(text, begin);
      if (!is_whitespace(c)) {
        break;
      }
      begin += length;
    }
    while (right_ && begin < end) {
      const auto [c, length] = utf8_code_point_before(text, end);
      if (!is_whitespace(c)) {
        break;
      }
      end -= length;
    }
    piece = piece.part(begin, end);
  }

 private:
  bool left_;
  bool right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  void normalize(Piece& piece) const override {
    if (!piece.text.empty()) {
      piece.text = text_ + piece.text;
    }
  }

 private:
  std::string text_;
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content, std::string where)
      : pattern_(std::move(pattern)), content_(std::move(content)), where_(std::move(where)) {}

  void normalize(Piece& piece) const override {
    if (piece.text.empty()) {
      return;
    }
    std::string result;
    size_t end = 0;
    for (const Span& match : pattern_.find_all(piece.text)) {
      result.append(piece.text, end, match.begin - end);
      result += content_;
      require(result.size() <= kMostNormalizedBytes, "{}: it makes more than {} bytes of {}",
              where_, kMostNormalizedBytes, piece.text.size());
      end = match.end;
      // `tokenizers` takes what is put in for the last character of what is taken out.
      if (match.begin == 0 && match.end > 0 &&
          (content_.empty() || utf8_length(piece.text, 0) < match.end)) {
        piece.at_start = false;
      }
    }
    result.append(piece.text, end);
    piece.text = std::move(result);
  }

 private:
  Pattern pattern_;
  std::string content_;
  std::string where_;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  void normalize(Piece& piece) const override {
    for (const auto& part : parts_) {
      part->normalize(piece);
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

std::optional<NormalForm> form_of(const std::string& type) {
  return type == "NFC"    ? std::optional(NormalForm::kNfc)
         : type == "NFD"  ? std::optional(NormalForm::kNfd)
         : type == "NFKC" ? std::optional(NormalForm::kNfkc)
         : type == "NFKD" ? std::optional(NormalForm::kNfkd)
                          : std::nullopt;
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Json& json, const std::string& where) {
  const std::string type = component_type(json, where);
  const std::string what = fmt::format("{} {}", where, type);
  if (const auto form = form_of(type)) {
    check_options(json, {}, what);
    return std::make_unique<UnicodeForm>(*form);
  }
  if (type == "Lowercase") {
    check_options(json, {}, what);
    return std::make_unique<Lowercase>();
  }
  if (type == "Strip") {
    check_options(json, {"strip_left", "strip_right"}, what);
    return std::make_unique<Strip>(get<bool>(json, "strip_left", what),
                                   get<bool>(json, "strip_right", what));
  }
  if (type == "Prepend") {
    check_options(json, {"prepend"}, what);
    return std::make_unique<Prepend>(get<std::string>(json, "prepend", what));
  }
  if (type == "Replace") {
    check_options(json, {"pattern", "content"}, what);
    return std::make_unique<Replace>(Pattern(get<Json>(json, "pattern", what), what),
                                     get<std::string>(json, "content", what), what);
  }
  require(type == "Sequence",
          "{}: type '{}' is not supported (NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, "
          "Replace, Sequence are)",
          where, type);
  check_options(json, {"normalizers"}, what);
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (const Json& part : array_of(json, "normalizers", what)) {
    parts.push_back(make_normalizer(part, where));
  }
  return std::make_unique<Sequence>(std::move(parts));
}

}  // namespace quads
