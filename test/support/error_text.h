// The text of an error that a test waits for.
#pragma once
#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/error.h"

namespace trainctl::test {

/// What the Error that `work` throws says; "no error" if it throws none. An Error with another code, or
/// another exception, fails the test.
template <typename Work>
std::string error_text(ErrorCode code, Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "no error";
}

}  // namespace trainctl::test
