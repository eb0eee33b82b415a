// Goal: what processes write and how they end is reported once and in order; a request is started once; the
//       mark finds all of them for the kill.
// Method: shells that end, write or sleep.
#include "runtime/run/agent/epoch_processes.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "runtime/run/wire/environment.h"
#include "test/runtime/run/agent/node_peer.h"

using namespace trainctl;

namespace {

struct EpochStage {
  ~EpochStage() { processes.kill_now(400); }
  bool until(const std::function<bool()>& condition) {
    return test::eventually([&] { return processes.watch(hold_output), condition(); });
  }
  const std::string mark = fmt::format("epoch_processes_test.{}.{}", ::getpid(), fmt::ptr(this));
  const Environment environment = {{kAttemptVariable, mark}};
  bool hold_output = false;
  std::string happened;  ///< "output of 2: text" and "end of 2, request 0: 3", a line each
  EpochProcesses processes{
      mark, real_clock(),
      EpochProcesses::Handler{
          .output = [this](int rank,
                           std::string&& text) { happened += fmt::format("output of {}: {}", rank, text); },
          .ending = [this] { happened += "ending\n"; },
          .ended =
              [this](int rank, int64_t request, int status) {
                happened += fmt::format("end of {}, request {}: {}\n", rank, request, WEXITSTATUS(status));
              }}};
};

}  // namespace

TEST_CASE("a process's last output comes before its end", "[epoch_processes]") {
  EpochStage stage;
  stage.hold_output = true;  // so that it is read at the end alone
  stage.processes.start_rank(2, {"/bin/sh", "-c", "echo text; exit 3"}, stage.environment);
  REQUIRE(stage.until([&] { return stage.happened.find("end of") != std::string::npos; }));
  CHECK(stage.happened == "ending\noutput of 2: text\nend of 2, request 0: 3\n");
  stage.processes.watch(false);
  CHECK(stage.happened == "ending\noutput of 2: text\nend of 2, request 0: 3\n");
}

TEST_CASE("output stays in the pipe while it is held", "[epoch_processes]") {
  EpochStage stage;
  stage.hold_output = true;
  stage.processes.start_mpirun({"/bin/sh", "-c", "echo text; exec sleep 1000"}, stage.environment);
  std::vector<pollfd> fds;
  stage.processes.add_to(fds, true);
  REQUIRE(fds.size() == 2);
  CHECK(fds[0].fd == -1);
  fds.clear();
  stage.processes.add_to(fds, false);
  REQUIRE(::poll(&fds[0], 1, 1200000) == 1);
  stage.processes.watch(true);
  CHECK(stage.happened.empty());
  stage.processes.watch(false);
  CHECK(stage.happened == "output of -1: text\n");
}

TEST_CASE("a request is started once, whatever supervisors ask again", "[epoch_processes]") {
  EpochStage stage;
  for (int times = 0; times < 2; ++times) {
    stage.processes.start_shell(7, "A=5; exit $A", stage.environment);
    REQUIRE(stage.until([&] { return !stage.happened.empty(); }));
    CHECK(stage.happened == "ending\nend of -1, request 7: 5\n");
  }
}

TEST_CASE("a kill ends everything with the mark and reports it once", "[epoch_processes]") {
  EpochStage stage;
  CHECK_FALSE(stage.processes.kill_step());
  stage.processes.start_rank(0, {"/bin/sh", "-c", "sleep 1000 & exec sleep 1000"}, stage.environment);
  REQUIRE(test::eventually([&] { return processes_marked(kAttemptVariable, stage.mark).size() == 2; }));
  stage.processes.begin_to_kill();
  CHECK(stage.processes.deadline_s() < real_clock().monotonic_s());
  std::optional<int> left;
  REQUIRE(test::eventually([&] {
    stage.processes.watch(false);
    left = stage.processes.kill_step();
    return left.has_value();
  }));
  CHECK(*left == 0);
  CHECK(processes_marked(kAttemptVariable, stage.mark).empty());
}
