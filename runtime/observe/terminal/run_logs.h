// RunLogs merges the logs of a run: those of its ranks, of the launcher, of agents and supervisors, the
// causes of its failures and the crash records of its ranks. One owner, one thread.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/problem.h"
#include "runtime/run/record/line_follower.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl::terminal {

struct LogLine {
  std::string source;  ///< "rank 3", "mpirun", "node node0", "supervisor", "failure 1"
  int rank = -1;       ///< the rank that it is of; -1: of none
  int failure = 0;     ///< the failure that it is of, from 1; 0: of none
  double unix_s = 0;   ///< the newest time that its file has up to it; 0: none
  std::string text;
  bool operator==(const LogLine&) const = default;
};

/// Ranges of ranks, both ends included.
using RankRanges = std::vector<std::pair<int, int>>;
/// Reads "0,3-7" into `ranges`.
Problem parse_ranks(std::string_view text, RankRanges& ranges);
bool holds(const RankRanges& ranges, int rank);
/// The largest rank of ranges that are not empty.
int last_of(const RankRanges& ranges);

struct LogSelection {
  RankRanges ranks;  ///< of these ranks only; empty: of all, and what is of no rank
  int failure = 0;   ///< what was kept with this failure; 0: the logs of the run
};

class RunLogs {
 public:
  RunLogs(FileSystem& fs, RunDirectory run, LogSelection selection);
  /// The lines that are new since the last call. Lines of one file keep their order; files are merged by the
  /// times in them (a file without any comes first), those with equal times by source. With `all`, the
  /// incomplete last line of a file, too: for the last call.
  std::vector<LogLine> read(bool all);
  /// The number of files that were read last.
  size_t files() const { return sources_.size(); }

 private:
  struct Source {
    LogLine form;
    LineFollower follower;
    double unix_s = 0;
  };
  void find_sources();
  void add_source(const std::string& path, LogLine form);
  void read_events(std::vector<LogLine>& lines);
  void read_crash_records(const std::string& folder, int failure, std::vector<LogLine>& lines);
  bool selected(int rank) const { return selection_.ranks.empty() || holds(selection_.ranks, rank); }

  FileSystem& fs_;
  const RunDirectory run_;
  const LogSelection selection_;
  std::map<std::string, Source> sources_;  ///< by path
  LineFollower events_;
  std::set<std::pair<int, uint64_t>> records_;  ///< rank and epoch of the crash records that were read
  std::set<std::string> kept_records_;          ///< paths of those in the folders of failures
};

/// The most ranks that the run has had; 0: not known. A resume may have changed their number.
int ranks_of(FileSystem& fs, const RunDirectory& run);

/// The number of the newest failure of a run; 0: there is none.
int last_failure(FileSystem& fs, const RunDirectory& run);

}  // namespace trainctl::terminal
