// Words that JSON of any kind may have.
#pragma once

#include <string>
#include <vector>

namespace quads {

/// `words` with those of JSON.
inline std::vector<std::string> with_json_words(std::vector<std::string> words) {
  words.insert(words.end(), {"null",
                             "true",
                             "false",
                             "[]",
                             "{}",
                             "\"\"",
                             ",",
                             ":",
                             "[",
                             "]",
                             "{",
                             "}",
                             "\"",
                             "\\u0000",
                             "\\ud800",
                             "\\ud83d\\ude00",
                             "\\\"",
                             "\\",
                             "\n",
                             "\r",
                             "\t",
                             "\xff",
                             "\xc3",
                             "\xed\xa0\x80",
                             "\xf0\x9f\x98\x80",
                             "\xef\xbb\xbf",
                             "0",
                             "1",
                             "-1",
                             "1e999",
                             "0.5"});
  return words;
}

}  // namespace quads
