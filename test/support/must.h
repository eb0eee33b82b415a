// What bodies for a fuzzer assert with: they run under libFuzzer, without a test framework.
#pragma once
#include <initializer_list>
#include <stdexcept>

#include "runtime/base/error.h"

namespace trainctl::test {

/// Throws std::logic_error if it does not hold.
inline void must(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// A refusal is an Error of one of these kinds with a sentence.
inline void must_be_refusal(const Error& error, std::initializer_list<ErrorCode> kinds) {
  bool known = false;
  for (const ErrorCode kind : kinds) known = known || error.code() == kind;
  must(known, "another kind of error");
  must(*error.what() != '\0', "no sentence");
}

}  // namespace trainctl::test
