// What a rank learns from its environment.
#pragma once

namespace trainctl {

/// Names in the environment of ranks.
inline constexpr const char* kTokenVariable = "TRAINCTL_TOKEN";
inline constexpr const char* kAttemptVariable = "TRAINCTL_ATTEMPT";  ///< marks every process of the attempt
inline constexpr const char* kRunVariable = "TRAINCTL_RUN";          ///< ... and of the run: its directory

}  // namespace trainctl
