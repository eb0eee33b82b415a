// Goal: a node may be cut off in any phase of a save, for less or for more than the grace time. No checkpoint
// is
//       ever half published, the run ends with the undisturbed bits, and nothing is left on the node after it
//       has healed.
// Method: one rank stops itself at the chosen point of the save of step 10, or the supervisor's rename that
//         publishes it is held by a preloaded library; then the node is cut off, and what was stopped goes
//         on, so that a rank that is cut off still writes to the shared disk. Every checkpoint of the run is
//         compared with that of the undisturbed run, and each that is visible meanwhile is verified.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>

#include "runtime/base/activity.h"
#include "runtime/run/record/run_status.h"
#include "test/cluster/cluster_run.h"

using namespace trainctl;
using namespace trainctl::test;
namespace fs = std::filesystem;

namespace {

constexpr int kSavedStep = 10, kHome = 5;  // kHome: the supervisor's node, without ranks
constexpr int kItself = -1;

struct Point {
  const char* name;
  const char* stop_at;  ///< of rank 2, which is on the second node; "": the rename is held instead
  int cut;              ///< index of the node in the attempt; kItself: the supervisor's
  /// Whether publishing may go on while the node is cut off and not yet missed.
  bool at_once = true;
};

constexpr Point kPoints[] = {
    {"before it copies its state", "2:saving:10", 1},
    {"while it writes its shard", "2:saving:10:progress", 1},
    {"after it has handed in, while another writes", "2:saving:10:progress", 2},
    {"while the supervisor publishes", "", 1, false},
    {"between publishing and its answer", "", 1},
    {"after the answer, in the next step", "2:forward:11", 1},
    {"the supervisor, while a rank writes", "2:saving:10:progress", kItself},
    {"the supervisor, while it publishes", "", kItself, false},
};

/// It is built below the folder of the program.
std::string refusing_calls() {
  return fs::path(program()).parent_path().string() + "/test/support/refusing_calls/librefusing_calls.so";
}

bool stopped(pid_t pid) {
  return read_file("/proc/" + std::to_string(pid) + "/stat").find(") T ") != std::string::npos;
}

class CutSave {
 public:
  CutSave(const Point& point, const std::string& start, double grace_s)
      : point_(point),
        nodes_(6, machines()),
        hold_(nodes_.folder() + "/hold-step-00000010"),
        run_(nodes_, {.start = start,
                      .steps = 100,
                      .supervisor = kHome,
                      .silence_s = 2,
                      .grace_s = grace_s,
                      // A stopped rank is no hang for five of these.
                      .set = {"fault_tolerance.heartbeat_seconds=2", "checkpoint.keep_last=99",
                              // Ranks write in the save itself, where they can be stopped.
                              "checkpoint.memory=off",
                              std::string(R"(launcher.env={"TRAINCTL_STOP_AT":")") + point.stop_at + "\"}"},
                      .environment = {"LD_PRELOAD=" + refusing_calls(),
                                      "TRAINCTL_TEST_REFUSED_FOLDER=" + nodes_.folder()}}) {}

  FakeNodes& nodes() { return nodes_; }
  ClusterRun& run() { return run_; }
  int node() const { return node_; }

  void reach() {
    if (held()) write_file(hold_, "");
    run_.launch();
    run_.await_event("ranks_up");
    const std::vector<int> members = run_.members();
    REQUIRE(members.size() == 4);
    node_ = point_.cut == kItself ? kHome : members[size_t(point_.cut)];
    if (held()) return await("held", [&] { return fs::exists(nodes_.folder() + "/held"); });
    await("stopped", [&] { return stopped_rank(members[1]).has_value(); });
    if (point_.cut == 2) await("handed in", [&] { return trains_on(4) && trains_on(5); });
    stopped_ = stopped_rank(members[1]);
  }

  /// Cuts the node off and lets go on what was stopped; returns when the node is missed.
  void cut() {
    nodes_.partition(node_);
    if (stopped_) REQUIRE(::kill(*stopped_, SIGCONT) == 0);
    if (held() && point_.at_once) release();
    run_.await_event("node_lost");
    check_checkpoints();
    if (held() && !point_.at_once) release();
  }

  /// Each checkpoint that can be seen is whole.
  void check_checkpoints() {
    for (const auto& entry : fs::directory_iterator(run_.path() + "/ckpt")) {
      const std::string folder = entry.path();
      if (!entry.path().filename().string().starts_with("step-")) continue;
      const Outcome seen = nodes_.run(kHome, {program(), "inspect-ckpt", folder, "--verify"});
      INFO(folder << "\n" << seen.out << seen.err);
      CHECK(seen.status == 0);
    }
  }

  void check_healed() {
    const Outcome outcome = run_.finish();
    INFO(outcome.err << run_.story());
    REQUIRE(outcome.status == 0);
    CHECK(run_.epoch() > 1);
    run_.check_bits();
    run_.check_nothing_left();
    check_checkpoints();
    const fs::path saving = run_.path() + "/ckpt/.saving";
    CHECK((!fs::exists(saving) || fs::is_empty(saving)));
  }

 private:
  bool held() const { return *point_.stop_at == 0; }
  void release() { fs::remove(hold_); }
  std::optional<pid_t> stopped_rank(int node) const {
    for (const pid_t rank : run_.ranks(node))
      if (stopped(rank)) return rank;
    return std::nullopt;
  }
  /// The rank has handed in its part: it waits for no answer.
  bool trains_on(int rank) const {
    const auto status = read_status(real_file_system(), run_.path() + "/status.json");
    if (!status || status->ranks.size() != 8) return false;
    const auto& activity = status->ranks[size_t(rank)].activity;
    return activity && activity->step > kSavedStep;
  }
  void await(const char* what, const std::function<bool()>& condition) {
    const bool reached = eventually(30, condition);
    INFO("waited for: " << what << "\n" << run_.story());
    REQUIRE(reached);
  }

  const Point point_;
  FakeNodes nodes_;
  const std::string hold_;
  ClusterRun run_;
  int node_ = -1;
  std::optional<pid_t> stopped_;
};

void cut_for_long(const Point& point, const std::string& start) {
  CutSave save(point, start, 3);
  save.reach();
  save.cut();
  // The nodes that hear no supervisor end everything by themselves.
  if (point.cut == kItself)
    for (int node = 0; node < kHome; ++node)
      CHECK(eventually(120, [&] { return save.run().ranks(node).empty() && !save.run().agent(node); }));
  else
    CHECK(eventually(
        120, [&] { return save.run().ranks(save.node()).empty() && !save.run().agent(save.node()); }));
  save.check_checkpoints();
  save.nodes().heal(save.node());
  save.check_healed();
}

void cut_for_short(const Point& point, const std::string& start) {
  CutSave save(point, start, 20);
  save.reach();
  const size_t seen = save.run().events("node_up").size();
  save.cut();
  save.nodes().heal(save.node());
  save.run().await_event("node_up", seen + 1);
  save.check_healed();
}

}  // namespace

TEST_CASE("a node is cut off for longer than the grace in each phase of a save", "[fault][save_cut][more]") {
  for (const Point& point : kPoints)
    DYNAMIC_SECTION(point.name) { cut_for_long(point, "pmix"); }
  DYNAMIC_SECTION(kPoints[1].name << ", mpirun") { cut_for_long(kPoints[1], "mpirun"); }
}

TEST_CASE("a node is cut off for less than the grace in each phase of a save", "[fault][save_cut][more]") {
  for (const Point& point : kPoints)
    DYNAMIC_SECTION(point.name) { cut_for_short(point, "pmix"); }
  DYNAMIC_SECTION(kPoints[1].name << ", mpirun") { cut_for_short(kPoints[1], "mpirun"); }
}
