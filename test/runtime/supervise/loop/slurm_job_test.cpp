// Goal: what a run takes from its Slurm job and gives back: slots of nodes, the moment to stop, the last
// acts, the
//       request of a submission, and who gives an abandoned job back.
// Method: small allocations by hand; each rule with a case on both of its sides.
#include "runtime/supervise/loop/slurm_job.h"

#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/supervise/slurm/batch_host.h"
#include "runtime/supervise/nodes/slurm_slots.h"
#include "runtime/supervise/start/submit.h"

using namespace trainctl;

namespace {

JobSpec job_of(int tensor, int pipeline, int data) {
  JobSpec job;
  job.parallelism.tensor = tensor;
  job.parallelism.pipeline = pipeline;
  job.parallelism.data = job.parallelism.lanes = data;
  job.parallelism.world_size = tensor * pipeline * data;
  return job;
}

SlurmAllocation allocation_of(const std::vector<int>& cpus) {
  SlurmAllocation allocation{.job_id = "12"};
  for (size_t i = 0; i < cpus.size(); ++i) allocation.nodes.push_back({"n" + std::to_string(i), cpus[i]});
  return allocation;
}

std::vector<int> slots(const JobSpec& job, const SlurmAllocation& allocation, int spares = 0) {
  std::vector<int> slots;
  for (const ClusterNode& node : nodes_for(job, allocation, spares)) slots.push_back(node.slots);
  return slots;
}

std::string refusal(const JobSpec& job, const SlurmAllocation& allocation) {
  try {
    nodes_for(job, allocation, 0);
    return "";
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kPlan);
    return error.what();
  }
}

}  // namespace

TEST_CASE("slots of an allocation", "[slurm]") {
  const JobSpec job = job_of(2, 2, 2);
  CHECK(slots(job, allocation_of({4, 4, 4, 4})) == std::vector<int>{2, 2, 2, 2});
  CHECK(slots(job, allocation_of({4, 4, 4, 4}), 2) == std::vector<int>{4, 4, 4, 4});
  CHECK(slots(job, allocation_of({0, 0})) == std::vector<int>{4, 4});      // not known
  CHECK(slots(job, allocation_of({8, 2, 3})) == std::vector<int>{8, 2,
      3});  // one has too few for an even share
  JobSpec fixed = job;
  fixed.launcher.slots = 8;
  CHECK(slots(fixed, allocation_of({1})) == std::vector<int>{8});
  JobSpec gpus = job;
  gpus.device = DeviceChoice::cuda;
  SlurmAllocation with_gpus = allocation_of({64, 64});
  with_gpus.gpus_on_this_node = 4;
  CHECK(slots(gpus, with_gpus) == std::vector<int>{4, 4});
  CHECK(slots(job, with_gpus) == std::vector<int>{4, 4});
  with_gpus.gpus_on_this_node = 8;
  CHECK(slots(gpus, with_gpus) == std::vector<int>{8, 8});
  CHECK(slots(job, with_gpus) == std::vector<int>{4, 4});
}

TEST_CASE("an allocation in which nothing fits", "[slurm]") {
  JobSpec job = job_of(2, 2, 2);
  CHECK(refusal(job, allocation_of({2, 2})).empty());  // half as wide, by itself
  job.fault_tolerance.elastic = false;
  CHECK(refusal(job, allocation_of({2, 2})).find("-s parallelism.data=1 -s parallelism.world_size=4, "
      "which fits") !=
        std::string::npos);
  CHECK(refusal(job, allocation_of({4, 4})).empty());
  CHECK(refusal(job, allocation_of({1, 1, 1})).find("room for 0 in whole tensor groups of "
      "2") != std::string::npos);
  CHECK(refusal(job, allocation_of({1, 1, 1})).find("one replica alone has 4 ranks") != std::string::npos);
}

TEST_CASE("when to stop", "[slurm]") {
  const std::vector<double> saves = {10, 20};
  EndOfTime end{.deadline_unix_s = 10000, .saves_s = saves, .step_s = 5};
  CHECK(stop_unix_s(end, 0) == 10000 - 5 - 30 - 30);
  CHECK(stop_unix_s(end, 9980) == 9990);  // too late for that: half of what is left
}

TEST_CASE("the last acts", "[slurm]") {
  SlurmTies ties{.job_id = "12", .requeue = true};
  CHECK(last_acts(ties, 75, true).requeue_job == "12");
  CHECK_FALSE(last_acts(ties, 75, true).if_preempted);
  CHECK(last_acts(ties, 75, false).if_preempted);  // or a person stopped it
  CHECK(last_acts(ties, 0, true).requeue_job.empty());
  ties.requeue = false;
  CHECK(last_acts(ties, 75, true).requeue_job.empty());
  ties.chain = "trainctl.x";
  CHECK(last_acts(ties, 75, true).cancel_chain.empty());
  CHECK(last_acts(ties, 0, false).cancel_chain == "trainctl.x");
  CHECK(last_acts(ties, 10, false).cancel_chain == "trainctl.x");
}

TEST_CASE("--no-kill in a script", "[slurm]") {
  CHECK(has_no_kill("#!/bin/bash\n#SBATCH -N2 --no-kill\nrun\n"));
  CHECK(has_no_kill("#!/bin/bash\n#SBATCH -k\n"));
  CHECK_FALSE(has_no_kill("#!/bin/bash\n#SBATCH -N2\n# --no-kill\nsrun --no-kill x\n"));
}

TEST_CASE("what a submission asks for", "[slurm]") {
  JobSpec job = job_of(2, 2, 2);
  CHECK(slurm_request(job, "r", 1, {}).nodes == 1);
  job.launcher.slurm.cpus_per_node = 3;  // room for one tensor group
  CHECK(slurm_request(job, "r", 1, {}).nodes == 4);
  job.launcher.slurm.gpus_per_node = 4;
  job.launcher.slurm.spares = 1;
  const SlurmRequest request = slurm_request(job, "r", 3, {"bad1"});
  CHECK(request.nodes == 2);
  CHECK(request.spares == 1);
  CHECK(request.chain == 3);
  CHECK(request.job_name == "trainctl.r");
  CHECK(request.exclude == std::vector<std::string>{"bad1"});
  CHECK(request.signal_s == 300);
  job.launcher.slurm.gpus_per_node = 1;
  CHECK_THROWS_AS(slurm_request(job, "r", 1, {}), Error);
  job.launcher.slurm.nodes = 8;
  CHECK(slurm_request(job, "r", 1, {}).nodes == 8);
  job.device = DeviceChoice::cuda;
  job.launcher.slurm.gpus_per_node = 0;
  CHECK_THROWS_AS(slurm_request(job, "r", 1, {}), Error);
}

TEST_CASE("who gives an abandoned job back", "[slurm]") {
  const SlurmJob job{.id = "12", .state = SlurmState::running, .nodes = {"n0", "n1", "n2"}};
  using States = std::vector<std::pair<std::string, std::string>>;
  const States lost = {{"n0", "allocated*"}, {"n1", "allocated"}, {"n2", "allocated"}};
  CHECK(orphan_act("n1", job, "n0", lost) == OrphanAct::requeue);
  CHECK(orphan_act("n2", job, "n0", lost) == OrphanAct::wait);
  CHECK(orphan_act("n2", job, "n0", {{"n0", "down*"}, {"n1", "allocated*"}, {"n2",
      "allocated"}}) == OrphanAct::requeue);
  // The supervisor's node answers Slurm: it is this node that is cut off.
  CHECK(orphan_act("n1", job, "n0", {{"n0", "allocated"}, {"n1", "allocated"}}) == OrphanAct::wait);
  SlurmJob without = job;
  without.nodes = {"n2"};  // n0 and n1 were taken out of the job
  CHECK(orphan_act("n2", without, "n0", {{"n0", "down"}, {"n1", "idle"}, {"n2",
      "allocated"}}) == OrphanAct::requeue);
  SlurmJob requeued = job;
  requeued.state = SlurmState::pending;
  CHECK(orphan_act("n1", requeued, "n0", lost) == OrphanAct::leave);
  CHECK(orphan_act("n1", std::nullopt, "n0", lost) == OrphanAct::leave);
}
