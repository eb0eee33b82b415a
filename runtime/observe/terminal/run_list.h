// The runs of a folder, one row each: what `trainctl list` shows.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl::terminal {

struct ListedRun {
  std::string id, directory;
  /// A word of RunState; "created": it has not started; "lost": its supervisor died; "damaged": see `note`.
  std::string state;
  bool supervised = false;  ///< a process holds the run
  int ranks = 0, restarts = 0, exit_code = -1;
  int64_t step = 0, total_steps = 0, saved_step = -1;
  double loss = 0;                                ///< of the last step; NaN: not known
  double created_unix_s = 0, updated_unix_s = 0;  ///< 0: not known
  std::string note;                               ///< why its records cannot be read; "": they can
};

/// Reads one run. Never throws for damaged records.
ListedRun listed_run(FileSystem& fs, const RunDirectory& run, bool supervised);
/// All runs in the folder `root`, the one with the newest record first.
std::vector<ListedRun> list_runs(FileSystem& fs, const std::string& root,
                                 const std::function<bool(const RunDirectory&)>& supervised);

/// A table for people. `columns`: the width of the terminal, 0: no limit.
std::string render_run_list(const std::vector<ListedRun>& runs, double now_unix_s, int columns, bool color);
OrderedJson run_list_json(const std::vector<ListedRun>& runs);

}  // namespace trainctl::terminal
