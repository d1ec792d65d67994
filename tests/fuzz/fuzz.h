// What a file of this folder gives to be fuzzed: good inputs, words of its language, and a function
// that takes any bytes. See driver.cpp.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace quads {

/// Inputs to start from; at least one.
std::vector<std::string> fuzz_corpus();

/// Keys, values and signs that mutations put in.
std::vector<std::string> fuzz_words();

/// Hands `input` to the parser and uses what it returns. Only Error may be thrown for bad input;
/// anything else, FuzzFinding above all, is a finding.
void fuzz_one(std::string_view input);

/// A property of the parser that does not hold.
class FuzzFinding : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void fuzz_check(bool holds, const char* property) {
  if (!holds) throw FuzzFinding(property);
}

}  // namespace quads
