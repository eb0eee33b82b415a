// Goal: a launch inside a Slurm job trains on the job's nodes, survives the loss of one, and has the bits of a
//       run on one machine.
// Method: sbatch of scripts that end in `exec trainctl launch`; a node crashes while it trains, once with a node
//         to spare and once without; an agent alone dies; the last checkpoints are compared by their hashes.
#include <catch2/catch.hpp>

#include "test/slurm/slurm_run.h"

using namespace trainctl::test;

TEST_CASE("a job loses a node and finishes with the same bits", "[slurm][in_allocation]") {
  FakeSlurm slurm({.nodes = 5});
  SECTION("with a spare, and an agent that dies later") {
    SlurmRun run(slurm, "spare");
    const std::string job = run.submit({"--nodes=5 --exclusive --no-kill"});
    REQUIRE(run.reaches_step(12));
    slurm.nodes().crash(1);
    REQUIRE(eventually(30, [&] { return run.events("restart") == 1; }));
    // The agent of a node that lives is started again.
    CHECK(slurm.nodes().kill(2, "trainctl node", 9) > 0);
    REQUIRE(eventually(30, [&] { return run.events("restart") == 2; }));
    CHECK(eventually(30, [&] { return run.file("logs/node-node2.log").find("agent of node2", 40) < 1 << 20; }));
    REQUIRE(run.job_ends(job));
    INFO(run.output(job));
    CHECK(run.file("attempt.json").find("\"node1\"") == std::string::npos);
    CHECK(run.differs_from_undisturbed() == "");
    CHECK(run.left() == "");
  }
  SECTION("without a spare") {
    SlurmRun run(slurm, "narrower");
    const std::string job = run.submit({"--nodes=4 --exclusive --no-kill"});
    REQUIRE(run.reaches_step(12));
    slurm.nodes().crash(2);
    REQUIRE(run.job_ends(job));
    INFO(run.output(job));
    CHECK(run.output(job).find("data-parallel width 2 → 1") != std::string::npos);
    CHECK(run.differs_from_undisturbed() == "");
    CHECK(run.left() == "");
  }
}
