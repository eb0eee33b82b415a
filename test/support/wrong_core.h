// A core that computes wrongly, under the real program (test/support/wrong_core/wrong_core.cpp).
#pragma once
#include <string>

#include "runtime/machine/binding.h"

namespace trainctl::test {

/// The core that a test spoils: the last that this process may use.
inline int wrong_core() { return usable_cpus().back(); }
/// launcher.env with which that core of `host` computes wrongly in each rank there. `program`: the path of
/// this build's trainctl.
inline std::string wrong_core_field(const std::string& program, const std::string& host) {
  const std::string library =
      program.substr(0, program.rfind('/')) + "/test/support/wrong_core/libwrong_core.so";
  return R"(launcher.env={"LD_PRELOAD": ")" + library + R"(", "TRAINCTL_TEST_WRONG_CORE": ")" + host + ":" +
         std::to_string(wrong_core()) + R"("})";
}

}  // namespace trainctl::test
