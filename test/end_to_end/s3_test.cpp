// Goal: a run whose checkpoints are copied to an S3 store outlives the loss of everything on its machine, and
// the store's own death costs one alarm and no step; a store that cannot be used is refused in one sentence
// before any rank starts. Method: the real program with moto's server on loopback, which the test ends and
// starts again; bits are compared with those of an undisturbed run.
#include <fmt/format.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>

#include "runtime/base/json.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/environment.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/s3_server.h"
#include "test/support/temporary_folder.h"

using trainctl::Json;
using namespace trainctl::test;
using Catch::Contains;

namespace {

constexpr const char* kRunsBucket = "trained";

struct S3Bench {
  TemporaryFolder dir;
  S3Server server{dir.path()};
  const std::string folder = std::filesystem::canonical(dir.path()).string(), run = folder + "/runs/r";
  const std::vector<std::string> settings;  ///< of every launch
  std::string whole;                        ///< the undisturbed run

  explicit S3Bench(std::vector<std::string> given = {}) : settings(std::move(given)) {
    write_file(folder + "/job.json", tiny_spec("tiny"));
    server.make_bucket(kRunsBucket);
    const Outcome o = run_trainctl(folder, launch("whole", {}));
    INFO(o.err);
    REQUIRE(o.status == 0);
    whole = folder + "/runs/whole";
  }

  std::vector<std::string> launch(const std::string& id, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"launch", "job.json", "-s", "observability.run_id=" + id};
    for (const auto* list : {&settings, &more})
      for (const std::string& word : *list) words.insert(words.end(), {"-s", word});
    return words;
  }
  Outcome with_store(std::vector<std::string> words) const {
    return run_trainctl(folder, std::move(words), 120, server.access());
  }

  /// Starts run r, which is copied to the store; rank 1 stops itself in `step`.
  std::unique_ptr<Child> start_and_stop_in(int step, std::vector<std::string> more) const {
    more.push_back(fmt::format("checkpoint.store=s3://{}/copies", kRunsBucket));
    std::vector<std::string> words = launch("r", more), environment = server.access();
    words.insert(words.begin(), trainctl_path());
    environment.push_back(fmt::format("TRAINCTL_STOP_AT=1:forward:{}", step));
    auto child = std::make_unique<Child>(words, folder, environment);
    REQUIRE(eventually(60, [&] {
      const std::vector<pid_t> pids = rank_pids(run, 4);
      return line_count(run + "/metrics.jsonl") >= step - 1 && pids.size() == 4 && rank_stopped(pids[1]);
    }));
    return child;
  }

  Json status() const {
    return Json::parse(run_trainctl(folder, {"status", "r", "--json"}).out);
  }
  /// -1: none.
  int64_t newest_copied() const {
    const auto copied = events_of(run, "checkpoint_uploaded");
    return copied.empty() ? -1 : copied.back()["step"].get<int64_t>();
  }
  /// The files of the run, and what its commands print, that hold a credential or a signature.
  std::vector<std::string> leaks(const std::vector<std::string>& printed) const {
    std::vector<std::string> found;
    const auto look = [&](const std::string& what, const std::string& text) {
      for (const char* part : {S3Server::kSecret, S3Server::kKey, "AWS4-HMAC-SHA256", "Signature="})
        if (text.find(part) != std::string::npos) found.push_back(what + ": " + part);
    };
    size_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run))
      if (entry.is_regular_file()) ++files, look(entry.path(), read_file(entry.path()));
    CHECK(files > 10);
    for (const std::string& text : printed) look("output", text);
    for (const std::string command : {"status", "diagnose"})
      look(command, with_store({command, "r", "--json"}).out);
    return found;
  }
  void require_same() const {
    CHECK(losses_of(run) == losses_of(whole));
    const Outcome diff = run_trainctl(folder, {"inspect-ckpt", run, "--diff", whole});
    INFO(diff.out << diff.err);
    CHECK(diff.status == 0);
    const Outcome stored =
        with_store({"inspect-ckpt", fmt::format("s3://{}/copies/r", kRunsBucket), "--diff", whole});
    INFO(stored.out << stored.err);
    CHECK(stored.status == 0);
  }
};

}  // namespace

TEST_CASE("a machine that lost all processes, its memory and its disk goes on from the store", "[.][s3]") {
  const S3Bench bench;
  auto child = bench.start_and_stop_in(14, {"checkpoint.memory=on"});
  // A save that came while the one before was written is left out: the newest that was written counts.
  Json status;
  REQUIRE(eventually(30, [&] {
    status = bench.status();
    return status["saved_step"] >= 4 && status.value("uploaded_step", -1) == status["saved_step"];
  }));
  child->signal(SIGKILL);
  child->wait(120);
  REQUIRE(eventually(
      120, [&] { return trainctl::signal_marked(trainctl::kRunVariable, bench.run, SIGKILL) == 0; }));
  const std::string memory = memory_of(bench.run);
  REQUIRE(memory != "");
  std::filesystem::remove_all(memory);
  std::filesystem::remove_all(bench.run + "/ckpt");

  const Outcome resumed = bench.with_store({"resume", "r"});
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  const std::string step = status["uploaded_step"].dump();
  CHECK_THAT(resumed.err,
             Contains("copying checkpoint step " + step + " ") && Contains("every hash matches"));
  CHECK(loads_of(bench.run) == std::vector<std::string>{"store " + step});
  CHECK(events_of(bench.run, "start").back()["tier"] == "store");
  CHECK(bench.status()["uploaded_step"] == 20);
  CHECK(bench.leaks({resumed.out, resumed.err}) == std::vector<std::string>{});
  bench.require_same();
}

TEST_CASE("ranks that outlived their supervisor go on, and a lost checkpoint comes back", "[.][s3]") {
  const S3Bench bench;
  // The ranks are there as long as a slow machine takes to copy a checkpoint.
  auto child = bench.start_and_stop_in(
      14, {"fault_tolerance.heartbeat_seconds=120", "fault_tolerance.grace_seconds=1200"});
  REQUIRE(eventually(30, [&] { return bench.newest_copied() == 12; }));
  child->signal(SIGKILL);
  child->wait(120);
  std::filesystem::remove_all(bench.run + "/ckpt");
  // Until the supervisor has found the ranks: they would have done the rest without one.
  const pid_t rank = rank_pids(bench.run, 4)[1];
  Child resume({"/bin/sh", "-c", trainctl_path() + " resume r 2> resumed.txt"}, bench.folder,
               bench.server.access());
  const auto said = [&] { return read_file(bench.folder + "/resumed.txt"); };
  REQUIRE(eventually(
      60, [&] { return said().find("attaching to them") != std::string::npos || !resume.running(); }));
  REQUIRE(::kill(rank, SIGCONT) == 0);
  const Outcome resumed = resume.wait(120);
  INFO(said());
  REQUIRE(resumed.status == 0);
  CHECK_THAT(said(), Contains("copying checkpoint step 12 ") && Contains("attaching to them"));
  CHECK(loads_of(bench.run).empty());
  bench.require_same();
}

TEST_CASE("a store that dies costs one alarm, and gets its copies when it is back", "[.][s3]") {
  constexpr int kStop = 50, kOn = 100;
  S3Bench bench({"schedule.total_steps=300", "checkpoint.every_steps=20"});
  // A stopped rank is no hang for five heartbeats.
  auto child = bench.start_and_stop_in(kStop, {"fault_tolerance.heartbeat_seconds=30"});
  REQUIRE(eventually(30, [&] { return bench.newest_copied() == 40; }));
  bench.server.end();
  const pid_t rank = rank_pids(bench.run, 4)[1];
  REQUIRE(::kill(rank, SIGCONT) == 0);
  REQUIRE(eventually(60, [&] { return line_count(bench.run + "/metrics.jsonl") >= kOn; }));
  // Training went on; what follows takes the time of the retries, in which it need not burn the cores.
  REQUIRE(::kill(rank, SIGSTOP) == 0);
  REQUIRE(eventually(90, [&] { return !events_of(bench.run, "upload_failed").empty(); }));
  const Json alarm = events_of(bench.run, "upload_failed")[0];
  CHECK(alarm["wait_s"] == 5);
  CHECK_THAT(alarm["reason"].get<std::string>(), Contains("no answer from " + bench.server.endpoint()));
  CHECK(bench.newest_copied() == 40);

  bench.server.start_again();
  bench.server.make_bucket(kRunsBucket);
  CHECK(eventually(90, [&] { return bench.newest_copied() >= kOn - 20; }));  // saved before the second stop
  REQUIRE(::kill(rank, SIGCONT) == 0);
  const Outcome o = child->wait(90);
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK(events_of(bench.run, "upload_failed").size() == 1);
  CHECK_THAT(o.err, Contains("training goes on and it is tried again") && Contains(", after failures"));
  CHECK(bench.newest_copied() == 300);
  CHECK(bench.leaks({o.out, o.err}) == std::vector<std::string>{});
  bench.require_same();
}

namespace {

/// A launch with a store that cannot be used: the one error that says why.
std::string refusal(const std::string& folder, const std::string& store,
                    const std::vector<std::string>& environment) {
  const std::string run = folder + "/runs/refused";
  const Outcome o = run_trainctl(folder,
                                 {"launch", "job.json", "-s", "observability.run_id=refused", "-s",
                                  "checkpoint.store=" + store},
                                 60, environment);
  INFO(o.err);
  CHECK(o.status == 5);
  CHECK_FALSE(std::filesystem::exists(run + "/attempt.json"));  // no rank was to be started
  CHECK(o.err.find(S3Server::kSecret) == std::string::npos);
  const size_t line = o.err.find("error");
  REQUIRE(line != std::string::npos);
  for (const char* another : {"error[", "error:"}) CHECK(o.err.find(another, line + 1) == std::string::npos);
  return o.err.substr(line);
}

}  // namespace

TEST_CASE("a store that cannot be used is refused in one sentence before a rank starts", "[.][s3]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("tiny"));
  S3Server server(dir.path());
  CHECK_THAT(refusal(dir.path(), "s3://absent/x", server.access()),
             Contains("there is no bucket absent at " + server.endpoint()) && Contains("make the bucket"));
  CHECK_THAT(refusal(dir.path(), "s3://absent/x",
                     {"AWS_ENDPOINT_URL=" + server.endpoint(), "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=",
                      "AWS_SHARED_CREDENTIALS_FILE=" + dir.path() + "/none"}),
             Contains("there are no credentials") && Contains("set AWS_ACCESS_KEY_ID") &&
                 Contains(dir.path() + "/none"));
  server.end();
  CHECK_THAT(refusal(dir.path(), "s3://absent/x", server.access()),
             Contains("no answer from " + server.endpoint()) && Contains("check AWS_ENDPOINT_URL"));
  const S3Server strict(dir.path(), {"INITIAL_NO_AUTH_ACTION_COUNT=0"});
  CHECK_THAT(refusal(dir.path(), "s3://absent/x", strict.access()),
             Contains("403") && Contains("check the credentials"));
}
