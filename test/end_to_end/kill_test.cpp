// Goal: a run survives kill -9 at any moment of its saves. Invariant after every kill: nothing is left
// running, the first cause is named last, and the resumed run ends with the bits of the undisturbed one.
// Method: the real program; kill -9 of a random rank, of all ranks, of the agent, of the supervisor, of all
// of them, at random moments of saves. Seeds are fixed and printed.
#include <fmt/format.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "test/end_to_end/fault_bench.h"
#include "test/support/seed.h"

using namespace trainctl::test;

namespace {

/// Of expert_spec: sequences and experts are shared by other ranks than before, or by none.
const std::vector<MeshFields> kExpertMeshes = {
    {},
    {"parallelism.data=1", "parallelism.context=1", "parallelism.expert=1"},
    {"parallelism.data=2", "parallelism.context=1", "parallelism.zero_stage=3"},
    {"parallelism.data=1", "parallelism.context=2", "parallelism.expert=1", "parallelism.pipeline=2"},
    {"parallelism.expert=4", "parallelism.zero_stage=2"},
    {"parallelism.data=2", "parallelism.context=1", "parallelism.pipeline=2",
     "memory.activation_recompute=full"}};
/// Who is killed.
enum class Victim { rank, ranks, agent, supervisor, everything };
constexpr const char* kVictims[] = {"a rank", "all ranks", "the agent", "the supervisor", "everything"};

/// What a rank is about to do, or does, at the kill.
struct Moment {
  const char* name;
  const char* phase;  ///< in which it stops itself; "": it goes on, and the kill comes at any time
  const char* wait;
  bool in_memory;  ///< copies are kept there, and each step is saved behind training
};
constexpr Moment kMoments[] = {{"stopped between two saves", "forward", "", false},
                               {"stopped before it wrote its shard", "saving", "", false},
                               {"stopped while it wrote its shard", "saving", "progress", false},
                               {"stopped between two saves, with copies in memory", "forward", "", true},
                               {"was going on, with copies and writes under way", "", "", true}};

/// One run that is killed and resumed, all by chance.
class Kill {
 public:
  Kill(const FaultBench& bench, uint64_t seed)
      : bench_(bench),
        random_(seed),
        name_("kill" + std::to_string(seed)),
        victim_(Victim(draw(std::size(kVictims)))),
        moment_(kMoments[draw(std::size(kMoments))]),
        step_(2 + 2 * draw(6)),
        rank_(draw(4)),
        stopped_(draw(4)),
        mesh_(draw(bench.meshes.size())) {}

  std::string story() const {
    return fmt::format("rank {} {} (step {}); {} killed (the rank: {}); resumed on mesh {}", stopped_,
                       moment_.name, step_, kVictims[int(victim_)], rank_, mesh_);
  }

  void run() {
    start();
    if (!stops()) std::this_thread::sleep_for(std::chrono::microseconds(draw(30000)));
    kill();
    check_checkpoints();
    resume();
  }

 private:
  int draw(size_t below) { return int(random_() % below); }
  bool stops() const { return *moment_.phase != 0; }

  void start() {
    // One that goes on stops itself all the same before the run ends.
    const std::string at = stops() ? fmt::format("{}:{}:{}:{}", stopped_, moment_.phase, step_, moment_.wait)
                                   : fmt::format("{}:forward:{}", stopped_, step_ + 5);
    child_ = bench_.start(name_, step_ - 1,
                          {"-s", fmt::format("checkpoint.every_steps={}", moment_.in_memory ? 1 : 2), "-s",
                           fmt::format("checkpoint.memory={}", moment_.in_memory ? "on" : "off")},
                          {"TRAINCTL_STOP_AT=" + at});
    run_ = run_of(bench_.dir.path(), name_);
    pids_ = rank_pids(run_, 4);
    REQUIRE(pids_.size() == 4);
    if (stops()) REQUIRE(eventually(120, [&] { return rank_stopped(pids_[size_t(stopped_)]); }));
  }

  /// The process of the agent that the supervisor started.
  pid_t agent() const {
    for (const pid_t pid : trainctl::processes_marked(trainctl::kRunVariable, run_)) {
      const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
      const std::string words = read_file("/proc/" + std::to_string(pid) + "/cmdline");
      const size_t name_ends = stat.rfind(") ");
      if (name_ends != std::string::npos && std::atoi(stat.c_str() + name_ends + 4) == child_->pid() &&
          words.find(std::string("\0node\0", 6)) != std::string::npos)
        return pid;
    }
    FAIL("the run has no agent");
    return -1;
  }

  void kill() {
    if (victim_ == Victim::agent) REQUIRE(::kill(agent(), SIGKILL) == 0);
    if (victim_ == Victim::rank) REQUIRE(::kill(pids_[size_t(rank_)], SIGKILL) == 0);
    if (victim_ == Victim::ranks)
      for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    if (victim_ == Victim::supervisor || victim_ == Victim::everything) child_->signal(SIGKILL);
    const Outcome o = child_->wait(120);
    INFO(o.err);
    if (victim_ == Victim::rank || victim_ == Victim::ranks) {
      CHECK(o.status == 10);
      CHECK_THAT(o.err, Catch::Contains("killed by signal 9") && Catch::Contains("trainctl resume"));
    }
    if (victim_ == Victim::rank) CHECK_THAT(o.err, Catch::Contains(fmt::format("rank {} ", rank_)));
    // A lost node costs no restart: the supervisor starts another agent, unless its ranks' ends count first.
    if (victim_ == Victim::agent) CHECK((o.status == 0 || o.status == 10 || o.status == 12));
    // The agents of a dead supervisor are alive: a resume ends them, or goes on with their ranks.
    if (victim_ == Victim::everything)
      REQUIRE(eventually(
          120, [&] { return trainctl::signal_marked(trainctl::kRunVariable, run_, SIGKILL) == 0; }));
    if (victim_ != Victim::supervisor) bench_.require_nothing_left(run_);
  }

  /// Whatever can be seen is whole.
  void check_checkpoints() const {
    trainctl::FileSystem& files = trainctl::real_file_system();
    for (const int64_t step : trainctl::ckpt::list_steps(files, run_ + "/ckpt")) {
      INFO("step " << step);
      const std::string folder = trainctl::ckpt::step_directory(run_ + "/ckpt", step);
      CHECK(trainctl::ckpt::verify(*trainctl::ckpt::Checkpoint::open(files, folder)).findings.empty());
    }
  }

  void resume() {
    // On the same mesh a resume goes on with ranks that live.
    for (const pid_t pid : pids_)
      if (victim_ == Victim::supervisor && rank_alive(pid)) ::kill(pid, SIGCONT);
    bench_.resume_and_compare(run_, bench_.meshes[size_t(mesh_)]);
    bench_.require_nothing_left(run_);
    CHECK(memory_of(run_) == "");
    const std::string saving = run_ + "/ckpt/.saving";
    CHECK((!std::filesystem::exists(saving) || std::filesystem::is_empty(saving)));
  }

  const FaultBench& bench_;
  std::mt19937 random_;
  const std::string name_;
  const Victim victim_;
  const Moment& moment_;
  const int step_, rank_, stopped_, mesh_;
  std::unique_ptr<Child> child_;
  std::string run_;
  std::vector<pid_t> pids_;
};

void kill_and_resume(uint64_t runs, const FaultBench& bench = FaultBench()) {
  const std::vector<uint64_t> seeds = test_seeds(runs);
  for (const uint64_t seed : seeds) {
    Kill kill(bench, seed);
    INFO("TRAINCTL_TEST_SEED=" << seed);
    INFO(kill.story());
    kill.run();
  }
  WARN(seeds.size() << " kills, seeds " << seeds.front() << " to " << seeds.back());
}

}  // namespace

TEST_CASE("kill -9 at any moment of a save, resumed on any mesh", "[kill]") { kill_and_resume(20); }

TEST_CASE("kill -9 where ranks share experts and sequences, resumed where others do", "[kill]") {
  kill_and_resume(8, FaultBench(expert_spec("experts"), kExpertMeshes));
}

TEST_CASE("kill -9 of a run without master weights, resumed on any mesh", "[kill]") {
  std::string spec = tiny_spec("weights");
  spec.insert(spec.find("\"optimizer\""), R"("device": "cpu", "precision": {"compute": "bf16"}, )");
  spec.insert(spec.find("\"beta1\""), R"("master_weights": "none", "ema": {"decay": 0.9}, )");
  kill_and_resume(4, FaultBench(spec));
}

TEST_CASE("two hundred kills at any moment of a save", "[.][soak]") { kill_and_resume(200); }
