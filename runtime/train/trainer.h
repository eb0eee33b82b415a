// The step loop of one rank.
#pragma once
#include <memory>

#include "data/dataset.h"
#include "kernels/backend.h"
#include "runtime/base/file_system.h"
#include "runtime/train/rank.h"

namespace trainctl {

/// The data that the job reads: for training, or for validation.
data::DatasetOptions dataset_options(const JobSpec& job, bool validation);

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
