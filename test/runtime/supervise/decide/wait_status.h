// Wait statuses as waitpid gives them.
#pragma once

namespace trainctl::test {

constexpr int exited(int code) { return code << 8; }
constexpr int killed(int signal) { return signal; }

}  // namespace trainctl::test
