// A whole attempt with real processes, sockets and signals, but ranks that misbehave on order.
//
// Goal: whatever a rank does, the verdict names it, no process and no scratch file is left, and a save is
// published or given up. Method: the agent of this machine is the real one (`trainctl node`), which the build
// makes first; it starts this program again as a launcher and ranks (fake_ranks.h), which do at a given step
// what the plan says. No limit is near: what is asserted is what happened, not when.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "ckpt/store.h"
#include "runtime/base/json.h"
#include "runtime/machine/session.h"
#include "runtime/observe/console.h"
#include "runtime/run/wire/environment.h"
#include "runtime/supervise/attempt/attempt.h"
#include "runtime/supervise/loop/supervisor.h"
#include "test/runtime/supervise/attempt/fake_ranks.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;

namespace {

const std::string kProgram = TRAINCTL_BINARY_DIR "/trainctl";
constexpr int kAttemptRanks = test::kFakeRanks;
constexpr int64_t kSteps = test::kFakeSteps;

/// The agent starts it, so its real path is needed.
std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

// ---- the stage

/// Far from what a busy machine takes, except where the limit itself is meant.
struct Limits {
  double heartbeat_s = 120, start_timeout_s = 1200, step_timeout_s = 1200, launcher_evidence_s = 600;
};
/// Of a rank that is stopped, which is silent after five of them. A rank that is well is stopped by a busy
/// machine for less than that.
constexpr double kShortHeartbeatS = 3;

/// The real time; `jump_s` later from the moment on when `comes` holds.
class JumpingClock final : public Clock {
 public:
  JumpingClock(double jump_s, std::function<bool()> comes) : jump_s_(jump_s), comes_(std::move(comes)) {}
  double monotonic_s() override { return real_clock().monotonic_s() + jumped_s(); }
  double unix_s() override { return real_clock().unix_s() + jumped_s(); }
  void sleep_s(double seconds) override { real_clock().sleep_s(seconds); }

 private:
  double jumped_s() {
    has_come_ = has_come_ || comes_();
    return has_come_ ? jump_s_ : 0;
  }
  const double jump_s_;
  const std::function<bool()> comes_;
  bool has_come_ = false;
};

struct AttemptStage {
  const test::TemporaryFolder folder;
  const std::string& path = folder.path();
  std::string console_text;
  std::function<void(const std::string&)> on_text;
  TerminalConsole console{{.write = [this](const std::string& text) {
    console_text += text;
    if (on_text) on_text(text);
  }}};
  AttemptStage() {
    for (const char* part : {"logs", "failures", "ckpt"}) real_file_system().make_directory(folder / part);
  }

  /// `absent`: when the supervisor knows of all other ranks, the time for the start is over.
  Verdict run(const std::string& plan, const Limits& limits = {}, int absent = -1) {
    test::require_built(kProgram, "trainctl");
    RunDirectory directory{path};
    RunLog log(real_file_system(), real_clock(), directory, console);
    StopSignals signals;
    const SessionFolders folders;
    Fleet fleet({.run_directory = path,
                 .program = kProgram,
                 .mpirun = "mpirun",
                 .nodes = {"here"},
                 .listen = "unix:" + folders.session() + "/supervisor",
                 .silence_s = 300,
                 .grace_s = 600},
                real_clock());
    fleet.start_agents();
    const double limit_s = real_clock().monotonic_s() + 1200;
    while (fleet.ready_count() == 0 && real_clock().monotonic_s() < limit_s) {
      pollfd wait{.fd = fleet.fd(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, 20);
      fleet.serve();
    }
    INFO(fleet.problem(0));
    REQUIRE(fleet.ready_count() == 1);
    AttemptPlan attempt;
    attempt.nodes = {{.node = 0, .first = 0, .count = kAttemptRanks, .name = "here", .host = "here"}};
    attempt.limits = {.ranks = kAttemptRanks,
                      .target_step = kSteps,
                      .heartbeat_s = limits.heartbeat_s,
                      .step_timeout_s = limits.step_timeout_s,
                      .start_timeout_s = limits.start_timeout_s,
                      .launcher_evidence_s = limits.launcher_evidence_s,
                      .exit_timeout_s = 600,
                      .kill_limit_s = 600,
                      .finish_limit_s = 600};
    attempt.times_patience_s = 600;
    attempt.saves = {.directory = path + "/ckpt"};
    attempt.file = {.epoch = 1,
                    .mark = random_token(),
                    .session_folder = folders.session() + ".epoch",
                    .shared_memory_folder = folders.shared_memory() + ".epoch"};
    attempt = with_start(
        std::move(attempt), false,
        {{own_path(), "launcher"}, {{"FAKE", "launcher"}, {"FAKE_RUN", path}, {"FAKE_PLAN", plan}}});
    JumpingClock clock(limits.start_timeout_s, [&] {
      const std::vector<RankStatus>& ranks = log.status().ranks;
      return absent >= 0 && !ranks.empty() &&
             std::all_of(ranks.begin(), ranks.end(), [&](const RankStatus& r) {
               return (r.phase == RankPhase::present) == (r.rank != absent);
             });
    });
    const Verdict verdict =
        run_attempt(attempt, {}, fleet, directory, real_file_system(), clock, log, signals).verdict;
    CHECK(processes_marked(kAttemptVariable, AttemptFile::from_json(real_file_system().read_text(path + "/attempt.json")).mark).empty());
    CHECK_FALSE(std::filesystem::exists(attempt.file.session_folder));
    CHECK_FALSE(std::filesystem::exists(attempt.file.shared_memory_folder));
    fleet.end(600);
    CHECK(processes_marked(kRunVariable, path).empty());
    log.finish();
    return verdict;
  }
  /// The whole supervisor, restarts included.
  RunResult supervise_run(const std::string& plan, int max_restarts, const std::string& resume_from = "",
                          int64_t resume_step = 0) {
    test::require_built(kProgram, "trainctl");
    SupervisePlan p;
    p.run_id = "fake";
    p.name = "fake";
    p.program = kProgram;
    p.mpirun = own_path();
    p.nodes.nodes = {{.name = "here", .slots = kAttemptRanks}};
    p.resume_from = resume_from;
    p.resume_step = resume_step;
    JobSpec& job = p.job.job;
    job.parallelism.world_size = job.parallelism.data = kAttemptRanks;
    job.schedule.total_steps = kSteps;
    job.checkpoint.keep_last = 5;
    job.fault_tolerance.max_restarts = max_restarts;
    job.fault_tolerance.node_silence_seconds = 300;
    job.fault_tolerance.grace_seconds = 600;
    job.fault_tolerance.heartbeat_seconds = 120;
    job.launcher.start = RankStart::mpirun;  // the fake one
    job.launcher.env = {{"FAKE", "launcher"}, {"FAKE_RUN", path}, {"FAKE_PLAN", plan}};
    const RunResult result = supervise(p, {path}, real_file_system(), real_clock(), console);
    CHECK(processes_marked(kRunVariable, path).empty());
    return result;
  }
  /// The steps in metrics.jsonl, as they stand.
  std::vector<int64_t> steps() const {
    std::vector<int64_t> list;
    for (const std::string& line : lines_of(real_file_system(), path + "/metrics.jsonl"))
      list.push_back(Json::parse(line)["step"]);
    return list;
  }
  int events(const std::string& kind) const {
    int count = 0;
    for (const std::string& line : lines_of(real_file_system(), path + "/events.jsonl"))
      count += Json::parse(line)["kind"] == kind;
    return count;
  }
  std::vector<int64_t> checkpoints() const { return ckpt::list_steps(real_file_system(), path + "/ckpt"); }
  int64_t reported() const { return int64_t(lines_of(real_file_system(), path + "/metrics.jsonl").size()); }
  bool saving_is_clean() const {
    const std::string saving = path + "/ckpt/.saving";
    return !real_file_system().exists(saving) || real_file_system().list(saving).empty();
  }
};

}  // namespace

TEST_CASE("an attempt that goes well: every step, every checkpoint, nothing left") {
  AttemptStage stage;
  const Verdict v = stage.run("");
  CHECK(v.outcome == Verdict::finished);
  CHECK(stage.reported() == kSteps);
  const std::string each = real_file_system().read_text(stage.path + "/metrics.ranks.jsonl");
  CHECK((std::count(each.begin(), each.end(), '\n') == kSteps && each.find("null") == std::string::npos));
  CHECK(stage.checkpoints() == std::vector<int64_t>{30, 20, 10});
  CHECK(stage.saving_is_clean());
  const std::string newest = ckpt::step_directory(stage.path + "/ckpt", 30);
  CHECK(ckpt::verify(*ckpt::Checkpoint::open(real_file_system(), newest)).findings.empty());
}

TEST_CASE("what one rank does to itself is found, named and ended") {
  struct Case {
    const char* plan;
    ErrorCode code;
    int rank;
    const char* cause;  // a part of it
  };
  for (const Case& c :
       {Case{"kill 1 5", ErrorCode::kWorker, 1, "was killed by signal 9 (SIGKILL)"},
        Case{"kill 2 1", ErrorCode::kWorker, 2, "was killed by signal 9 (SIGKILL)"},
        Case{"abort 1 5", ErrorCode::kInternal, 1,
             "an internal check failed (see logs/rank-1.log) while: step 5: forward"},
        Case{"error 0 12", ErrorCode::kData, 0, "token 99 is out of range while: step 12: forward"},
        Case{"peer 1 5", ErrorCode::kHang, 1, "waited for rank 2"},
        Case{"early 1 0", ErrorCode::kSpec, 1, "the run's job.json does not parse"},
        Case{"vanish 2 7", ErrorCode::kWorker, 2, "ended without a word"},
        Case{"stop 1 5", ErrorCode::kHang, 1, "sent no heartbeat"}}) {
    AttemptStage stage;
    // mpirun says nothing of a rank that ends with status 0.
    Limits limits;
    if (std::string(c.plan).starts_with("vanish")) limits.launcher_evidence_s = 1.5;
    if (std::string(c.plan).starts_with("stop")) limits.heartbeat_s = kShortHeartbeatS;
    const Verdict v = stage.run(c.plan, limits);
    INFO(fmt::format("{}: {}", c.plan, v.cause));
    CHECK(v.outcome == Verdict::failed);
    CHECK(v.code == c.code);
    CHECK(v.rank == c.rank);
    CHECK(v.cause.find(c.cause) != std::string::npos);
    // Whatever was published before is whole.
    for (const int64_t step : stage.checkpoints())
      CHECK(ckpt::verify(
                *ckpt::Checkpoint::open(real_file_system(), ckpt::step_directory(stage.path + "/ckpt", step)))
                .findings.empty());
  }
}

TEST_CASE("a rank that never starts is missed, one that steps no more is timed out, SIGTERM or not") {
  AttemptStage absent;
  const Verdict v = absent.run("absent 1 0", {}, 1);
  INFO(v.cause);
  CHECK(v.rank == 1);
  CHECK(v.cause.find("rank 1 did not start within 1200 s") == 0);
  AttemptStage stubborn;
  const Verdict w = stubborn.run("stubborn 0 3", {.step_timeout_s = 1});
  INFO(w.cause);
  CHECK(w.code == ErrorCode::kHang);
  CHECK(w.cause.find("no step was finished for ") != std::string::npos);
  CHECK(w.cause.find(" s (fault_tolerance.step_timeout_seconds)") != std::string::npos);
}

TEST_CASE("a dead rank cannot hang a save: the attempt at it is given up") {
  AttemptStage stage;
  const Verdict v = stage.run("kill 1 20");  // just before the second save, which the others have begun
  CHECK(v.outcome == Verdict::failed);
  CHECK(stage.checkpoints() == std::vector<int64_t>{10});
  CHECK(stage.saving_is_clean());
}

TEST_CASE("a shard that cannot be written fails that save, on every rank, and nothing else") {
  AttemptStage stage;
  const Verdict v = stage.run("unwritten 2 20");
  CHECK(v.outcome == Verdict::finished);
  CHECK(stage.reported() == kSteps);
  CHECK(stage.checkpoints() == std::vector<int64_t>{30, 10});
  CHECK(stage.console_text.find(
            "checkpoint step 20 failed, training goes on: rank 2 could not write its shard: no space left") !=
        std::string::npos);
}

TEST_CASE("asked once the run saves and stops; asked twice it stops now") {
  AttemptStage once;
  once.on_text = [&, sent = false](const std::string& text) mutable {
    if (text.find("step=1 ") != std::string::npos && !std::exchange(sent, true)) ::raise(SIGTERM);
  };
  CHECK(once.run("ask 0 5").outcome == Verdict::stopped);
  CHECK(once.reported() == 10);  // at the next save
  CHECK(once.checkpoints() == std::vector<int64_t>{10});

  AttemptStage twice;
  twice.on_text = [&](const std::string& text) {
    if (text.find("step=3 ") != std::string::npos) ::raise(SIGINT);
    if (text.find("stopping after this step") != std::string::npos) ::raise(SIGQUIT);   // what `stop --now` sends
  };
  CHECK(twice.run("stop 1 4").outcome == Verdict::aborted);  // (with rank 1 stopped, no save could ever end)
}

TEST_CASE("a crash is healed from the newest checkpoint, and each step stands once in the metrics") {
  std::vector<int64_t> all(kSteps);
  for (int64_t i = 0; i < kSteps; ++i) all[size_t(i)] = i + 1;
  for (const char* plan : {"kill 1 25", "error 1 3", "kill 0 14 2"}) {
    AttemptStage stage;
    const bool data_error = std::string(plan).starts_with("error");
    const RunResult result = stage.supervise_run(plan, 2);
    INFO(plan << "\n" << stage.console_text);
    CHECK(result.exit_code == (data_error ? 6 : 0));  // a data error stays one: no restart
    if (data_error) continue;
    CHECK(stage.steps() == all);
    CHECK(stage.checkpoints() == std::vector<int64_t>{30, 20, 10});
    CHECK(stage.events("restart") == result.status.restarts);
    CHECK(stage.events("failure") == result.status.restarts);
    CHECK(result.status.epoch == uint64_t(result.status.restarts) + 1);
    CHECK(real_file_system().exists(stage.path + "/failures/1/verdict.json"));
  }
}

TEST_CASE("when restarts are exhausted the first cause is told last, once, with what to do") {
  AttemptStage stage;
  const RunResult result = stage.supervise_run("abort 2 5 9", 1);
  CHECK(result.exit_code == 1);  // an internal check: no restart can help
  AttemptStage killed;
  const RunResult second = killed.supervise_run("kill 2 15 9", 1);
  CHECK(second.exit_code == 10);
  // The step before a kill is reported or not: once, the second attempt may seem to have gone one further.
  const int restarts = second.status.restarts;
  CHECK((restarts == 1 || restarts == 2));
  CHECK(second.status.state == RunState::failed);
  const std::string block = killed.console_text.substr(killed.console_text.find("━━ run fake failed"));
  CHECK(block.find(fmt::format("after {} restart", restarts)) != std::string::npos);
  CHECK(block.find("root cause  rank 2 (pid") != std::string::npos);
  CHECK(block.find("the last checkpoint is step 10") != std::string::npos);
  CHECK(block.find("what to do  ") < block.find("trainctl resume fake\n"));
  CHECK(block.find(fmt::format("/failures/{}\n", restarts + 1)) != std::string::npos);
}

TEST_CASE(
    "a checkpoint that opens but cannot be loaded is passed over for the one before, which costs no restart") {
  AttemptStage stage;
  stage.supervise_run("kill 0 25", 0);
  REQUIRE(stage.checkpoints() == std::vector<int64_t>{20, 10});
  stage.console_text.clear();
  const RunResult result =
      stage.supervise_run("unloadable 1 20 9", 0, ckpt::step_directory(stage.path + "/ckpt", 20), 20);
  CHECK(result.exit_code == 0);
  CHECK(result.status.restarts == 0);
  CHECK(stage.checkpoints() == std::vector<int64_t>{30, 20, 10});
  // The bad one stands aside, so that step 20 could be saved again.
  CHECK(real_file_system().is_directory(ckpt::step_directory(stage.path + "/ckpt/superseded-e3", 20)));
  CHECK(stage.steps().size() == size_t(kSteps));
}

TEST_CASE("without an older usable checkpoint the run fails; it never begins again from step 0 by itself") {
  AttemptStage stage;
  stage.supervise_run("kill 0 15", 0);
  REQUIRE(stage.checkpoints() == std::vector<int64_t>{10});
  const RunResult result =
      stage.supervise_run("unloadable 1 10 9", 3, ckpt::step_directory(stage.path + "/ckpt", 10), 10);
  CHECK(result.exit_code == 7);
  CHECK(result.status.reason.find("a chunk's hash differs") != std::string::npos);
  CHECK(result.status.reason.find("there is no older usable checkpoint") != std::string::npos);
  CHECK(stage.checkpoints() == std::vector<int64_t>{10});  // still in its place

  // The same after a crash, when all that was saved has been damaged meanwhile.
  AttemptStage damaged;
  damaged.on_text = [&](const std::string& text) {
    if (text.find("checkpoint step 10 ") != std::string::npos)
      real_file_system().replace_text(ckpt::step_directory(damaged.path + "/ckpt", 10) + "/manifest.json", "x");
  };
  const RunResult second = damaged.supervise_run("kill 1 15", 3);
  INFO(damaged.console_text);
  CHECK(second.exit_code == 7);
  CHECK(second.status.reason.find("was killed by signal 9") != std::string::npos);
  CHECK(second.status.reason.find("none of its checkpoints is usable") != std::string::npos);
  CHECK(damaged.checkpoints() == std::vector<int64_t>{10});
}

TEST_CASE("after going back to step 0 the status names no checkpoint") {
  AttemptStage stage;
  std::vector<int64_t> saved_at_start;
  stage.on_text = [&](const std::string& text) {
    if (text.find("ranks up in") == std::string::npos) return;
    // A thread of its own writes it.
    const std::string path = stage.path + "/status.json";
    REQUIRE(test::eventually(60, [&] { return real_file_system().exists(path); }));
    saved_at_start.push_back(read_status(real_file_system(), path)->saved_step);
  };
  CHECK(stage.supervise_run("kill 1 5", 1).exit_code == 0);
  CHECK((!saved_at_start.empty() && saved_at_start == std::vector<int64_t>(saved_at_start.size(), -1)));
}

TEST_CASE("a run whose only checkpoint has been removed does not begin again from step 0 by itself") {
  AttemptStage stage;
  stage.on_text = [&](const std::string& text) {
    if (text.find("checkpoint step 10 ") != std::string::npos)
      real_file_system().remove_tree(ckpt::step_directory(stage.path + "/ckpt", 10));
  };
  const RunResult result = stage.supervise_run("kill 1 15", 1);
  CHECK(result.exit_code == 7);
  CHECK(result.status.reason.find("the run was saved, but its checkpoints are gone") != std::string::npos);
}

TEST_CASE("a supervisor that cannot go on says so in the status, whatever was thrown, and leaves nothing") {
  AttemptStage stage;
  stage.on_text = [](const std::string& text) {
    if (text.find("ranks up in") != std::string::npos) throw std::runtime_error("the terminal is gone");
  };
  CHECK_THROWS_WITH(stage.supervise_run("stubborn 1 2", 0), "the terminal is gone");
  const auto status = read_status(real_file_system(), stage.path + "/status.json");
  REQUIRE(status);
  CHECK(status->state == RunState::failed);
  CHECK(status->exit_code == 1);
  CHECK(status->reason == "the terminal is gone");
  CHECK(processes_marked(kRunVariable, stage.path).empty());
}
