// TopFrame: what `trainctl top` shows of a run at one moment, and TopReader, which reads it from the run's
// files again and again.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/observe/report/run_data.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl::terminal {

/// Numbers that are not known are NaN.
struct TopFrame {
  static constexpr double kUnknown = StepLine::kAbsent;
  std::string id;
  bool supervised = false;
  double now_unix_s = 0;
  RunStatus status;            ///< state, nodes, ranks, checkpoints
  StepLine last;               ///< the newest step, with the newest times
  double val_loss = kUnknown;  ///< of the newest evaluation
  int64_t val_step = 0;
  double goodput = kUnknown, left_s = kUnknown, step_s = kUnknown;  ///< step_s: mean of the newest steps
  std::vector<double> losses;                          ///< of all steps, or of the newest kMostLosses
  std::vector<std::pair<const char*, double>> phases;  ///< the parts of a step in s, as means
  int stages = 1;                   ///< of the pipeline; each has the same number of consecutive ranks
  report::RankColumn ranks;         ///< the newest numbers of each rank; empty: there are none
  std::string numerics;             ///< the devices, in words
  std::vector<std::string> events;  ///< the newest lines of events.jsonl
  std::vector<std::string> notes;   ///< what cannot be read, one sentence each
  static constexpr size_t kMostLosses = 2000;
};

/// Makes the frame of what is known of a run. `ranks`: from newest_ranks. Pure.
TopFrame top_frame(const report::RunData& run, report::RankColumn ranks, double now_unix_s);

/// The last complete line of metrics.ranks.jsonl.
report::RankColumn newest_ranks(FileSystem& fs, const RunDirectory& run);

class TopReader {
 public:
  TopReader(FileSystem& fs, RunDirectory run)
      : fs_(fs), run_(run), reader_(fs, run, {.plan = false, .ranks = false}) {}
  TopFrame read(bool supervised, double now_unix_s);

 private:
  FileSystem& fs_;
  const RunDirectory run_;
  report::RunReader reader_;
};

}  // namespace trainctl::terminal
