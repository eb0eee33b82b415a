// One macro for "we are wrong", without a formatting library: device compilers read headers that use it.
#pragma once
#include <string>

namespace trainctl {

[[noreturn]] void invariant_failed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace trainctl

/// Our own invariant: stays on in release, prints condition and values, aborts. A message needs runtime/base/error.h.
/// (Named ENSURE because the test framework owns CHECK.)   ENSURE(n > 0, "n = {}", n);
#define ENSURE(condition, ...)                                                         \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::trainctl::invariant_failed(__FILE__, __LINE__, #condition,                     \
                                   std::string(__VA_OPT__(::fmt::format(__VA_ARGS__)))); \
  } while (0)
