// Goal: a run survives what happens to it. Invariant after every fault: nothing is left running, the first cause is named last, and the
// resumed run ends with the bits of the undisturbed one.
// Method: the real program; kill -9 of a random rank, of all ranks, of the agent, of the supervisor, of all
// of them, at random moments of saves; signals to mpirun; SIGTERM. Seeds are fixed and printed. Disks that
// are full or refuse calls: saving_test.cpp.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/environment.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/seed.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using trainctl::Json;

namespace {

/// What is set on a mesh of at most four ranks.
using MeshFields = std::vector<std::string>;
extern const std::vector<MeshFields> kMeshes;

struct FaultBench {
  TemporaryFolder dir;
  std::string whole;   // the undisturbed run
  const std::vector<MeshFields>& meshes;

  explicit FaultBench(const std::string& spec = tiny_spec("tiny"),
                      const std::vector<MeshFields>& on = kMeshes)
      : meshes(on) {
    write_file(dir.path() + "/job.json", spec);
    const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "-s", "name=whole"});
    INFO(o.err);
    REQUIRE(o.status == 0);
    whole = run_of(dir.path(), "whole");
  }

  /// Starts a run and waits until it has completed `steps` steps.
  std::unique_ptr<Child> start(const std::string& name, int steps, std::vector<std::string> more = {},
                               const std::vector<std::string>& environment = {}) const {
    std::vector<std::string> words = {trainctl_path(), "launch", "job.json", "-s", "name=" + name};
    words.insert(words.end(), more.begin(), more.end());
    auto child = std::make_unique<Child>(words, dir.path(), environment);
    REQUIRE(eventually(60, [&] {
      const std::string run = run_of(dir.path(), name);
      return !child->running() || (!run.empty() && line_count(run + "/metrics.jsonl") >= steps);
    }));
    return child;
  }

  /// Earlier than agents without a supervisor would end it: after 30 s.
  void require_nothing_left(const std::string& run) const {
    for (const pid_t pid : rank_pids(run, 8)) CHECK(eventually(20, [&] { return !rank_alive(pid); }));
    // Nor is an agent, or a launcher.
    CHECK(eventually(20, [&] { return trainctl::processes_marked(trainctl::kRunVariable, run).empty(); }));
  }

  void resume_and_compare(const std::string& run, const std::vector<std::string>& mesh) const {
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

/// The first one is that of the run.
const std::vector<MeshFields> kMeshes = {
    {},
    {"parallelism.data=1", "parallelism.pipeline=4"},
    {"parallelism.data=4", "parallelism.pipeline=1", "parallelism.zero_stage=3"},
    {"parallelism.data=1", "parallelism.pipeline=1"},
    {"parallelism.data=2", "parallelism.pipeline=1", "parallelism.zero_stage=0"},
    {"parallelism.pipeline_schedule=interleaved", "parallelism.virtual_stages=2"},
    {"parallelism.data=1", "parallelism.pipeline=4", "parallelism.pipeline_schedule=zb-h1"},
    {"parallelism.data=3", "parallelism.pipeline=1"}};
/// Of expert_spec: sequences and experts are shared by other ranks than before, or by none.
const std::vector<MeshFields> kExpertMeshes = {
    {},
    {"parallelism.data=1", "parallelism.context=1", "parallelism.expert=1"},
    {"parallelism.data=2", "parallelism.context=1", "parallelism.zero_stage=3"},
    {"parallelism.data=1", "parallelism.context=2", "parallelism.expert=1", "parallelism.pipeline=2"},
    {"parallelism.expert=4", "parallelism.zero_stage=2"},
    {"parallelism.data=2", "parallelism.context=1", "parallelism.pipeline=2",
     "memory.activation_recompute=full"}};
const std::vector<std::string> kAnotherCut = {"parallelism.stage_layers=[1,3]",
                                              "memory.activation_recompute=1"};
const std::vector<std::string> kEightRanks = {"parallelism.data=4", "parallelism.pipeline=2",
                                              "parallelism.zero_stage=0"};

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

TEST_CASE("two hundred kills at any moment of a save", "[.][soak]") { kill_and_resume(200); }

TEST_CASE("restarts by itself when it may", "[fault]") {
  FaultBench bench;
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
  FaultBench bench;
  auto child = bench.start("term", 3, {"-s", "checkpoint.every_steps=0"});
  child->signal(SIGTERM);
  const Outcome o = child->wait(120);
  INFO(o.err);
  CHECK(o.status == 75);
  const std::string run = run_of(bench.dir.path(), "term");
  bench.require_nothing_left(run);
  bench.resume_and_compare(run, kMeshes[1]);
}

TEST_CASE("a scheduler's warning saves and stops, too", "[fault]") {
  FaultBench bench;
  for (const int number : {SIGUSR1, SIGUSR2}) {
    const std::string name = fmt::format("warned{}", number);
    auto child = bench.start(name, 3, {"-s", "checkpoint.every_steps=0"});
    const std::string run = run_of(bench.dir.path(), name);
    for (const pid_t rank : rank_pids(run, 4)) CHECK(::kill(rank, number) == 0);  // it may warn every process
    child->signal(number);
    const Outcome o = child->wait(120);
    INFO(o.err);
    CHECK(o.status == 75);
    bench.resume_and_compare(run, number == SIGUSR1 ? kMeshes[1] : kAnotherCut);
  }
}

TEST_CASE("a stop in the first moments of a launch is kept", "[fault]") {
  FaultBench bench;
  auto child = std::make_unique<Child>(
      std::vector<std::string>{trainctl_path(), "launch", "job.json", "-s", "name=early", "-s", "schedule.total_steps=2000"}, bench.dir.path());
  REQUIRE(eventually(120, [&] {
    const std::string run = run_of(bench.dir.path(), "early");
    return !run.empty() && !read_file(run + "/status.json").empty();
  }));
  const std::string run = run_of(bench.dir.path(), "early");
  CHECK(run_trainctl(bench.dir.path(), {"status", run}).status == 0);
  const Outcome stop = run_trainctl(bench.dir.path(), {"stop", run}, 60);
  INFO(stop.err);
  CHECK(stop.status == 0);
  CHECK(child->wait(120).status == 75);
}

TEST_CASE("mpirun that is told to end goes on, and the run saves when its supervisor is told", "[fault]") {
  FaultBench bench;
  auto child = bench.start("told", 3, {"-s", "schedule.total_steps=2000", "-s", "launcher.start=mpirun"});
  const std::string run = run_of(bench.dir.path(), "told");
  const std::vector<pid_t> ranks = rank_pids(run, 1);
  REQUIRE(ranks.size() == 1);
  const std::string stat = read_file("/proc/" + std::to_string(ranks[0]) + "/stat");
  const pid_t mpirun = pid_t(std::atoi(stat.c_str() + stat.rfind(") ") + 4));  // the parent
  REQUIRE(read_file("/proc/" + std::to_string(mpirun) + "/cmdline").find("mpirun") != std::string::npos);
  // As a scheduler does that ends the job: everybody gets the signal, mpirun first.
  for (const int number : {SIGTERM, SIGHUP, SIGINT, SIGUSR1}) REQUIRE(::kill(mpirun, number) == 0);
  const int steps = line_count(run + "/metrics.jsonl");
  REQUIRE(eventually(30, [&] { return line_count(run + "/metrics.jsonl") > steps + 3; }));
  child->signal(SIGTERM);
  const Outcome o = child->wait(120);
  INFO(o.err);
  CHECK(o.status == 75);
}

TEST_CASE("why MPI or mpirun does not start is shown, with advice that is not the same again", "[fault]") {
  FaultBench bench;
  const Outcome mpi = run_trainctl(bench.dir.path(), {"launch", "job.json", "-s", R"(launcher.env={"OMPI_MCA_btl":"tcp"})"}, 60);
  INFO(mpi.err);
  CHECK(mpi.status != 0);
  // mpirun 4.1 now and then loses its help text and leaves only its own log: "ORTE_ERROR_LOG: ... show_help.c".
  CHECK_THAT(mpi.err, (Catch::Contains("BTLs attempted: tcp") || Catch::Contains("show_help.c")) && Catch::Contains("mpirun says: ") &&
                          Catch::Contains("what to do  repair the cause above"));
  const Outcome none = run_trainctl(bench.dir.path(), {"launch", "job.json", "-s", "launcher.start=mpirun", "-s", "launcher.mpirun=/bin/false"}, 60);
  INFO(none.err);
  CHECK(none.status == 12);
  CHECK_THAT(none.err, Catch::Contains("what to do  repair the cause above") && Catch::Contains("launcher.mpirun is /bin/false"));
}

TEST_CASE("a stop asked for twice is still one that saves", "[fault]") {
  FaultBench bench;
  auto child = bench.start("twice", 3, {"-s", "checkpoint.every_steps=0"});
  for (const int number : {SIGTERM, SIGTERM, SIGHUP, SIGINT}) child->signal(number);
  const Outcome o = child->wait(120);
  INFO(o.err);
  CHECK(o.status == 75);
  bench.resume_and_compare(run_of(bench.dir.path(), "twice"), kEightRanks);
}

TEST_CASE("a closed output pipe does not end the run", "[fault]") {
  FaultBench bench;
  const std::string line = "'" + trainctl_path() + "' launch job.json -s name=pipe 2>&1 | head -n 2";
  Child({"bash", "-c", line}, bench.dir.path()).wait(60);
  const std::string run = run_of(bench.dir.path(), "pipe");
  REQUIRE(eventually(30, [&] { return line_count(run + "/metrics.jsonl") == 20; }));
  CHECK(
      eventually(120, [&] { return read_file(run + "/status.json").find("finished") != std::string::npos; }));
  CHECK(losses_of(run) == losses_of(bench.whole));
}

TEST_CASE("the supervisor's death ends agents and ranks after the grace", "[fault]") {
  FaultBench bench;
  auto child = bench.start("orphan", 2, {"-s", "fault_tolerance.grace_seconds=1"});
  const std::string run = run_of(bench.dir.path(), "orphan");
  child->signal(SIGKILL);
  child->wait(120);
  bench.require_nothing_left(run);
  bench.resume_and_compare(run, kMeshes[2]);
}

namespace {

/// The agent of a run on one machine: it has no mark of an attempt, as its ranks have.
pid_t agent_of(const std::string& run) {
  for (const pid_t pid : trainctl::processes_marked(trainctl::kRunVariable, run))
    if (trainctl::process_has(pid, trainctl::kNodeVariable) &&
        !trainctl::process_has(pid, trainctl::kAttemptVariable))
      return pid;
  return -1;
}

/// The folders in /tmp and /dev/shm whose locks the process holds.
std::vector<std::string> scratch_of(pid_t pid) {
  std::vector<std::string> folders;
  std::error_code gone;  // a descriptor may be closed meanwhile
  for (const auto& fd : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
    const std::filesystem::path file = std::filesystem::read_symlink(fd, gone);
    if (file.filename() == "lock" && file.string().find("/trainctl.") != std::string::npos)
      folders.push_back(file.parent_path());
  }
  return folders;
}

}  // namespace

TEST_CASE("a supervisor that stands still for longer than the silence costs no step", "[fault]") {
  FaultBench bench;
  auto child = bench.start("paused", 2);
  const std::string run = run_of(bench.dir.path(), "paused");
  child->signal(SIGSTOP);
  CHECK(eventually(60, [&] {
    for (const auto& log : std::filesystem::directory_iterator(run + "/logs"))
      if (log.path().filename().string().starts_with("node-") &&
          read_file(log.path()).find("the supervisor is silent: dialing again") != std::string::npos)
        return true;
    return false;
  }));
  child->signal(SIGCONT);
  const Outcome o = child->wait(120);
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK(events_of(run, "restart").empty());
  CHECK(events_of(run, "node_lost").empty());
  CHECK(events_of(run, "supervisor_paused").size() == 1);
  CHECK(losses_of(run) == losses_of(bench.whole));
  CHECK(run_trainctl(bench.dir.path(), {"inspect-ckpt", run, "--diff", bench.whole}).status == 0);
}

TEST_CASE("an agent that stands still is replaced, and one whose folders vanish makes them again",
          "[fault]") {
  FaultBench bench;
  for (const bool stops : {false, true}) {
    const std::string name = stops ? "stopped" : "emptied";
    auto child = bench.start(name, 6, {"-s", "fault_tolerance.max_restarts=2"});
    const std::string run = run_of(bench.dir.path(), name);
    const pid_t agent = agent_of(run);
    REQUIRE(agent > 0);
    if (stops) {
      REQUIRE(::kill(agent, SIGSTOP) == 0);
    } else {
      const std::vector<std::string> folders = scratch_of(agent);
      CHECK(folders.size() >= 2);
      for (const std::string& folder : folders) std::filesystem::remove_all(folder);
      REQUIRE(::kill(rank_pids(run, 4).at(1), SIGKILL) == 0);
    }
    const Outcome o = child->wait(60);
    INFO(o.err);
    CHECK(o.status == 0);
    CHECK(events_of(run, "restart").size() == 1);
    CHECK(losses_of(run) == losses_of(bench.whole));
    bench.require_nothing_left(run);
  }
}

TEST_CASE("a rank that gets no more memory ends as such and is started again", "[fault]") {
  FaultBench bench;
  auto child = bench.start("tight", 3, {"-s", "fault_tolerance.max_restarts=2"});
  const std::string run = run_of(bench.dir.path(), "tight");
  const pid_t rank = rank_pids(run, 4).at(0);
  const uint64_t pages = std::stoull(read_file(fmt::format("/proc/{}/statm", rank)));
  const rlimit limit{.rlim_cur = (pages + 1) * 4096, .rlim_max = (pages + 1) * 4096};
  REQUIRE(::prlimit(rank, RLIMIT_AS, &limit, nullptr) == 0);
  const Outcome o = child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  // It may have had what it needed until its end.
  for (const Json& failure : events_of(run, "failure"))
    CHECK(failure["cause"].text().find("memory ran out") != std::string::npos);
  CHECK(losses_of(run) == losses_of(bench.whole));
  CHECK(run_trainctl(bench.dir.path(), {"inspect-ckpt", run, "--diff", bench.whole}).status == 0);
}

TEST_CASE("a rank that gets no more descriptors ends as such and is started again", "[fault]") {
  FaultBench bench;
  auto child = bench.start("full", 3, {"-s", "fault_tolerance.max_restarts=2"});
  const std::string run = run_of(bench.dir.path(), "full");
  const pid_t rank = rank_pids(run, 4).at(0);
  // What it keeps to say so with is the last that it may have: the next file is one too many.
  REQUIRE(::kill(rank, SIGSTOP) == 0);
  REQUIRE(eventually(60, [&] { return rank_stopped(rank); }));
  rlim_t most = 0;
  for (const auto& fd : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", rank)))
    if (std::filesystem::read_symlink(fd.path()) == "/dev/null")
      most = std::max<rlim_t>(most, std::stoull(fd.path().filename()) + 1);
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  REQUIRE(::prlimit(rank, RLIMIT_NOFILE, &limit, nullptr) == 0);
  REQUIRE(::kill(rank, SIGCONT) == 0);
  const Outcome o = child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  REQUIRE(events_of(run, "failure").size() == 1);
  CHECK(events_of(run, "failure").front()["cause"].text().find("descriptors ran out") != std::string::npos);
  CHECK(losses_of(run) == losses_of(bench.whole));
  CHECK(run_trainctl(bench.dir.path(), {"inspect-ckpt", run, "--diff", bench.whole}).status == 0);
}
