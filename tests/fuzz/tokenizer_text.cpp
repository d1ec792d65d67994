// Fuzzes texts to encode and ids to decode. An input is a text, and a list of ids of two bytes
// each, for one of the tokenizers (its size says which) and for the one that has all bytes.
#include <memory>

#include "fuzz/fuzz.h"
#include "fuzz/small_tokenizers.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

std::vector<std::unique_ptr<JsonTokenizer>> read_tokenizers() {
  std::vector<std::unique_ptr<JsonTokenizer>> tokenizers;
  for (std::string& text : small_tokenizers()) {
    tokenizers.push_back(std::make_unique<JsonTokenizer>(
        TokenizerFiles{{"tokenizer.json", std::move(text)}}, "dir"));
  }
  return tokenizers;
}

void check_decoding(const JsonTokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const std::string text = tokenizer.decode(ids);
  fuzz_check(utf8_valid_prefix(text) == text.size(), "decoded text is UTF-8");
}

void encode(const JsonTokenizer& tokenizer, std::string_view text, bool lossless) {
  for (const bool special : {false, true}) {
    const EncodeOptions options{.add_special_tokens = special, .special_tokens_as_text = special};
    std::vector<int32_t> ids;
    try {
      ids = tokenizer.encode(text, options);
    } catch (const Error&) {
      continue;
    }
    for (const int32_t id : ids) {
      fuzz_check(id >= 0 && id < tokenizer.vocab_size(), "ids are those of the vocabulary");
    }
    check_decoding(tokenizer, ids);
    fuzz_check(!lossless || special || tokenizer.decode(ids) == text, "bytes come back");
  }
}

}  // namespace

std::vector<std::string> fuzz_corpus() {
  return {"hello world's 12345!\n\n\t<eos>ab", "a", " [b a]<s> ab \xe2\x96\x81 aab b1! ba",
          "\xc3\xa9 \xef\xac\x81 \xcc\x81\xf0\x9f\x98\x80\r\n", std::string("\0\x01\x04\x01", 4)};
}

std::vector<std::string> fuzz_words() {
  return {"<eos>",
          "<s>",
          "[b a]",
          "[B A]",
          "ba",
          " ",
          "  ",
          "\n",
          "\r\n",
          "\t",
          "\xc2\xa0",
          "\xe3\x80\x80",
          "\xe2\x96\x81",
          "'s",
          "'RE",
          "1",
          "123",
          "!",
          "hello",
          "\xcc\x81",
          "\xef\xac\x81",
          "\xe1\x84\x80\xe1\x85\xa1",
          "\xf0\x9f\x98\x80",
          "\xf4\x8f\xbf\xbf",
          "\xef\xbf\xbd",
          "\xef\xbb\xbf",
          "\xed\xa0\x80",
          "\xc0\x80",
          "\xf5",
          "\xff",
          std::string(1, '\0'),
          "\xc4\xb0",
          "\xc5\xbf",
          "\xe2\x84\xaa",
          "<0x41>",
          "ab",
          "\x7f"};
}

void fuzz_one(std::string_view input) {
  static const auto tokenizers = read_tokenizers();
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < input.size() && i < 512; i += 2) {
    ids.push_back(static_cast<uint8_t>(input[i]) % 3 * 256 + static_cast<uint8_t>(input[i + 1]));
  }
  for (const size_t i : {size_t{0}, input.size() % tokenizers.size()}) {
    encode(*tokenizers[i], input, /*lossless=*/i == 0);
    check_decoding(*tokenizers[i], ids);
  }
  require(utf8_valid_prefix(input) == input.size(), "not UTF-8");
}

}  // namespace quads
