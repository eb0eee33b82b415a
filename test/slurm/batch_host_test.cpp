// Goal: a job under --no-kill that loses its first node, with the script and the supervisor, comes back by
// itself and
//       ends with the same bits; an agent that is merely cut off from a living supervisor does not requeue
//       its job.
// Method: the first node loses power in silence; Slurm, asked by the agents, gives it up after its
// SlurmdTimeout.
#include <catch2/catch.hpp>

#include "test/slurm/slurm_run.h"

using namespace trainctl::test;

TEST_CASE("the batch host is lost", "[slurm][batch_host]") {
  FakeSlurm slurm({.nodes = 4, .slurmd_timeout_s = 15});
  SlurmRun run(
      slurm, "orphan",
      {"fault_tolerance.grace_seconds=3", "fault_tolerance.node_silence_seconds=2", SlurmRun::held({14})});
  const std::string job = run.submit({"--nodes=3 --exclusive --no-kill --requeue --open-mode=append"});
  REQUIRE(run.is_held(14));
  slurm.nodes().poweroff(0);
  const bool finished = run.finishes(120);
  INFO(run.output(job) << run.file("logs/node-node1.log"));
  REQUIRE(finished);
  CHECK(run.file("logs/node-node1.log").find("job " + job + " goes back to the queue") != std::string::npos);
  CHECK(run.file("logs/node-node2.log").find("goes back to the queue") == std::string::npos);
  CHECK(run.output(job).find("started again 1×") != std::string::npos);
  CHECK(run.differs_from_undisturbed() == "");
  CHECK(run.left() == "");
}

TEST_CASE("the batch host is lost, and an agent takes the supervisor's place", "[slurm][batch_host][more]") {
  FakeSlurm slurm({.nodes = 4, .slurmd_timeout_s = 15});
  SlurmRun run(slurm, "taken",
               {"fault_tolerance.grace_seconds=12", "fault_tolerance.node_silence_seconds=1",
                "fault_tolerance.supervisor_takeover=true", SlurmRun::held({14})});
  const std::string job = run.submit({"--nodes=3 --exclusive --no-kill --requeue"});
  REQUIRE(run.is_held(14));
  slurm.nodes().poweroff(0);
  const bool finished = run.finishes(120);
  INFO(run.output(job) << run.file("events.jsonl") << run.file("logs/node-node1.log")
                       << run.file("logs/supervisor-node1.log") << run.file("logs/supervisor-node2.log"));
  REQUIRE(finished);
  CHECK(run.events("takeover") == 1);
  CHECK(run.events("end") == 1);
  // No script is left to end the job: the supervisor does, when Slurm knows.
  REQUIRE(run.job_ends(job, "CANCELLED"));
  // node1 and node2 start a supervisor at the same time (takeover_after_s); one of them gets the run.
  const std::string logs = run.file("logs/supervisor-node1.log") + run.file("logs/supervisor-node2.log");
  CHECK(logs.find("job " + job + " is cancelled, its run has ended") != std::string::npos);
  CHECK(run.differs_from_undisturbed() == "");
  CHECK(run.left() == "");
}

TEST_CASE("a node that is cut off from the supervisor alone", "[slurm][batch_host][more]") {
  FakeSlurm slurm({.nodes = 3, .slurmd_timeout_s = 15});
  SlurmRun run(
      slurm, "cut",
      {R"(schedule={"total_steps": 400, "warmup_steps": 4, "lr": 3e-3, "min_lr": 3e-4, "type": "cosine"})",
       "fault_tolerance.grace_seconds=1", "fault_tolerance.node_silence_seconds=0.5", SlurmRun::held({14})});
  const std::string job = run.submit({"--nodes=3 --exclusive --no-kill --requeue"});
  REQUIRE(run.is_held(14));
  slurm.nodes().cut(0, 1);
  REQUIRE(eventually(30, [&] {
    return run.file("logs/node-node1.log").find("waiting for what Slurm says about "
        "node0") != std::string::npos;
  }));
  run.release();
  REQUIRE(run.job_ends(job));
  CHECK(run.output(job).find("finished step 400") != std::string::npos);
  CHECK(run.file("logs/node-node1.log").find("goes back to the queue") == std::string::npos);
  slurm.nodes().mend(0, 1);
  CHECK(run.left() == "");
}
