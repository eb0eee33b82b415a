// Trainer runs one rank of a run, from the resolved spec to the end of training. The same code runs on a
// thread or in a process, on a CPU or a GPU.
#pragma once
#include <memory>

#include "data/dataset.h"
#include "kernels/backend.h"
#include "runtime/base/file_system.h"
#include "runtime/train/rank.h"

namespace trainctl {

/// The data that the job reads: for training, or for validation.
data::DatasetOptions dataset_options(const DataSpec& spec, int64_t vocab_size, bool validation);

enum class RankOutcome { finished, stopped };

class Trainer {
 public:
  /// All but `job` and `options` must outlive it.
  Trainer(const JobSpec& job, const RankOptions& options, parallel::Communicator& world,
          kernels::Backend& backend, Control& control, FileSystem& fs);
  ~Trainer();
  /// Runs rank `world.rank()` to the end of training or to a stop. Throws Error; the caller writes the
  /// crash record.
  RankOutcome run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainctl
