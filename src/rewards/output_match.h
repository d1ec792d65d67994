// Whether a program's output is the expected one, by LiveCodeBench's rules.
#pragma once

#include <string_view>

namespace quads {

/// Of a program: both texts without outer white space, cut into lines, these without outer white
/// space; as many lines; each pair the same, or both of them decimal numbers of the same exact
/// values (1.0 and 1; not 0.1 and 0.10001). White space is ASCII's.
/// LiveCodeBench, lcb_runner/evaluation/testing_util.py, grade_stdio.
bool same_output(std::string_view output, std::string_view expected);

/// Of a function: both JSON documents, equal as Python's values are: integers exactly, whatever
/// their size, 1 == 1.0 == true, objects in any order. A tuple is a list (JSON has no other), in
/// LiveCodeBench only at the top. False for what is not JSON, NaN and infinities among it.
bool same_value(std::string_view output, std::string_view expected);

}  // namespace quads
