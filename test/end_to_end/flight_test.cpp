// Goal: the rings of the ranks name the rank that is missing and the exchange in which it is: of a rank of
// a pipeline that is stopped, while it is and after the attempt has failed, and of one that was killed. The
// run ends with the bits of an undisturbed one, and leaves nothing in the memory of the node.
// Method: the real program; a rank stops itself (TRAINCTL_STOP_AT), another gets kill -9; merged.json of
// each failure and `diagnose --merge` are read. The runs go on until they are stopped, and are compared with
// one of as many steps.
#include <fmt/format.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/base/json.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/environment.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Matchers::Contains;
using trainctl::Json;

namespace {

const std::vector<std::string> kFlightFields = {"-s", "schedule.total_steps=100000", "-s",
                                                "fault_tolerance.max_restarts=3"};

std::vector<std::string> flight_words(const std::string& name, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"launch", "job.json", "-s", "name=" + name};
  words.insert(words.end(), kFlightFields.begin(), kFlightFields.end());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct FlightBench {
  TemporaryFolder dir;

  FlightBench() { write_file(dir / "job.json", tiny_spec("tiny")); }
  std::unique_ptr<Child> start(const std::string& name, const std::vector<std::string>& more,
                               const std::string& stop_at) const {
    std::vector<std::string> words = flight_words(name, more);
    words.insert(words.begin(), trainctl_path());
    return std::make_unique<Child>(words, dir.path(),
                                   std::vector<std::string>{"TRAINCTL_STOP_AT=" + stop_at});
  }
  Json diagnosis(const std::string& name) const {
    const Outcome o = run_trainctl(dir.path(), {"--json", "diagnose", name, "--merge"});
    INFO(o.out << o.err);
    REQUIRE(o.status == 0);
    return Json::parse(o.out);
  }
  /// Stops it and returns what it said.
  std::string stop_and_check(Child& child, const std::string& run) const {
    child.signal(SIGTERM);
    const Outcome o = child.wait(180);
    INFO(o.err);
    REQUIRE(o.status == 75);
    CHECK(eventually(20, [&] { return trainctl::processes_marked(trainctl::kRunVariable, run).empty(); }));
    const std::string memory = Json::parse(read_file(run + "/attempt.json"))["shared_memory_folder"];
    CHECK(memory.starts_with("/dev/shm/trainctl."));
    CHECK_FALSE(std::filesystem::exists(memory));
    const std::vector<double> losses = losses_of(run);
    const Outcome same =
        run_trainctl(dir.path(), flight_words("whole", {"--max-steps", std::to_string(losses.size())}), 600);
    INFO(same.err);
    REQUIRE(same.status == 0);
    const std::string whole = run_of(dir.path(), "whole");
    CHECK(losses == losses_of(whole));
    CHECK(run_trainctl(dir.path(), {"inspect-ckpt", run, "--diff", whole}).status == 0);
    return o.err;
  }
};

}  // namespace

TEST_CASE("rings name a rank of a pipeline that stopped, and one that was killed", "[hang]") {
  const FlightBench bench;
  // Longer than a busy machine stops a rank that is well.
  auto child = bench.start("hurt", {"-s", "fault_tolerance.collective_timeout_seconds=15"},
                           "2:receiving_activation:8");
  const std::string root = bench.dir.path();
  const auto run = [&] { return run_of(root, "hurt"); };
  REQUIRE(eventually(120, [&] {
    return !child->running() || (!run().empty() && events_of(run(), "ranks_up").size() == 2 &&
                                 line_count(run() + "/metrics.jsonl") >= 12);
  }));
  REQUIRE(child->running());
  const std::vector<pid_t> pids = rank_pids(run(), 4);
  REQUIRE(pids.size() == 4);
  REQUIRE(::kill(pids[1], SIGKILL) == 0);
  REQUIRE(eventually(120, [&] { return !child->running() || events_of(run(), "recovered").size() == 2; }));
  const std::string said = bench.stop_and_check(*child, run());
  INFO(said);

  const Json stopped = Json::parse(read_file(run() + "/failures/1/merged.json"));
  INFO(stopped.dump(1));
  CHECK(stopped["missing"][0]["rank"] == 2);
  CHECK(stopped["missing"][0]["why"] == "stopped");
  CHECK(stopped["missing"][0]["waiting"] >= 1);
  CHECK_THAT(stopped["missing"][0]["last"].get<std::string>(), Contains("step 8: receiving the activation"));
  CHECK_FALSE(stopped["missing"][0]["operation"].get<std::string>().empty());
  CHECK_THAT(said, Contains("rings: rank 2 (pid "));
  const Json killed = Json::parse(read_file(run() + "/failures/2/merged.json"));
  INFO(killed.dump(1));
  CHECK(killed["missing"][0]["rank"] == 1);
  CHECK(killed["missing"][0]["pid"] == pids[1]);
  CHECK(killed["missing"][0]["why"] == "ended");

  const Json merged = bench.diagnosis("hurt")["merged"];  // of the newest failure
  CHECK(merged["missing"][0]["rank"] == 1);
  CHECK(merged["rings"] == 4);
  CHECK(merged["from"] == run() + "/failures/2");
  CHECK(std::filesystem::file_size(merged["trace"].get<std::string>()) > 100);
}

TEST_CASE("rings name a rank that is stopped while the others wait for it", "[hang]") {
  const FlightBench bench;
  auto child = bench.start("held", {}, "3:forward:5");
  const std::string root = bench.dir.path();
  const auto run = [&] { return run_of(root, "held"); };
  REQUIRE(eventually(120, [&] {
    if (!child->running()) return true;
    const std::vector<pid_t> pids = run().empty() ? std::vector<pid_t>() : rank_pids(run(), 4);
    return pids.size() == 4 && rank_stopped(pids[3]);
  }));
  REQUIRE(child->running());
  Json merged;
  CHECK(eventually(60, [&] {
    merged = bench.diagnosis("held")["merged"];
    return !merged["missing"].empty() && merged["missing"][0]["waiting"] == 3;
  }));
  INFO(merged.dump(1));
  CHECK(merged["missing"][0]["rank"] == 3);
  CHECK(merged["missing"][0]["why"] == "stopped");
  CHECK_THAT(merged["missing"][0]["last"].get<std::string>(), Contains("step 5: forward of micro-batch 0"));
  CHECK(merged["epoch"] == 1);
  REQUIRE(::kill(rank_pids(run(), 4)[3], SIGCONT) == 0);
  bench.stop_and_check(*child, run());
  CHECK(events_of(run(), "failure").empty());
  CHECK_FALSE(std::filesystem::exists(run() + "/failures/1"));
}
