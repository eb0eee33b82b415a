// Names in the environment of the processes of a run.
#pragma once

namespace trainctl {

inline constexpr const char* kAttemptVariable = "TRAINCTL_ATTEMPT";  ///< marks every process of an attempt
inline constexpr const char* kRunVariable = "TRAINCTL_RUN";          ///< ... and of the run: its directory
inline constexpr const char* kNodeVariable = "TRAINCTL_NODE";  ///< ... and of an agent: the name of its node

// What a rank learns from it.
inline constexpr const char* kTokenVariable = "TRAINCTL_TOKEN";    ///< opens the control channel of its node
inline constexpr const char* kAgentVariable = "TRAINCTL_AGENT";    ///< address of that channel
inline constexpr const char* kBoardVariable = "TRAINCTL_BOARD";    ///< file of the ActivityBoard of its node
inline constexpr const char* kEpochVariable = "TRAINCTL_EPOCH";    ///< that it belongs to
inline constexpr const char* kRemoteVariable = "TRAINCTL_REMOTE";  ///< of mpirun: where its remote shell asks

}  // namespace trainctl
