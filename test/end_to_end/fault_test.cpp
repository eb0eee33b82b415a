// Goal: a run survives what happens to it. Invariant after every fault: nothing is left running, the first
// cause is named last, and the resumed run ends with the bits of the undisturbed one.
// Method: the real program; kill -9, SIGSTOP, signals to mpirun, SIGTERM, while a rank has stopped itself,
// so that each comes at a known step. Kills at random moments of saves: kill_test.cpp. Disks that are full
// or refuse calls: saving_test.cpp.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "test/end_to_end/fault_bench.h"

using namespace trainctl::test;
using trainctl::Json;

namespace {

const std::vector<std::string> kAnotherCut = {"parallelism.stage_layers=[1,3]",
                                              "memory.activation_recompute=1"};
const std::vector<std::string> kEightRanks = {"parallelism.data=4", "parallelism.pipeline=2",
                                              "parallelism.zero_stage=0"};

}  // namespace

TEST_CASE("restarts by itself when it may", "[fault]") {
  FaultBench bench;
  const auto held = bench.hold("again", 7, {"-s", "fault_tolerance.max_restarts=2"});
  REQUIRE(::kill(held.ranks[1], SIGKILL) == 0);
  const Outcome o = held.child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK(events_of(held.run, "restart").size() == 1);
  CHECK(losses_of(held.run) == losses_of(bench.whole));
  CHECK(run_trainctl(bench.dir.path(), {"inspect-ckpt", held.run, "--diff", bench.whole}).status == 0);
}

TEST_CASE("SIGTERM saves and stops with 75", "[fault]") {
  FaultBench bench;
  const auto held = bench.hold("term", 4, {"-s", "checkpoint.every_steps=0"});
  bench.stop(held, {SIGTERM});
  const Outcome o = held.child->wait(120);
  INFO(o.err);
  CHECK(o.status == 75);
  bench.require_nothing_left(held.run);
  bench.resume_and_compare(held.run, kMeshes[1]);
}

TEST_CASE("a scheduler's warning saves and stops, too", "[fault]") {
  FaultBench bench;
  for (const int number : {SIGUSR1, SIGUSR2}) {
    const auto held = bench.hold(fmt::format("warned{}", number), 4, {"-s", "checkpoint.every_steps=0"});
    for (const pid_t rank : held.ranks) CHECK(::kill(rank, number) == 0);  // it may warn every process
    bench.stop(held, {number});
    const Outcome o = held.child->wait(120);
    INFO(o.err);
    CHECK(o.status == 75);
    bench.resume_and_compare(held.run, number == SIGUSR1 ? kMeshes[1] : kAnotherCut);
  }
}

TEST_CASE("a stop in the first moments of a launch is kept", "[fault]") {
  FaultBench bench;
  auto child =
      std::make_unique<Child>(std::vector<std::string>{trainctl_path(), "launch", "job.json", "-s",
                                                       "name=early", "-s", "schedule.total_steps=100000"},
                              bench.dir.path());
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
  auto child = bench.start("told", 3, {"-s", "schedule.total_steps=100000", "-s", "launcher.start=mpirun"});
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
  const auto held = bench.hold("twice", 4, {"-s", "checkpoint.every_steps=0"});
  bench.stop(held, {SIGTERM, SIGTERM, SIGHUP, SIGINT});
  const Outcome o = held.child->wait(120);
  INFO(o.err);
  CHECK(o.status == 75);
  bench.resume_and_compare(held.run, kEightRanks);
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
  const auto held = bench.hold("orphan", 3, {"-s", "fault_tolerance.grace_seconds=10"});
  held.child->signal(SIGKILL);
  held.child->wait(120);
  bench.require_nothing_left(held.run);
  bench.resume_and_compare(held.run, kMeshes[2]);
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

namespace {

/// Of a node; so long the machine may stop an agent or a supervisor, and such a test lasts.
const std::vector<std::string> kSilence = {"-s", "fault_tolerance.node_silence_seconds=10"};

}  // namespace

TEST_CASE("a supervisor that stands still for longer than the silence costs no step", "[fault]") {
  FaultBench bench;
  const auto held = bench.hold("paused", 6, kSilence);
  const auto& [child, run, ranks] = held;
  child->signal(SIGSTOP);
  CHECK(eventually(60, [&] {
    for (const auto& log : std::filesystem::directory_iterator(run + "/logs"))
      if (log.path().filename().string().starts_with("node-") &&
          read_file(log.path()).find("the supervisor is silent: dialing again") != std::string::npos)
        return true;
    return false;
  }));
  held.go_on();  // up to the next save, which needs the supervisor
  child->signal(SIGCONT);
  const Outcome o = child->wait(120);
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK(events_of(run, "restart").empty());
  CHECK(events_of(run, "node_lost").empty());
  CHECK(events_of(run, "supervisor_paused").size() >= 1);  // the machine may stop it, too
  CHECK(losses_of(run) == losses_of(bench.whole));
  CHECK(run_trainctl(bench.dir.path(), {"inspect-ckpt", run, "--diff", bench.whole}).status == 0);
}

TEST_CASE("an agent that stands still is replaced, and one whose folders vanish makes them again",
          "[fault]") {
  FaultBench bench;
  for (const bool stops : {false, true}) {
    std::vector<std::string> fields = {"-s", "fault_tolerance.max_restarts=2"};
    if (stops) fields.insert(fields.end(), kSilence.begin(), kSilence.end());
    const auto held = bench.hold(stops ? "stopped" : "emptied", 7, fields);
    const auto& [child, run, ranks] = held;
    const pid_t agent = agent_of(run);
    REQUIRE(agent > 0);
    if (stops) {
      REQUIRE(::kill(agent, SIGSTOP) == 0);
    } else {
      const std::vector<std::string> folders = scratch_of(agent);
      CHECK(folders.size() >= 2);
      for (const std::string& folder : folders) std::filesystem::remove_all(folder);
      REQUIRE(::kill(ranks[1], SIGKILL) == 0);
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
  const auto held = bench.hold("tight", 4, {"-s", "fault_tolerance.max_restarts=2"});
  const auto& [child, run, ranks] = held;
  const pid_t rank = ranks[0];
  const uint64_t pages = std::stoull(read_file(fmt::format("/proc/{}/statm", rank)));
  const rlimit limit{.rlim_cur = (pages + 1) * 4096, .rlim_max = (pages + 1) * 4096};
  REQUIRE(::prlimit(rank, RLIMIT_AS, &limit, nullptr) == 0);
  held.go_on();
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
  const auto held = bench.hold("full", 4, {"-s", "fault_tolerance.max_restarts=2"});
  const auto& [child, run, ranks] = held;
  const pid_t rank = ranks[0];
  // What it keeps to say so with is the last that it may have: the next file is one too many.
  rlim_t most = 0;
  for (const auto& fd : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", rank)))
    if (std::filesystem::read_symlink(fd.path()) == "/dev/null")
      most = std::max<rlim_t>(most, std::stoull(fd.path().filename()) + 1);
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  REQUIRE(::prlimit(rank, RLIMIT_NOFILE, &limit, nullptr) == 0);
  held.go_on();
  const Outcome o = child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  REQUIRE(events_of(run, "failure").size() == 1);
  CHECK(events_of(run, "failure").front()["cause"].text().find("descriptors ran out") != std::string::npos);
  CHECK(losses_of(run) == losses_of(bench.whole));
  CHECK(run_trainctl(bench.dir.path(), {"inspect-ckpt", run, "--diff", bench.whole}).status == 0);
}
