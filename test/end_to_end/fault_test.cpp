// Goal: a run survives what happens to it. Invariant after every fault: nothing is left running, the first cause is named last, and the
// resumed run ends with the bits of the undisturbed one.
// Method: the real program under mpirun; kill -9 of a random rank after a random step, of mpirun, of the supervisor; SIGTERM. Seeds are
// fixed and printed. Disks that are full or refuse calls: saving_test.cpp.
#include <signal.h>

#include <catch2/catch.hpp>
#include <random>

#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/thread_run.h"

using namespace trainctl::test;

namespace {

struct Bench {
  TempDir dir;
  std::string whole;   // the undisturbed run

  Bench() {
    write_file(dir.path() + "/job.json", tiny_spec("tiny"));
    const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "-s", "name=whole"});
    INFO(o.err);
    REQUIRE(o.status == 0);
    whole = run_of(dir.path(), "whole");
  }

  /// Starts a run and waits until it has completed `steps` steps.
  std::unique_ptr<Child> start(const std::string& name, int steps, std::vector<std::string> more = {}) {
    std::vector<std::string> words = {trainctl_path(), "launch", "job.json", "-s", "name=" + name};
    words.insert(words.end(), more.begin(), more.end());
    auto child = std::make_unique<Child>(words, dir.path());
    REQUIRE(eventually(60, [&] {
      const std::string run = run_of(dir.path(), name);
      return !child->running() || (!run.empty() && line_count(run + "/metrics.jsonl") >= steps);
    }));
    return child;
  }

  void require_nothing_left(const std::string& run) {
    for (const pid_t pid : rank_pids(run, 8)) CHECK(eventually(5, [&] { return !rank_alive(pid); }));
  }

  void resume_and_compare(const std::string& run, const std::vector<std::string>& mesh) {
    std::vector<std::string> arguments = {"resume", run};
    for (const std::string& m : mesh) arguments.insert(arguments.end(), {"-s", m});
    const Outcome o = run_trainctl(dir.path(), arguments);
    INFO(o.err);
    REQUIRE(o.status == 0);
    CHECK(losses_of(run) == losses_of(whole));
    const Outcome diff = run_trainctl(dir.path(), {"inspect-ckpt", run, "--diff", whole});
    INFO(diff.out << diff.err);
    CHECK(diff.status == 0);
  }
};

const std::vector<std::vector<std::string>> kMeshes = {
    {"parallelism.data=1", "parallelism.pipeline=4"},
    {"parallelism.data=4", "parallelism.pipeline=1"},
    {"parallelism.data=1", "parallelism.pipeline=1"},
    {"parallelism.data=4", "parallelism.pipeline=2", "parallelism.zero_stage=0"},
    {"parallelism.data=2", "parallelism.pipeline=2", "parallelism.pipeline_schedule=interleaved", "parallelism.virtual_stages=2"},
    {"parallelism.data=2", "parallelism.pipeline=4", "parallelism.pipeline_schedule=zb-h1"}};

}  // namespace

TEST_CASE("kill -9 of a random rank at a random step, resumed on another mesh", "[fault]") {
  Bench bench;
  int hits = 0;
  for (unsigned seed = 1; seed <= 8; ++seed) {
    std::mt19937 random(seed);
    const int steps = 1 + int(random() % 15), victim = int(random() % 4);
    CAPTURE(seed, steps, victim);
    const std::string name = "kill" + std::to_string(seed);
    auto child = bench.start(name, steps);
    const std::string run = run_of(bench.dir.path(), name);
    const std::vector<pid_t> pids = rank_pids(run, 4);
    REQUIRE(pids.size() == 4);
    const bool hit = rank_alive(pids[size_t(victim)]) && ::kill(pids[size_t(victim)], SIGKILL) == 0;
    const Outcome o = child->wait(20);
    INFO(o.err);
    if (hit && o.status != 0) {
      ++hits;
      CHECK(o.status == 10);
      CHECK_THAT(o.err, Catch::Contains("rank " + std::to_string(victim)) && Catch::Contains("killed by signal 9") &&
                            Catch::Contains("trainctl resume"));
      bench.require_nothing_left(run);
      bench.resume_and_compare(run, kMeshes[random() % kMeshes.size()]);
    }
  }
  // A fast run may end before its kill; the test must not pass without one that struck.
  WARN(hits << " of 8 kills struck a running rank");
  CHECK(hits >= 1);
}

TEST_CASE("restarts by itself when it may", "[fault]") {
  Bench bench;
  auto child = bench.start("again", 6, {"-s", "fault_tolerance.max_restarts=2"});
  const std::string run = run_of(bench.dir.path(), "again");
  const pid_t victim = rank_pids(run, 4).at(1);
  REQUIRE(rank_alive(victim));
  REQUIRE(::kill(victim, SIGKILL) == 0);
  const Outcome o = child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK(losses_of(run) == losses_of(bench.whole));
  CHECK(run_trainctl(bench.dir.path(), {"inspect-ckpt", run, "--diff", bench.whole}).status == 0);
}

TEST_CASE("SIGTERM saves and stops with 75", "[fault]") {
  Bench bench;
  auto child = bench.start("term", 3, {"-s", "checkpoint.every_steps=0"});
  child->signal(SIGTERM);
  const Outcome o = child->wait(30);
  INFO(o.err);
  CHECK(o.status == 75);
  const std::string run = run_of(bench.dir.path(), "term");
  bench.require_nothing_left(run);
  bench.resume_and_compare(run, kMeshes[0]);
}

TEST_CASE("a stop asked for twice is still one that saves", "[fault]") {
  Bench bench;
  auto child = bench.start("twice", 3, {"-s", "checkpoint.every_steps=0"});
  for (const int number : {SIGTERM, SIGTERM, SIGHUP, SIGINT}) child->signal(number);
  const Outcome o = child->wait(30);
  INFO(o.err);
  CHECK(o.status == 75);
  bench.resume_and_compare(run_of(bench.dir.path(), "twice"), kMeshes[3]);
}

TEST_CASE("a closed output pipe does not end the run", "[fault]") {
  Bench bench;
  const std::string line = "'" + trainctl_path() + "' launch job.json -s name=pipe 2>&1 | head -n 2";
  Child({"bash", "-c", line}, bench.dir.path()).wait(60);
  const std::string run = run_of(bench.dir.path(), "pipe");
  REQUIRE(eventually(30, [&] { return line_count(run + "/metrics.jsonl") == 20; }));
  CHECK(eventually(10, [&] { return read_file(run + "/status.json").find("finished") != std::string::npos; }));
  CHECK(losses_of(run) == losses_of(bench.whole));
}

TEST_CASE("the supervisor's death ends the ranks", "[fault]") {
  Bench bench;
  auto child = bench.start("orphan", 2);
  const std::string run = run_of(bench.dir.path(), "orphan");
  child->signal(SIGKILL);
  child->wait(5);
  bench.require_nothing_left(run);
  bench.resume_and_compare(run, kMeshes[1]);
}
