// The message of the error that a call is expected to end with.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace quads {

template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an error";
  return {};
}

/// Checks that `call` throws an Error whose message contains `part`.
template <class F>
void expect_error(F&& call, const std::string& part) {
  const std::string message = error_of(call);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

}  // namespace quads
