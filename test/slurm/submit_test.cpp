// Goal: from a login node a run is submitted, looked at and stopped; a chain of jobs goes on where the one
// before
//       stopped, and ends with the run.
// Method: `launch --submit`, `status`, `stop` on the login node of the tests' Slurm; files of the run;
// hashes of the
//         last checkpoint.
#include <catch2/catch.hpp>
#include <iterator>
#include <sstream>

#include "test/slurm/slurm_run.h"

using namespace trainctl::test;

namespace {

const std::vector<std::string> kTwoNodes = {R"(launcher={"slurm": {"nodes": 2, "time": "10"}})"};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

TEST_CASE("submit, status, stop from the login node", "[slurm][submit]") {
  FakeSlurm slurm({.nodes = 2});
  SlurmRun run(slurm, "far", {kTwoNodes[0], SlurmRun::held({4})});
  const Outcome preview = run.run({"launch", "job.json", "--submit", "--dry-run"});
  INFO(preview.err);
  CHECK(preview.out.find("#SBATCH --nodes=2\n") != std::string::npos);
  CHECK(preview.out.find("#SBATCH --time=10\n") != std::string::npos);
  CHECK(preview.out.find(" resume " + run.path() + " --in-allocation\n") != std::string::npos);
  CHECK(run.file("job.json") == "");

  // Nodes that another job has: the run waits, says so, and a stop takes it out of the queue.
  const std::string other = first_line(
      slurm.run({"sbatch", "--parsable", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 30000"})
          .out);
  REQUIRE(eventually(30, [&] { return slurm.state(other) == "RUNNING"; }));
  const Outcome queued = run.run({"launch", "job.json", "--submit"});
  INFO(queued.err);
  REQUIRE(queued.status == 0);
  const std::string waits = first_line(queued.out);
  CHECK(run.run({"status", "far"}).out.find("Slurm job " + waits + " is PENDING") != std::string::npos);
  CHECK(run.run({"launch", "job.json", "--submit"}).err.find("waits for Slurm already") != std::string::npos);
  CHECK(run.run({"stop", "far"}).status == 0);
  CHECK(eventually(30, [&] { return slurm.state(waits) == "CANCELLED"; }));
  slurm.run({"scancel", other});

  const std::string job = first_line(run.run({"launch", "job.json", "--submit"}).out);
  REQUIRE(run.is_held(4));
  const Outcome status = run.run({"status", "far"});
  CHECK(status.out.find("Slurm job " + job + " is RUNNING") != std::string::npos);
  Child stop = run.exec({SlurmRun::trainctl(), "stop", "far"});
  REQUIRE(run.is_asked_to_stop());
  run.release();
  const Outcome stopped = stop.wait(180);
  INFO(stopped.err);
  CHECK(stopped.status == 0);
  CHECK(stopped.err.find("run far is stopped at step") != std::string::npos);
  // A person stopped it: it does not come back by itself.
  CHECK(run.job_ends(job, "FAILED"));
  const std::string again = first_line(run.run({"launch", "job.json", "--submit"}).out);
  REQUIRE(run.job_ends(again));
  CHECK(run.differs_from_undisturbed() == "");
  CHECK(run.left() == "");
}

TEST_CASE("a chain of jobs", "[slurm][submit][more]") {
  FakeSlurm slurm({.nodes = 2});
  SlurmRun run(slurm, "chain", {kTwoNodes[0], SlurmRun::held({14})});
  const Outcome outcome = run.run({"launch", "job.json", "--submit", "--chain", "3"});
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  std::istringstream words(first_line(outcome.out));
  std::vector<std::string> jobs{std::istream_iterator<std::string>(words), {}};
  REQUIRE(jobs.size() == 3);
  REQUIRE(run.is_held(14));
  slurm.run({"scancel", "--batch", "--signal=USR1", jobs[0]});
  REQUIRE(run.is_asked_to_stop());
  run.release();
  REQUIRE(run.job_ends(jobs[0], "FAILED"));
  REQUIRE(run.job_ends(jobs[1]));
  // It finished the run: the third has nothing to do.
  CHECK(run.job_ends(jobs[2], "CANCELLED"));
  CHECK(run.differs_from_undisturbed() == "");
  CHECK(run.left() == "");
}
