// Goal: a launch inside a Slurm job trains on the job's nodes, survives the loss of one, and has the bits of a
//       run on one machine.
// Method: sbatch of scripts that end in `exec trainctl launch`; a node crashes while it trains, once with a node
//         to spare and once without; an agent alone dies; the last checkpoints are compared by their hashes.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <map>

#include "runtime/base/json.h"
#include "test/slurm/slurm_run.h"

using trainctl::Json;
using namespace trainctl::test;

namespace {

/// A node that runs ranks, but the first, which has the script, and `but`: which ones do is decided by who comes first.
int member(const SlurmRun& run, int but = -1) {
  for (int node = 1; node < 5; ++node)
    if (node != but && run.file("attempt.json").find(fmt::format("\"node{}\"", node)) != std::string::npos) return node;
  FAIL("no node of the attempt but the first");
  return -1;
}

}  // namespace

TEST_CASE("a job loses a node and finishes with the same bits", "[slurm][in_allocation]") {
  FakeSlurm slurm({.nodes = 5});
  SECTION("with a spare, and an agent that dies later") {
    SlurmRun run(slurm, "spare", {"fault_tolerance.elastic=false", SlurmRun::held({14, 30})});
    const std::string job = run.submit({"--nodes=5 --exclusive --no-kill"});
    REQUIRE(run.is_held(14));
    const int lost = member(run);
    slurm.nodes().crash(lost);
    REQUIRE(eventually(30, [&] { return run.events("restart") == 1; }));
    REQUIRE(run.is_held(30));
    // The agent of a node that lives is started again: without it the mesh has too few nodes.
    const int other = member(run, lost);
    CHECK(slurm.nodes().kill(other, "trainctl node", 9) > 0);
    REQUIRE(eventually(30, [&] { return run.events("restart") == 2; }));
    const std::string log = fmt::format("logs/node-node{}.log", other), word = fmt::format("agent of node{}", other);
    CHECK(eventually(30, [&] { return run.file(log).find(word, 40) < 1 << 20; }));
    REQUIRE(run.job_ends(job));
    INFO(run.output(job));
    CHECK(run.file("attempt.json").find(fmt::format("\"node{}\"", lost)) == std::string::npos);
    CHECK(run.differs_from_undisturbed() == "");
    CHECK(run.left() == "");
  }
  SECTION("a node that Slurm takes away") {
    SlurmRun run(slurm, "taken", {SlurmRun::held({14})});
    const std::string job = run.submit({"--nodes=5 --exclusive --no-kill"});
    REQUIRE(run.is_held(14));
    slurm.run({"scontrol", "update", "nodename=node2", "state=down", "reason=test"});
    CHECK(eventually(60, [&] { return run.output(job).find("! node2: ") != std::string::npos; }));
    run.release();  // the node may have had no ranks
    REQUIRE(run.job_ends(job));
    INFO(run.output(job));
    CHECK(run.differs_from_undisturbed() == "");
    CHECK(run.left(2) == "");
  }
  SECTION("without a spare") {
    SlurmRun run(slurm, "narrower", {SlurmRun::held({14})});
    const std::string job = run.submit({"--nodes=4 --exclusive --no-kill"});
    REQUIRE(run.is_held(14));
    slurm.nodes().crash(2);
    REQUIRE(run.job_ends(job));
    INFO(run.output(job));
    CHECK(run.output(job).find("data-parallel width 2 → 1") != std::string::npos);
    CHECK(run.differs_from_undisturbed() == "");
    CHECK(run.left() == "");
  }
}

TEST_CASE("salloc, an array's task, and nodes that differ", "[slurm][in_allocation][more]") {
  FakeSlurm slurm({.nodes = 3});
  SECTION("salloc: the supervisor is on the login node, no rank is") {
    SlurmRun run(slurm, "salloc");
    const Outcome outcome =
        run.exec({"salloc", "-N2", "--exclusive", "--no-kill", SlurmRun::trainctl(), "launch",
            "job.json"}).wait(60);
    INFO(outcome.err);
    CHECK(outcome.status == 0);
    CHECK(run.file("attempt.json").find("\"node0\"") != std::string::npos);
    CHECK(run.file("attempt.json").find("\"node3\"") == std::string::npos);
    CHECK(run.file("logs/rank-0.log").find("SLURM") == std::string::npos);
    CHECK(run.differs_from_undisturbed() == "");
    CHECK(run.left() == "");
  }
  SECTION("an array's task") {
    SlurmRun run(slurm, "array");
    const std::string job = run.submit({"--nodes=2 --exclusive --no-kill", "--array=7"});
    REQUIRE(eventually(60,
        [&] { return run.file("status.json").find("\"finished\"") != std::string::npos; }));
    CHECK(run.job_ends(job + "_7"));
    CHECK(run.differs_from_undisturbed() == "");
    CHECK(run.left() == "");
  }
  SECTION("too few CPUs: one sentence that says what would fit") {
    SlurmRun run(slurm, "small", {"fault_tolerance.elastic=false"});
    const Outcome outcome = run.exec({"salloc", "-N2", "-n2", "-c2", SlurmRun::trainctl(), "launch",
        "job.json"}).wait(60);
    CHECK(outcome.status == 4);
    CHECK(outcome.err.find("the mesh needs 8 ranks and Slurm job 1 (2 nodes with 2 CPUs each) has room "
        "for 4 in whole "
                           "tensor groups of 2; ask Slurm for more nodes or CPUs (--exclusive), raise "
                               "launcher.slots to "
                           "share CPUs, or take -s parallelism.data=1 -s parallelism.world_size=4, which "
                               "fits") !=
          std::string::npos);
    INFO(outcome.err);
    CHECK(run.file("job.json") == "");
  }
  SECTION("no srun on PATH") {
    SlurmRun run(slurm, "pathless");
    const Outcome outcome = run.exec({"salloc", "-N2", "--exclusive", "env", "PATH=/nowhere", SlurmRun::trainctl(), "launch",
                                      "job.json", "-s", "launcher.mpirun=/usr/bin/mpirun"})
                                .wait(60);
    CHECK(outcome.status == 5);
    CHECK(outcome.err.find("srun, which starts an agent on each, is not on PATH") != std::string::npos);
    CHECK(run.file("job.json") == "");
  }
}

TEST_CASE("nodes with different numbers of CPUs carry the mesh in whole tensor groups",
          "[slurm][in_allocation]") {
  FakeSlurm slurm({.nodes = 3, .cpus_of = "4 3 2"});
  SlurmRun run(slurm, "uneven");
  const std::string job = run.submit({"--nodes=3 --exclusive --no-kill"});
  REQUIRE(run.job_ends(job));
  INFO(run.output(job));
  const auto attempt = Json::parse(run.file("attempt.json"));
  std::map<std::string, int> ranks;
  for (const auto& node : attempt["nodes"]) ranks[node["name"]] = node["count"];
  CHECK(ranks == std::map<std::string, int>{{"node0", 4}, {"node1", 2}, {"node2", 2}});
  CHECK(run.differs_from_undisturbed() == "");
  CHECK(run.left() == "");
}

TEST_CASE("salloc with GPUs gives a slot for each GPU of a node with one CPU", "[slurm][in_allocation]") {
  FakeSlurm slurm({.nodes = 2, .gpus = 1});
  SlurmRun run(slurm, "gpus",
               {"launcher.ranks_per_gpu=2", "fault_tolerance.elastic=false", "parallelism.world_size=4",
                "parallelism.data=1", "parallelism.lanes=1", "batch.global_sequences=1",
                "schedule.total_steps=1", "schedule.warmup_steps=0"});
  SECTION("with --gpus-per-node the GPUs of the nodes decide, not those of the login node") {
    const Child launched = run.exec({"salloc", "-N2", "--no-kill", "--gpus-per-node=1",
                                     SlurmRun::emulated_trainctl(), "launch", "job.json"});
    REQUIRE(eventually(60, [&] { return run.events("ranks_up") == 1; }));
    const auto attempt = Json::parse(run.file("attempt.json"));
    REQUIRE(attempt["nodes"].size() == 2);
    for (const auto& node : attempt["nodes"]) CHECK(node["count"] == 2);
  }
  SECTION("on CPUs the CPUs decide") {
    const Outcome outcome = run.exec({"salloc", "-N2", "--no-kill", "--gpus-per-node=1", SlurmRun::trainctl(),
                                      "launch", "job.json", "-s", "device=cpu"})
                                .wait(60);
    CHECK(outcome.status == 4);
    CHECK(outcome.err.find("(2 nodes with 1 CPU each) has room for 0 in whole tensor groups of 2") !=
          std::string::npos);
    INFO(outcome.err);
  }
}
