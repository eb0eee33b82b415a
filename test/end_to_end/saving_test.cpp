// Goal: a run saves, verifies and resumes on file systems that refuse what a local one does: the flag of renameat2, the sync of a
// folder, flock. A full disk at the last save costs time, not the weights.
// Method: the real program with a preloaded library that refuses those calls below one folder with the errno of network file
// systems; what it refused is counted. Losses and checkpoints are compared bit for bit with those of an undisturbed run.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <optional>

#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Contains;

namespace {

/// A folder that refuses calls, with a job of two ranks in it.
struct Refusing {
  TemporaryFolder dir;
  std::vector<std::string> environment;

  explicit Refusing(const std::string& refused) {
    write_file(dir.path() + "/job.json", tiny_spec("tiny"));
    const std::string library = std::filesystem::path(trainctl_path()).parent_path().string() +
                                "/test/support/refusing_calls/librefusing_calls.so";
    REQUIRE(std::filesystem::exists(library));
    environment = {"LD_PRELOAD=" + library, "TRAINCTL_TEST_REFUSED=" + refused,
                   "TRAINCTL_TEST_REFUSED_FOLDER=" + std::filesystem::canonical(dir.path()).string()};
  }
  Outcome run(const std::vector<std::string>& arguments) { return run_trainctl(dir.path(), arguments, 120, environment); }
  std::string refused() { return read_file(dir.path() + "/refused"); }
  std::string run_folder() { return dir.path() + "/runs/r"; }
};

std::vector<std::string> launch_saving(std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"launch", "job.json", "-s", "observability.run_id=r", "-s", "parallelism.data=1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string refuse_all(int reason) {
  const std::string number = std::to_string(reason);
  return "renameat2=" + number + ",fsync=" + number + ",flock=" + number;
}

}  // namespace

TEST_CASE("a run saves, verifies and resumes where renameat2, folder syncs and flock are refused", "[saving]") {
  Refusing whole("");
  REQUIRE(whole.run(launch_saving()).status == 0);
  for (const int reason : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    Refusing fs(refuse_all(reason));
    CAPTURE(reason);
    const Outcome first = fs.run(launch_saving({"--max-steps", "8"}));
    INFO(first.err);
    REQUIRE(first.status == 0);
    CHECK_THAT(first.err, Contains("checkpoint step 8") && Contains("has no flock"));
    for (const char* call : {"renameat2", "fsync", "flock"}) CHECK_THAT(fs.refused(), Contains(call));
    const Outcome verified = fs.run({"inspect-ckpt", "runs/r", "--verify"});
    INFO(verified.out << verified.err);
    CHECK(verified.status == 0);
    const Outcome resumed = fs.run({"resume", "r"});
    INFO(resumed.err);
    REQUIRE(resumed.status == 0);
    CHECK(losses_of(fs.run_folder()) == losses_of(whole.run_folder()));
    CHECK(fs.run({"inspect-ckpt", "runs/r", "--diff", whole.run_folder()}).status == 0);
    CHECK_FALSE(std::filesystem::exists(std::filesystem::symlink_status(fs.run_folder() + "/supervisor.owner")));
  }
}

TEST_CASE("without flock a run still has one supervisor, and a dead one gives way", "[saving]") {
  Refusing fs(refuse_all(ENOSYS));
  std::vector<std::string> words = launch_saving();
  words.insert(words.begin(), trainctl_path());
  std::vector<std::string> environment = fs.environment;
  environment.push_back(stop_variable({{.rank = 0, .step = 3}}));
  Child child(words, fs.dir.path(), environment);
  const pid_t rank = await_stopped_rank(child, fs.run_folder(), 2, 0)[0];
  const pid_t pid = child.pid();
  child.signal(SIGSTOP);
  const Outcome second = fs.run({"resume", "r"});
  INFO(second.err);
  CHECK(second.status == 2);
  CHECK_THAT(second.err, Contains("is running already (supervisor pid " + std::to_string(pid)));
  child.signal(SIGKILL);
  child.wait(120);
  const std::string link = fs.run_folder() + "/supervisor.owner";
  CHECK(std::filesystem::is_symlink(link));

  // The owner on another machine cannot be seen: a person decides.
  const std::string dead = std::filesystem::read_symlink(link).string();
  std::filesystem::remove(link);
  std::filesystem::create_symlink("7 7 another-boot pid:[1] far-away", link);
  const Outcome foreign = fs.run({"resume", "r"});
  INFO(foreign.err);
  CHECK(foreign.status == 5);
  CHECK_THAT(foreign.err, Contains("far-away") && Contains("remove " + link));
  // `stop` from here would leave a request in the run directory and wait for that supervisor.
  CHECK_THAT(fs.run({"status", "r"}).out, Contains("run        r"));
  std::filesystem::remove(link);
  std::filesystem::create_symlink(dead, link);

  REQUIRE(::kill(rank, SIGCONT) == 0);  // the agent of the dead supervisor waits for another one
  const Outcome resumed = fs.run({"resume", "r"});
  INFO(resumed.err);
  CHECK(resumed.status == 0);
  CHECK(losses_of(fs.run_folder()).size() == 20);
}

TEST_CASE("a checkpoint folder that cannot be saved to is found before anything starts", "[saving]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("tiny"));
  write_file(dir.path() + "/file", "");
  const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "-s", "checkpoint.dir=" + dir.path() + "/file/ckpt"});
  INFO(o.err);
  CHECK(o.status == 5);
  CHECK_THAT(o.err, Contains("cannot be made or written to") && Contains("checkpoint.dir=DIR"));
}

TEST_CASE("a disk too small for the checkpoints is found before anything starts", "[saving]") {
  Refusing fs("");
  write_file(fs.dir.path() + "/small", "");
  const Outcome o = fs.run(launch_saving());
  INFO(o.err);
  CHECK(o.status == 5);
  CHECK_THAT(o.err, Contains("the checkpoints of this run need") && Contains("65.5 kB are free") && Contains("checkpoint.keep_last"));
  CHECK_FALSE(std::filesystem::exists(fs.run_folder() + "/run.json"));
}

namespace {

/// A run whose disk is full from step 5 on, in its attempts at the last save.
struct FullDisk {
  Refusing fs{""};
  std::optional<Child> child;

  FullDisk() {
    const std::string dir = std::filesystem::canonical(fs.dir.path()).string();
    std::vector<std::string> words =
        launch_saving({"-s", "checkpoint.every_steps=0", "-s", "checkpoint.dir=" + dir + "/ckpt"});
    words.insert(words.begin(), trainctl_path());
    std::vector<std::string> environment = fs.environment;
    environment.push_back(stop_variable({{.rank = 1, .step = 5}}));
    child.emplace(words, fs.dir.path(), environment);
    const pid_t rank = await_stopped_rank(*child, fs.run_folder(), 2, 1)[1];
    write_file(dir + "/full", "");
    REQUIRE(::kill(rank, SIGCONT) == 0);
    REQUIRE(eventually(60, [&] { return read_file(fs.run_folder() + "/events.jsonl").find("save_retry") != std::string::npos; }));
  }
};

}  // namespace

TEST_CASE("a last save that fails is tried again until there is room", "[saving]") {
  FullDisk full;
  std::filesystem::remove(full.fs.dir.path() + "/full");
  const Outcome o = full.child->wait(60);
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK_THAT(o.err, Contains("No space left on device") && Contains("attempt 2 at the last save") && Contains("checkpoint step 20 "));
  CHECK(full.fs.run({"inspect-ckpt", "runs/r", "--verify"}).status == 0);
}

TEST_CASE("a disk that is full when a run starts again is waited for", "[saving]") {
  Refusing whole(""), fs("");
  REQUIRE(whole.run(launch_saving()).status == 0);
  std::string line = "exec " + trainctl_path();
  for (const std::string& word : launch_saving({"-s", "fault_tolerance.max_restarts=3"})) line += " " + word;
  std::vector<std::string> environment = fs.environment;
  environment.push_back("TRAINCTL_STOP_AT=1:forward:10");
  Child child({"bash", "-c", line + " 2> said"}, fs.dir.path(), environment);
  REQUIRE(eventually(
      60, [&] { return !child.running() || line_count(fs.run_folder() + "/metrics.jsonl") >= 9; }));
  const pid_t rank = rank_pids(fs.run_folder(), 2).at(1);
  REQUIRE(eventually(60, [&] { return rank_stopped(rank); }));
  write_file(fs.dir / "full-runs", "");
  REQUIRE(::kill(rank, SIGKILL) == 0);
  CHECK(eventually(60, [&] {
    return !child.running() ||
           read_file(fs.dir / "said").find("waiting until the run can be written") != std::string::npos;
  }));
  REQUIRE(child.running());
  std::filesystem::remove(fs.dir / "full-runs");
  CHECK(child.wait(120).status == 0);
  INFO(read_file(fs.dir / "said"));
  CHECK(losses_of(fs.run_folder()) == losses_of(whole.run_folder()));
}

TEST_CASE("a last save that fails is given up when the run is asked to stop", "[saving]") {
  FullDisk full;
  full.child->signal(SIGTERM);
  const Outcome o = full.child->wait(60);
  INFO(o.err);
  CHECK(o.status == 7);
  CHECK_THAT(o.err, Contains("the last save, of step 20, failed") && Contains("No space left on device"));
}

TEST_CASE("a run folder that is removed while the run goes on is no success", "[saving]") {
  FullDisk full;
  std::filesystem::remove_all(full.fs.run_folder());
  std::filesystem::remove(full.fs.dir.path() + "/full");
  const Outcome o = full.child->wait(60);
  INFO(o.err);
  CHECK(o.status == 5);
  CHECK_THAT(o.err, Contains("was removed while the run was going"));
}

TEST_CASE("going back sets checkpoints aside, says so and shows them", "[saving]") {
  Refusing fs("");
  REQUIRE(fs.run(launch_saving({"-s", "checkpoint.keep_last=9"})).status == 0);
  const Outcome back = fs.run({"resume", "r", "--step", "12", "--max-steps", "16"});
  INFO(back.err);
  REQUIRE(back.status == 0);
  CHECK_THAT(back.err, Contains("2 checkpoints beyond step 12") && Contains("removed once 9 new ones are saved"));
  const std::string aside = "2 checkpoints (steps 16 to 20)";
  CHECK_THAT(fs.run({"status", "r"}).out, Contains(aside) && Contains("superseded-e2"));
  CHECK_THAT(fs.run({"inspect-ckpt", "runs/r"}).out, Contains(aside));
  CHECK_THAT(fs.run({"inspect-ckpt", "runs/r", "--json"}).out, Contains("\"steps\":[20,16]"));
}

TEST_CASE("file errors of commands are no crashes, and a damaged status is not the end", "[saving]") {
  Refusing fs("");
  REQUIRE(fs.run(launch_saving({"--max-steps", "4"})).status == 0);
  std::filesystem::create_symlink("loop.json", fs.dir.path() + "/loop.json");
  for (const auto& [words, says] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"validate", "loop.json"}, "loop.json"}, {{"init", "-o", "/nonexist/x.json"}, "/nonexist/x.json"}}) {
    const Outcome o = fs.run(words);
    INFO(o.err);
    CHECK(o.status == 5);
    CHECK_THAT(o.err, Contains(says));
  }
  const Outcome full = Child({"sh", "-c", "'" + trainctl_path() + "' plan job.json > /dev/full"}, fs.dir.path()).wait(60);
  INFO(full.err);
  CHECK(full.status == 5);
  CHECK_THAT(full.err, Contains("cannot be written to stdout") && Contains("No space left on device"));

  write_file(fs.run_folder() + "/status.json", "{\"v\":1,\n\x01garbage");
  for (const char* command : {"status", "diagnose"}) {
    const Outcome o = fs.run({command, "r"});
    INFO(o.out << o.err);
    CHECK(o.status == 0);
    CHECK_THAT(o.err, Contains("status.json is damaged") && Contains("events, metrics and checkpoints"));
    CHECK_THAT(o.out, Contains("step") && Contains("4"));
  }
  // What is done without the status says that it is damaged, and is done.
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"logs", "r"}, {"logs", "r", "--rank", "0"}, {"logs", "r", "--tail", "3"}}) {
    const Outcome o = fs.run(words);
    INFO(o.out << o.err);
    CHECK(o.status == 0);
    CHECK_THAT(o.err, Contains("warning: status.json is damaged"));
    CHECK_THAT(o.out, Contains(" | "));
  }
  CHECK_THAT(fs.run({"logs", "r", "--rank", "7"}).err, Contains("has the ranks 0 to 1"));
  CHECK(fs.run({"resume", "r", "--max-steps", "8"}).status == 0);
  write_file(fs.run_folder() + "/status.json", "[]");
  CHECK(fs.run({"rm", "r", "--yes"}).status == 0);
  CHECK_FALSE(std::filesystem::exists(fs.run_folder()));
}
