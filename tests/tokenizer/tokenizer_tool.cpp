// Runs tokenizers on request, so that tests/oracle can hold them against `tokenizers`.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "tokenizer/character_tokenizer.h"
#include "tool_main.h"

namespace quads {
namespace {

// The text of a token stream, with a check that no part ends within a character.
std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const auto stream = tokenizer.stream();
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = stream->push(id);
    static_cast<void>(Json(part).dump());  // throws unless it is UTF-8
    text += part;
  }
  return text + stream->finish();
}

// Reads JSON from stdin: {"encode": [texts], "decode": [id lists]}; prints the ids plain, with
// special tokens added, and with special tokens as text (an error's message where a text has no
// ids), and the texts, at once and token by token.
void run_tokenizer(const std::filesystem::path& directory) {
  const auto tokenizer = load_tokenizer(directory);
  const Json input = parse_json(std::string(std::istreambuf_iterator<char>(std::cin), {}), "stdin");
  const auto texts = get<std::vector<std::string>>(input, "encode", "stdin");
  const auto encoded = [&](const EncodeOptions& options) {
    Json lists = Json::array();
    for (const std::string& text : texts) {
      try {
        lists.push_back(tokenizer->encode(text, options));
      } catch (const Error& error) {
        lists.push_back(error.what());
      }
    }
    return lists;
  };
  Json output = {{"ids", encoded({})},
                 {"ids_added", encoded({.add_special_tokens = true})},
                 {"ids_as_text", encoded({.special_tokens_as_text = true})},
                 {"texts", Json::array()},
                 {"streamed", Json::array()},
                 {"eos", tokenizer->eos_id().value_or(-1)}};
  for (const auto& ids : get<std::vector<std::vector<int32_t>>>(input, "decode", "stdin")) {
    output["texts"].push_back(tokenizer->decode(ids));
    output["streamed"].push_back(streamed(*tokenizer, ids));
  }
  fmt::print("{}\n", output.dump());
}

void run(const std::vector<std::string>& args) {
  require(args.size() >= 2, "usage: tokenizer_tool COMMAND DIR...");
  if (args[0] == "run") {  // DIR
    run_tokenizer(args[1]);
  } else if (args[0] == "save") {  // DIR OUT
    load_tokenizer(args[1])->save(args.at(2));
  } else if (args[0] == "write-characters") {  // DIR TOKENS_JSON
    const Json json = parse_json(args.at(2), "tokens");
    CharacterTokenizer({.tokens = get<std::vector<std::string>>(json, "tokens", "tokens"),
                        .special = get<std::vector<std::string>>(json, "special", "tokens"),
                        .eos = find_key<std::string>(json, "eos", "tokens"),
                        .pad = find_key<std::string>(json, "pad", "tokens")})
        .save(args[1]);
  } else {
    fail("unknown command '{}'", args[0]);
  }
}

}  // namespace
}  // namespace quads

int main(int argc, char** argv) {
  return quads::tool_main([&] { quads::run({argv + 1, argv + argc}); });
}
