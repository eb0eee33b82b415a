// The state of a run at one moment: status.json, rewritten by the supervisor about once a second and at every turn.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/activity.h"
#include "runtime/base/file_system.h"
#include "runtime/machine/node_facts.h"

namespace trainctl {

struct RankStatus {
  int rank = 0, pid = 0;
  std::string phase;  ///< absent | present | done | lost
  std::string host;
  std::optional<Activity> activity;  ///< the newest that is known
  bool stopped = false;              ///< by SIGSTOP or a debugger
  double heard_unix_s = 0;           ///< last message; 0: none yet
};

/// Clocks of nodes that differ by more from the supervisor's are reported.
inline constexpr double kClocksApartS = 1;

/// A node of a run on several.
struct NodeStatus {
  std::string name;
  std::string state;         ///< absent | running | spare | lost | quarantined
  std::string reason;        ///< of a loss
  int first = 0, count = 0;  ///< its ranks in this epoch
  double heard_unix_s = 0;   ///< its agent's last word; 0: none
  double since_unix_s = 0;   ///< in this state
  NodeFacts facts;           ///< of its newest agent
  NodeUsage usage;
  std::optional<double> clock_offset_s;  ///< ahead of the supervisor's clock when its agent said hello
};

struct RunStatus {
  std::string run_id, directory;
  std::string state = "starting";  ///< submitted | starting | running | saving | stopping | restarting | waiting (for nodes) | finished
                                   ///< | paused | stopped | aborted | failed
  uint64_t epoch = 0;
  int restarts = 0, exit_code = -1;  ///< exit_code -1: still going
  int64_t step = 0, total_steps = 0, saved_step = -1;
  double started_unix_s = 0, updated_unix_s = 0, step_unix_s = 0;  ///< step_unix_s: when the last step ended
  double heartbeat_s = 1, step_timeout_s = 600;
  std::string last_step_json = "{}";  ///< the last line of metrics
  std::string lineage_json = "[]";    ///< see runtime/spec/lineage.h
  std::string reason;                 ///< of the end, or of the last restart
  std::string advice;                 ///< the next command
  std::vector<NodeStatus> nodes;  ///< none: this machine alone
  std::vector<RankStatus> ranks;

  bool ended() const { return exit_code >= 0; }
  /// `with_ranks` false: they are in a file of their own, see write_status.
  std::string to_json(bool with_ranks = true) const;
  static RunStatus from_json(const std::string& text);  ///< Error(kIo) if it is none
};

/// More ranks than this are written to ranks.json in the same folder, and only every kRanksIntervalS: nothing
/// that happens every second grows with the number of ranks.
inline constexpr size_t kMostRanksInStatus = 256;
inline constexpr double kRanksIntervalS = 15;

/// Replaces the file by one rename, without waiting for the disk: it is a view, not a record.
void write_status(FileSystem& fs, const std::string& path, const RunStatus& status, bool with_ranks = true);
std::optional<RunStatus> read_status(FileSystem& fs, const std::string& path);

/// The status of a run that was found in `directory`: of a folder that was copied or renamed since, the id, the paths and the advised
/// command become those of the place where it was found.
RunStatus found_in(RunStatus status, const std::string& directory);

}  // namespace trainctl
