// ENSURE: the check for our own invariants. This header includes no formatting library, because device
// compilers read headers that use it.
#pragma once
#include <string>

namespace trainctl {

[[noreturn]] void invariant_failed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace trainctl

/// Checks an invariant, also in release builds. A violation prints the condition and the message and aborts.
/// A file that passes a message includes runtime/base/error.h (fmt).   ENSURE(n > 0, "n = {}", n);
/// The name is not CHECK because the test framework defines CHECK.
#define ENSURE(condition, ...)                                                         \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::trainctl::invariant_failed(__FILE__, __LINE__, #condition,                     \
                                   std::string(__VA_OPT__(::fmt::format(__VA_ARGS__)))); \
  } while (0)
