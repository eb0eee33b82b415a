// Goal: wherever a rank stops, the run ends as a hang (exit 9) whose root cause names that rank first and
// says what it did, never one of the ranks that waited for it.
// Method: the real program under mpirun; one rank stops itself (SIGSTOP) the first time that it does what
// TRAINCTL_STOP_AT names, in each phase of a run and in each kind of wait. Odd cases have a heartbeat so
// slow that the victims' own timeouts come first. Several runs wait at a time for limits that a rank which
// is well keeps also on a busy machine. The table of verdicts is printed.
#include <fmt/format.h>
#include <signal.h>

#include <catch2/catch.hpp>

#include "runtime/base/json.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl::test;
using trainctl::Json;

namespace {

struct Stop {
  const char* at;      ///< TRAINCTL_STOP_AT
  int rank;
  const char* doing;   ///< in the verdict
};

const Stop kStops[] = {
    {"1:starting::MPI_Init", 1, "starting, waiting in MPI_Init"},
    {"1:joining", 1, "joining the other ranks"},
    {"2:opening_data", 2, "opening the data"},
    {"3:building", 3, "building the model"},
    {"1:loading", 1, "loading"},
    {"0:reading_data:2", 0, "step 2: waiting for data"},
    {"1:forward:3", 1, "step 3: forward of micro-batch 0"},
    {"2:receiving_activation:2", 2, "step 2: receiving the activation of micro-batch 0"},
    {"0:forward:2:tp group", 0, "(tp group of stage 0, dp 0: "},
    {"2:reducing_gradients:2", 2, "step 2: reducing gradients"},
    {"3:exchanging_scalars:2", 3, "step 2: exchanging the loss and the gradient norm"},
    {"1:optimizer:3", 1, "step 3: optimizer"},
    {"3:evaluating:2", 3, "step 2: evaluation"},
    {"2:saving:4", 2, "step 4: saving"},
    {"0:saving:6:supervisor", 0, "step 6: saving"},
    {"1:leaving", 1, "leaving"},
};

/// A rank that is well is stopped by a busy machine for less than that.
constexpr double kLimitS = 15;
/// As many runs at a time: each of them mostly waits.
constexpr size_t kAtATime = 4;

std::unique_ptr<Child> start_to_stop(const std::string& folder, const Stop& stop, size_t number) {
  const bool tensor = std::string(stop.at).find("tp group") != std::string::npos;
  const bool victims_first = number % 2 == 0;
  const std::string tokens = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/llama-tiny/tokens.bin";
  std::vector<std::string> words = {trainctl_path(), "launch", "job.json"};
  for (const std::string& field :
       {fmt::format("name=stop{}", number),
        std::string(tensor ? "parallelism.tensor=2" : "parallelism.tensor=1"),
        std::string(tensor ? "parallelism.data=1" : "parallelism.data=2"),
        std::string("schedule.total_steps=6"), std::string("checkpoint.every_steps=4"),
        std::string("eval.every_steps=2"), std::string("eval.max_tokens=256"),
        R"(data.val=[{"path": ")" + tokens + R"(", "format": "raw", "dtype": "uint16"}])",
        fmt::format("fault_tolerance.collective_timeout_seconds={}", kLimitS),
        // A rank is silent after five of them.
        fmt::format("fault_tolerance.heartbeat_seconds={}", victims_first ? kLimitS / 3 : kLimitS / 6)})
    words.insert(words.end(), {"-s", field});
  return std::make_unique<Child>(words, folder, std::vector{std::string("TRAINCTL_STOP_AT=") + stop.at});
}

/// The line of the failure block that begins so, without that.
std::string line_of(const std::string& text, const std::string& beginning) {
  const size_t at = text.find(beginning);
  if (at == std::string::npos) return "";
  const size_t from = at + beginning.size();
  return text.substr(from, std::min(text.find('\n', from), text.size()) - from);
}

}  // namespace

TEST_CASE("whichever rank stops, and wherever, is named first", "[hang]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("tiny"));
  std::string table;
  std::vector<std::unique_ptr<Child>> runs;
  for (size_t number = 0; number < std::size(kStops); ++number) {
    const Stop& stop = kStops[number];
    CAPTURE(stop.at);
    while (runs.size() < std::min(number + kAtATime, std::size(kStops)))
      runs.push_back(start_to_stop(dir.path(), kStops[runs.size()], runs.size()));
    const Outcome o = runs[number]->wait(120);
    INFO(o.err);
    CHECK(o.status == 9);
    const std::string cause = line_of(o.err, "root cause  ");
    table += fmt::format("{:28} {}\n", stop.at, cause.substr(0, 120));
    CHECK(cause.find(fmt::format("rank {} (pid ", stop.rank)) == 0);
    CHECK(cause.find("is stopped (by SIGSTOP or a debugger)") != std::string::npos);
    const size_t doing = cause.find(std::string(" while: "));
    CHECK(cause.find(stop.doing, doing) != std::string::npos);
    // Victims come after the first "; ".
    CHECK(cause.find(stop.doing, doing) < cause.find("; "));
    // The rings alone say the same.
    const Json merged =
        Json::parse(read_file(run_of(dir.path(), fmt::format("stop{}", number)) + "/failures/1/merged.json"));
    INFO(merged.dump(1));
    CHECK(merged["missing"][0]["rank"] == stop.rank);
    CHECK(merged["missing"][0]["why"] == "stopped");
  }
  fmt::print("stopped at                   root cause\n{}", table);
}

TEST_CASE("a rank that loads much longer than peers wait for each other in a step is no hang", "[hang]") {
  constexpr double kCollectiveTimeoutS = 10;
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("late"));
  Child child({trainctl_path(), "launch", "job.json", "-s",
               fmt::format("fault_tolerance.collective_timeout_seconds={}", kCollectiveTimeoutS)},
              dir.path(), {"TRAINCTL_STOP_AT=1:loading"});
  const auto status = [&] { return read_file(run_of(dir.path(), "late") + "/status.json"); };
  REQUIRE(eventually(60, [&] { return !run_of(dir.path(), "late").empty() || !child.running(); }));
  const std::vector<pid_t> ranks = await_stopped_rank(child, run_of(dir.path(), "late"), 4, 1);
  REQUIRE(eventually(120, [&] {
    return !child.running() || status().find("ready for the first step, waiting") != std::string::npos;
  }));
  // The wait is what is tested: longer than peers wait within a step.
  CHECK_FALSE(happens_within(1.2 * kCollectiveTimeoutS, [&] { return !child.running(); }));
  CHECK(eventually(60, [&] { return status().find("\"stopped\":true") != std::string::npos; }));
  REQUIRE(::kill(ranks[1], SIGCONT) == 0);
  const Outcome o = child.wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
}
