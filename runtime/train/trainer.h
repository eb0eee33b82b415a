// The step loop of one rank.
#pragma once
#include <memory>
#include <optional>

#include "data/dataset.h"
#include "runtime/train/checkpointing.h"
#include "runtime/train/executor.h"
#include "runtime/train/rank.h"

namespace trainctl {

/// Communicators of every axis, made by split from the world; each may have one member.
struct MeshCommunicators {
  std::unique_ptr<parallel::Communicator> tp, dp, pp, tied;   ///< tied: first and last stage, or null
  PipelineEdges edges;
  template <typename Each>
  void for_each(Each each) const {
    for (const auto* axis : {&tp, &dp, &pp, &tied})
      if (*axis) each(**axis);
    edges.for_each(each);
  }
};
MeshCommunicators split_mesh(const parallel::MeshShape& shape, parallel::Communicator& world, bool tied, bool ring);

data::DatasetOptions dataset_options(const JobSpec& job, bool validation);

class Trainer {
 public:
  Trainer(const JobSpec& job, const RankOptions& options, parallel::Communicator& world, kernels::Backend& backend,
          Control& control, FileSystem& fs);
  ~Trainer();
  RankOutcome run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainctl
