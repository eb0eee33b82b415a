// Names of the environment variables that trainctl sets for the processes of a run.
#pragma once

namespace trainctl {

/// The attempt's mark, in all processes of the attempt.
inline constexpr const char* kAttemptVariable = "TRAINCTL_ATTEMPT";
/// The run directory, in all processes of the run.
inline constexpr const char* kRunVariable = "TRAINCTL_RUN";
inline constexpr const char* kNodeVariable = "TRAINCTL_NODE";        ///< name of the node, in its agent

// Set for the ranks.
inline constexpr const char* kTokenVariable = "TRAINCTL_TOKEN";    ///< token of the node's control channel
inline constexpr const char* kAgentVariable = "TRAINCTL_AGENT";    ///< address of the node's control channel
inline constexpr const char* kBoardVariable = "TRAINCTL_BOARD";    ///< file of the node's ActivityBoard
inline constexpr const char* kEpochVariable = "TRAINCTL_EPOCH";    ///< epoch of the rank
/// The node's ckpt::MemoryFolder; not set if the node has none.
inline constexpr const char* kMemoryVariable = "TRAINCTL_MEMORY";
/// For mpirun's remote shell: the address of the agent.
inline constexpr const char* kRemoteVariable = "TRAINCTL_REMOTE";

}  // namespace trainctl
