// Fuzzes tokenizer.json: what is accepted encodes and decodes texts.
#include <array>
#include <numeric>

#include "fuzz/fuzz.h"
#include "fuzz/json_words.h"
#include "fuzz/small_tokenizers.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

template <class F>
void ignoring_errors(F&& function) {
  try {
    function();
  } catch (const Error&) {
  }
}

void use(const JsonTokenizer& tokenizer, std::string_view text) {
  for (const EncodeOptions& options : {EncodeOptions{}, EncodeOptions{.add_special_tokens = true,
                                                        .special_tokens_as_text = true}}) {
    std::vector<int32_t> ids;
    ignoring_errors([&] { ids = tokenizer.encode(text, options); });
    for (const int32_t id : ids) {
      fuzz_check(id >= 0 && id < tokenizer.vocab_size(), "ids are those of the vocabulary");
    }
    const std::string decoded = tokenizer.decode(ids);
    fuzz_check(utf8_valid_prefix(decoded) == decoded.size(), "decoded text is UTF-8");
  }
}

}  // namespace

std::vector<std::string> fuzz_corpus() { return small_tokenizers(); }

std::vector<std::string> fuzz_words() {
  return with_json_words({"\"type\":",
                          "\"BPE\"",
                          "\"WordLevel\"",
                          "\"ByteLevel\"",
                          "\"Split\"",
                          "\"Sequence\"",
                          "\"Metaspace\"",
                          "\"Replace\"",
                          "\"Strip\"",
                          "\"Prepend\"",
                          "\"NFKC\"",
                          "\"Lowercase\"",
                          "\"ByteFallback\"",
                          "\"Fuse\"",
                          "\"TemplateProcessing\"",
                          "\"Digits\"",
                          "\"Whitespace\"",
                          "{\"Regex\":\"a*\"}",
                          "{\"Regex\":\"\"}",
                          "{\"String\":\"\"}",
                          "\"behavior\":",
                          "\"Isolated\"",
                          "\"Removed\"",
                          "\"MergedWithNext\"",
                          "\"invert\":",
                          "\"content\":",
                          "\"normalized\":",
                          "\"single_word\":",
                          "\"unk_token\":",
                          "\"merges\":",
                          "\"vocab\":",
                          "\"\xe2\x96\x81\"",
                          "\"a\":",
                          "\"ids\":",
                          "\"a b\"",
                          "\\\\p{L}",
                          "\\\\p{^Lu}",
                          "(?i)",
                          "(?<=a)",
                          "(?!a)",
                          "(?>",
                          "(?:",
                          "(",
                          ")",
                          "{1,3}",
                          "{0,60000}",
                          "{,2}",
                          "*",
                          "+",
                          "?",
                          "|",
                          "[^",
                          "[[:alpha:]]",
                          "&&",
                          "\\\\x{10ffff}",
                          "\\\\b",
                          "\\\\X",
                          "\\\\1",
                          "\\\\k<a>",
                          "(?<a>",
                          "\\\\G",
                          "\\\\Q",
                          "\\\\R",
                          "(*",
                          "(?#",
                          "$",
                          "^"});
}

void fuzz_one(std::string_view input) {
  const JsonTokenizer tokenizer({{"tokenizer.json", std::string(input)}}, "dir");
  for (const char* text : {"", " ", "a", "hello  world's 12345!\n\n\t<eos>ab",
                           "\xc3\xa9\xef\xac\x81"
                           "\xf0\x9f\x98\x80 [B A]<s>\xe2\x96\x81 aaaa bab\r\n",
                           "\xff"}) {
    use(tokenizer, text);
  }
  use(tokenizer, std::string(300, 'a') + std::string(300, ' '));
  std::vector<int32_t> ids(static_cast<size_t>(tokenizer.vocab_size()) + 1);
  std::iota(ids.begin(), ids.end(), 0);
  tokenizer.decode(ids);
}

}  // namespace quads
