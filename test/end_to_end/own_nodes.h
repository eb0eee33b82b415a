// Nodes that are agents of this machine, each with a /dev/shm of its own: a script starts them in place of a
// remote shell. For files of Catch2.
#pragma once
#include <string>

namespace trainctl::test {

/// Writes the script into `folder` and returns its path, for launcher.shell. The agent of `node` and its
/// ranks have `variable` ("NAME=VALUE") in their environment, in place of what the supervisor has. The agent
/// of `late` starts once there is a file `go` in the folder; "": each agent starts at once. Where no agent
/// gets a /dev/shm of its own, the test program ends as skipped.
std::string write_shell(const std::string& folder, const std::string& node, const std::string& variable,
                        const std::string& late = "");

}  // namespace trainctl::test
