// Goal: a run stops in time for its Slurm job: at Slurm's warning, at its time limit, when it is preempted;
// it goes
//       on in the next job with the same bits, and nothing is left of it.
// Method: real jobs with a limit of a minute, a preempting job, signals by scancel; what trainctl printed,
// exit
//         statuses as Slurm has them, and the hashes of the last checkpoint.
#include <catch2/catch.hpp>

#include "test/slurm/slurm_run.h"

using namespace trainctl::test;

namespace {

constexpr const char* kNodes = "--nodes=2 --exclusive --no-kill --open-mode=append";

std::string exit_code(FakeSlurm& slurm, const std::string& job) {
  const std::string shown = slurm.run({"scontrol", "show", "job", job}).out;
  const size_t at = shown.find("ExitCode=");
  return at == std::string::npos ? "" : shown.substr(at + 9, shown.find_first_of(" \n", at) - at - 9);
}

}  // namespace

TEST_CASE("Slurm's warning and its time limit", "[slurm][stops]") {
  FakeSlurm slurm({.nodes = 2});
  SECTION("USR1: save, give the job back, go on, same bits") {
    SlurmRun run(slurm, "warned", {SlurmRun::held({14})});
    const std::string job = run.submit({kNodes, "--requeue"}, "--requeue");
    REQUIRE(run.is_held(14));
    slurm.run({"scancel", "--batch", "--signal=USR1", job});
    REQUIRE(run.is_asked_to_stop());
    run.release();
    REQUIRE(run.finishes());
    INFO(run.output(job));
    CHECK(run.output(job).find("Slurm job " + job + " goes back to the queue") != std::string::npos);
    CHECK(run.output(job).find("started again 1×") != std::string::npos);
    CHECK(run.events("failure") == 0);
    CHECK(run.differs_from_undisturbed() == "");
    CHECK(run.left() == "");
  }
  SECTION("TERM to everything of the job: save, 75") {
    SlurmRun run(slurm, "terminated", {SlurmRun::held({14})});
    const std::string job = run.submit({kNodes});
    REQUIRE(run.is_held(14));
    slurm.run({"scancel", "--full", "--signal=TERM", job});
    REQUIRE(run.is_asked_to_stop());
    run.release();
    REQUIRE(run.job_ends(job, "FAILED"));
    INFO(run.output(job));
    CHECK(exit_code(slurm, job) == "75:0");
    CHECK(run.events("failure") == 0);
    const std::string next = run.submit({kNodes});
    REQUIRE(run.job_ends(next));
    CHECK(run.differs_from_undisturbed() == "");
    CHECK(run.left() == "");
  }
}

TEST_CASE("the end of a job's time is known beforehand", "[slurm][stops]") {
  FakeSlurm slurm({.nodes = 2});
  // The minute ends before so many steps do.
  SlurmRun run(slurm, "limited",
               {"schedule.total_steps=100000000", "schedule.warmup_steps=4", "checkpoint.every_steps=500"});
  const std::string job = run.submit({kNodes, "--time=1"});
  REQUIRE(run.job_ends(job, "FAILED", 100));
  INFO(run.output(job));
  CHECK(exit_code(slurm, job) == "75:0");
  CHECK(run.output(job).find("the time of Slurm job " + job + " is over in ") != std::string::npos);
  CHECK(run.output(job).find("stopped at the end of the job's time, saved step") != std::string::npos);
  CHECK(run.left() == "");
}

TEST_CASE("a preempted run is started again with the same bits", "[slurm][stops]") {
  FakeSlurm slurm({.nodes = 2});
  // With a --signal the warning is USR1, else SIGTERM: then Slurm is asked whose wish that is.
  const std::string warning = GENERATE(as<std::string>(), "--signal=B:USR1@60", "--signal=0");
  CAPTURE(warning);
  SlurmRun run(slurm, "preempted", {SlurmRun::held({7})});
  const std::string job = run.submit({kNodes, "--requeue", warning == "--signal=0" ? "--comment=none"
      : warning}, "--requeue");
  REQUIRE(run.is_held(7));
  const Outcome urgent = slurm.run({"sbatch", "--parsable", "-purgent", "-N2", "--exclusive",
      "--output=/dev/null", "--wrap", "sleep 1"});
  REQUIRE(urgent.status == 0);
  const bool asked = run.is_asked_to_stop();
  run.release();
  CHECK(asked);
  const bool finished = run.finishes(120);
  INFO(run.output(job));
  REQUIRE(finished);
  CHECK(run.output(job).find("stopped on request, saved step") != std::string::npos);
  CHECK(run.output(job).find("started again 1×") != std::string::npos);
  CHECK(run.differs_from_undisturbed() == "");
  CHECK(run.left() == "");
}
