// What Recovery needs to know of a job.
#include "runtime/supervise/loop/supervisor.h"
#include "runtime/supervise/decide/widths.h"

namespace trainctl {

Recovery::Options recovery_options(const SupervisePlan& plan) {
  const JobSpec& job = plan.job.job;
  const FaultSpec& fault = job.fault_tolerance;
  const bool at_start = plan.start && plan.resume_from == plan.start->checkpoint;
  Recovery::Options options{.widths = widths_of(plan.job),
                            .tensor = job.launcher.tensor_across_nodes ? 1 : job.parallelism.tensor,
                            .step_fixed = plan.resume_fixed,
                            .ask_nodes = plan.resume_asks_nodes,
                            .max_restarts = fault.max_restarts,
                            .too_few = fault.too_few_nodes == TooFewNodes::wait ? Recovery::TooFew::wait
                                       : fault.too_few_nodes == TooFewNodes::requeue
                                           ? Recovery::TooFew::requeue
                                           : Recovery::TooFew::stop,
                            .wait_limit_s = fault.wait_for_nodes_seconds};
  for (const ClusterNode& node : plan.nodes.nodes) options.nodes.push_back(node.name);
  if (!plan.resume_from.empty() && !at_start) options.from_step = plan.resume_step;
  if (plan.resume_memory) {
    options.from_step = plan.resume_step;
    options.from_memory = plan.resume_memory->state;
  }
  return options;
}

}  // namespace trainctl
