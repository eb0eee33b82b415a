// Goal: an agent whose file system does not answer, as one whose server is gone, does not keep ranks alive
//       beyond its grace; where it answers before, the agent goes on.
// Method: a preloaded library in which an open of supervisor.json waits while the test says so. And the pure
//         part: what counts as standing still.
#include <atomic>
#include <filesystem>

#include "runtime/run/agent/loop_watchdog.h"
#include "test/runtime/run/agent/agent_stage.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

const std::string kLibrary = TRAINCTL_BINARY_DIR "/test/support/refusing_calls/librefusing_calls.so";

struct Blocked : Stage {
  const std::string folder = std::filesystem::canonical(dir.path()).string();

  Blocked() {
    require_built(kLibrary, "refusing_calls");
    environment = {{"LD_PRELOAD", kLibrary}, {"TRAINCTL_TEST_REFUSED_FOLDER", folder}};
  }
  /// The agent waits for supervisor.json from its next dial on, with other limits if they are given.
  void block(const std::optional<wire::Welcome>& limits = {}) {
    if (limits) {
      peer.reset();
      accept();
    }
    real_file_system().write_new_text(folder + "/hold-open-supervisor.json", "");
    if (limits) welcome(*limits);
    peer.reset();
    REQUIRE(eventually([&] { return real_file_system().exists(folder + "/held"); }));
    // With a short limit of silence it may have dropped the connection before.
    CHECK_THAT(log(), Catch::Contains("lost the supervisor") || Catch::Contains("the supervisor is silent"));
  }
  /// The open returns.
  void answer() { real_file_system().remove_file(folder + "/hold-open-supervisor.json"); }
  std::string log() const { return real_file_system().read_text(run + "/logs/node-here.log"); }
};

}  // namespace

TEST_CASE("ranks end after the grace though the file system of their agent does not answer", "[blocked]") {
  Blocked stage;
  stage.attach();
  stage.peer->send(stage.start(3, "sleep 1000 & sleep 1000"));
  REQUIRE(eventually([&] { return stage.processes_of(3).size() >= 2; }));
  const double began_s = real_clock().monotonic_s();
  stage.block(wire::Welcome{.silence_s = 0.2, .grace_s = 1, .beat_s = 0.05, .keep = true});
  REQUIRE(eventually([&] { return stage.processes_of(3).empty(); }));
  CHECK(real_clock().monotonic_s() - began_s >= 1);
  // As where the supervisor is silent: it waits for no file, and ends.
  CHECK(stage.end() == 0);
  CHECK(stage.nothing_left());
  CHECK(stage.log().find("stood still") == std::string::npos);
}

TEST_CASE("an agent that waits for a file for less than the grace keeps its ranks", "[blocked]") {
  Blocked stage;
  stage.attach();
  stage.peer->send(stage.start(3, "sleep 1000"));
  REQUIRE(eventually([&] { return stage.processes_of(3).size() >= 1; }));
  stage.block();
  stage.answer();
  CHECK(stage.accept().epoch == 3);
  stage.welcome();
  CHECK(stage.look().epoch == 3);
  CHECK(stage.processes_of(3).size() >= 1);
  CHECK(stage.peer->count(Kind::exited) == 0);
}

TEST_CASE("a loop that no longer turns is noticed, once it stands for longer than its limit", "[blocked]") {
  std::atomic<int> acted = 0;
  LoopWatchdog watchdog(0.01, [&] { ++acted; });
  REQUIRE(eventually([&] { return acted >= 2; }));
  CHECK(watchdog.has_acted());
  watchdog.set_limit(1e9);
  watchdog.turned();
  const int before = acted;
  CHECK(eventually([&] { return !watchdog.has_acted(); }));
  CHECK(acted <= before + 1);  // it may have been about to
}

TEST_CASE("a loop stands still when its counter does, and a pause of the process is no standing still") {
  StandStill still;
  CHECK(still.look(1, 0.25) == 0);
  for (int i = 1; i <= 40; ++i) CHECK(still.look(1, 0.25) == Approx(0.25 * i));
  CHECK(still.look(2, 0.25) == 0);
  CHECK(still.look(2, 3600) == Approx(1));  // stopped for an hour, with the loop
  CHECK(still.look(3, 3600) == 0);
  StandStill never;
  for (uint64_t turn = 1; turn < 100; ++turn) CHECK(never.look(turn, 10) == 0);
}
