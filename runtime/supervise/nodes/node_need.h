// What a job needs of the nodes on which it runs.
#pragma once
#include "runtime/machine/rank_device.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// A JobSpec becomes one by itself.
struct NodeNeed {
  NodeNeed(const JobSpec& job)
      : use(job),
        parallelism(job.parallelism),
        launcher(job.launcher),
        elastic(job.fault_tolerance.elastic) {}
  DeviceUse use;
  ParallelSpec parallelism;
  LauncherSpec launcher;
  bool elastic;  ///< a narrower width will do
  /// Ranks that a node has together.
  int group() const { return launcher.tensor_across_nodes ? 1 : parallelism.tensor; }
};

}  // namespace trainctl
