// NodeDescription is what an agent reports of its node to the supervisor: its facts and what is missing on
// it for the run, once; what it uses, again and again. Used by one thread; it starts threads that ask the
// GPUs.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/problem.h"
#include "runtime/machine/node_facts.h"
#include "runtime/run/agent/agent.h"
#include "runtime/run/wire/node_wire.h"
#include "runtime/train/measure/gpu_watch.h"

namespace trainctl {

class NodeDescription {
 public:
  /// Looks at the node once. `options` must outlive it. Throws nothing for what is missing.
  explicit NodeDescription(const AgentOptions& options);

  /// The hello without what belongs to the connection and to the processes: token, address, time and epochs.
  wire::NodeHello hello() const;
  NodeUsage usage() const;
  /// Why the job could not be read, one sentence: then the numerics are not known.
  const Problem& job_problem() const { return job_problem_; }

 private:
  void read_job();
  const AgentOptions& options_;
  Problem job_problem_ = Problem::none(), folders_problem_ = Problem::none();
  std::string topology_, numerics_;
  bool uses_gpus_ = false;
  NodeFacts facts_;
  std::vector<std::unique_ptr<GpuWatch>> gpus_;
};

/// The node's own host name.
std::string host_name();

}  // namespace trainctl
