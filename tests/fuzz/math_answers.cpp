// Fuzzes what finds and compares mathematical answers in process. An input is a label, a NUL byte,
// and a response.
#include "fuzz/fuzz.h"
#include "rewards/math_answer.h"
#include "rewards/math_compare.h"
#include "rewards/math_number.h"

namespace quads {
namespace {

void compare(std::string_view label, std::string_view answer) {
  const MathVerdict verdict = compare_math_answers(label, answer);
  fuzz_check(verdict == compare_math_answers(answer, label), "comparing is symmetric");
  const std::string text = normal_answer_text(answer);
  fuzz_check(text.empty() || compare_math_answers(answer, answer) == MathVerdict::kEqual,
             "an answer equals itself");
  const auto a = parse_math_number(tidy_answer(label));
  const auto b = parse_math_number(tidy_answer(answer));
  if (a && b) {
    fuzz_check(same_number(*a, *b) == same_number(*b, *a), "equality of numbers is symmetric");
    fuzz_check(same_number(*a, *a), "a number equals itself");
  }
}

}  // namespace

std::vector<std::string> fuzz_corpus() {
  std::vector<std::string> inputs;
  for (const auto& [label, response] : {
           std::pair{"1000", "So the answer is \\boxed{1,000}."},
           {"1/2", "\\boxed{\\frac{1}{2}}"},
           {"#### 42", "The answer is **42**."},
           {"0.1\\overline{6}", "Answer: $\\frac16$. "},
           {"50\\%", "\\fbox{0.5}"},
           {"1.5 \\times 10^{-3}", "\\boxed{1.5e-3}"},
           {"-3\\frac{1}{2}", "\\boxed{-3 1/2}"},
           {"5\\text{ cm}", "\\boxed{5\\mathrm{cm}^2}"},
           {"(1, 2]", "\\boxed{\\left(1,2\\right]}"},
           {"x^2+1", "the final answer is: \\[ \\dfrac{x^4-1}{x^2-1} \\]"},
           {"90^\\circ", "\\boxed{90{,}000}"},
           {"\\begin{pmatrix}1\\\\2\\end{pmatrix}",
            "\\boxed{\\begin{pmatrix} 1 \\\\ 2 "
            "\\end{pmatrix}}"},
       }) {
    inputs.push_back(std::string(label) + '\0' + response);
  }
  return inputs;
}

std::vector<std::string> fuzz_words() {
  return {"\\boxed{",
          "\\fbox{",
          "\\boxed",
          "}",
          "{",
          "\\frac",
          "\\dfrac{",
          "\\frac12",
          "\\overline{",
          "\\text{",
          "\\mathrm",
          "\\times",
          "\\cdot",
          "10^{",
          "^",
          "e9",
          "%",
          "\\%",
          "\\$",
          "$",
          "$$",
          "\\[",
          "\\(",
          "\\left",
          "\\right",
          "answer is",
          "Answer:",
          "####",
          "\n####",
          "\\circ",
          "\xc2\xb0",
          "\xe2\x88\x92",
          "\xc2\xa0",
          ",",
          "{,}",
          "\\!",
          "\\,",
          " or ",
          "and",
          "0.",
          ".",
          "/",
          "-",
          "+",
          "\\\\",
          "\\",
          std::string(1, '\0'),
          "\xff",
          "999999999999999999",
          "1e999999999999999999",
          "10^{999999999}"};
}

void fuzz_one(std::string_view input) {
  const size_t middle = std::min(input.find('\0'), input.size());
  const std::string_view label = input.substr(0, middle);
  const std::string_view response = input.substr(std::min(middle + 1, input.size()));
  const auto right = label_answer(label);
  const auto given = response_answer(response);
  if (right && given) compare(*right, *given);
  if (!label.empty() && !response.empty()) compare(label, response);
}

}  // namespace quads
