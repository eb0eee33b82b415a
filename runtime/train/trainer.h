// The step loop of one rank.
#pragma once
#include <memory>

#include "data/dataset.h"
#include "kernels/backend.h"
#include "parallel/step_program.h"
#include "runtime/base/activity.h"
#include "runtime/base/file_system.h"
#include "runtime/train/rank.h"
#include "runtime/train/save/save_decider.h"

namespace trainctl {

data::DatasetOptions dataset_options(const JobSpec& job, bool validation);

/// The calendar of saves of a rank that begins after `step`. Its decisions become events.
std::unique_ptr<SaveDecider> make_save_decider(const JobSpec& job, const RankOptions& options, int rank,
                                               int64_t step, const Saver& saver, Control& control, Clock& clock);

/// The phase that a rank reports during an action of this kind.
RunPhase phase_of(parallel::Act act);

class Trainer {
 public:
  Trainer(const JobSpec& job, const RankOptions& options, parallel::Communicator& world,
          kernels::Backend& backend, Control& control, FileSystem& fs);
  ~Trainer();
  RankOutcome run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainctl
