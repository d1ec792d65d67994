// The decoders of `tokenizers`.
#include "tokenizer/decoder.h"

#include <functional>

#include "tokenizer/byte_decoders.h"
#include "tokenizer/component.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/pattern.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

// Without a decoder: tokens with spaces between them.
class JoinStep : public DecodeStep {
 public:
  void push(std::string_view text, bool ends) override {
    if (!inside_ && !first_) {
      emit(" ", false);
    }
    first_ = false;
    inside_ = !ends;
    emit(text, ends);
  }
  void finish() override {}

 private:
  bool first_ = true;
  bool inside_ = false;
};

class FuseStep : public DecodeStep {
 public:
  void push(std::string_view text, bool /*ends*/) override { emit(text, false); }
  void finish() override { emit("", true); }
};

class ReplaceStep : public DecodeStep {
 public:
  ReplaceStep(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void push(std::string_view text, bool ends) override {
    token_ += text;
    if (!ends) {
      return;
    }
    std::string result;
    size_t end = 0;
    if (!token_.empty()) {
      for (const Span& match : pattern_->find_all(token_)) {
        result.append(token_, end, match.begin - end);
        result += content_;
        end = match.end;
      }
    }
    result.append(token_, end);
    token_.clear();
    emit(result, true);
  }
  void finish() override {}

 private:
  std::shared_ptr<const Pattern> pattern_;
  std::string content_;
  std::string token_;
};

// Takes up to `start` characters `content` from a token's start and up to `stop` from its end.
class StripStep : public DecodeStep {
 public:
  StripStep(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop), left_(start) {}

  void push(std::string_view text, bool ends) override {
    while (left_ > 0 && !text.empty()) {
      left_ = text.starts_with(content_) ? left_ - 1 : 0;
      if (text.starts_with(content_)) {
        text.remove_prefix(content_.size());
      }
    }
    // What may belong to the token's end waits.
    kept_ += text;
    size_t end = kept_.size();
    for (size_t i = 0; i < stop_ && std::string_view(kept_).substr(0, end).ends_with(content_);
         ++i) {
      end -= content_.size();
    }
    emit(std::string_view(kept_).substr(0, end), ends);
    kept_.erase(0, end);
    if (ends) {
      kept_.clear();
      left_ = start_;
    }
  }
  void finish() override {}

 private:
  std::string content_;
  size_t start_;
  size_t stop_;
  size_t left_;  // to take from the start of this token
  std::string kept_;
};

// The replacement is a space again, except in the first token, where it is what was put in front.
class MetaspaceStep : public DecodeStep {
 public:
  explicit MetaspaceStep(const Metaspace& options)
      : replacement_(options.replacement), drop_(options.prepend != Metaspace::Prepend::kNever) {}

  void push(std::string_view text, bool ends) override {
    std::string result;
    for (size_t i = 0; i < text.size();) {
      if (text.substr(i).starts_with(replacement_)) {
        result += drop_ ? "" : " ";
        i += replacement_.size();
      } else {
        result += text[i++];
      }
    }
    drop_ = drop_ && !ends;
    emit(result, ends);
  }
  void finish() override {}

 private:
  std::string replacement_;
  bool drop_;
};

class Steps : public Decoder {
 public:
  using Make = std::function<std::unique_ptr<DecodeStep>()>;
  explicit Steps(std::vector<Make> makers) : makers_(std::move(makers)) {}
  void append_steps(std::vector<std::unique_ptr<DecodeStep>>& steps) const override {
    for (const Make& make : makers_) {
      steps.push_back(make());
    }
  }

 private:
  std::vector<Make> makers_;
};

void append_makers(const Json& json, const std::string& where, std::vector<Steps::Make>& makers) {
  const std::string type = component_type(json, where);
  const std::string what = fmt::format("{} {}", where, type);
  if (type == "ByteLevel") {
    check_options(json, {"add_prefix_space", "trim_offsets", "use_regex"}, what);
    makers.emplace_back(make_byte_level_step);
  } else if (type == "ByteFallback") {
    check_options(json, {}, what);
    makers.emplace_back(make_byte_fallback_step);
  } else if (type == "Fuse") {
    check_options(json, {}, what);
    makers.emplace_back([] { return std::make_unique<FuseStep>(); });
  } else if (type == "Replace") {
    check_options(json, {"pattern", "content"}, what);
    const auto pattern = std::make_shared<const Pattern>(get<Json>(json, "pattern", what), what);
    const auto content = get<std::string>(json, "content", what);
    makers.emplace_back([=] { return std::make_unique<ReplaceStep>(pattern, content); });
  } else if (type == "Strip") {
    check_options(json, {"content", "start", "stop"}, what);
    std::string content;
    utf8_append(content, character_of(json, "content", what));
    const auto start = get<uint32_t>(json, "start", what);
    const auto stop = get<uint32_t>(json, "stop", what);
    makers.emplace_back([=] { return std::make_unique<StripStep>(content, start, stop); });
  } else if (type == "Metaspace") {
    const Metaspace options = read_metaspace(json, what);
    makers.emplace_back([=] { return std::make_unique<MetaspaceStep>(options); });
  } else {
    require(type == "Sequence",
            "{}: type '{}' is not supported (ByteLevel, ByteFallback, Fuse, Replace, Strip, "
            "Metaspace, Sequence are)",
            where, type);
    check_options(json, {"decoders"}, what);
    for (const Json& part : array_of(json, "decoders", what)) {
      append_makers(part, where, makers);
    }
  }
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const Json& json, const std::string& where) {
  std::vector<Steps::Make> makers;
  if (json.is_null()) {
    makers.emplace_back([] { return std::make_unique<JoinStep>(); });
  } else {
    append_makers(json, where, makers);
  }
  return std::make_unique<Steps>(std::move(makers));
}

}  // namespace quads
