// Goal: a loss that leaves its level is found, people hear of it, and a run that goes back for it never
// trains the samples of the bad steps and all others once, with the same bits on every mesh, after kill -9
// at any moment of it and after any resume. Method: the real program on a tiny language in which some
// steps' tokens are noise. The undisturbed run is one whose file lacks these tokens: what is left out must
// be as if it had never been there.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/environment.h"
#include "test/end_to_end/program.h"
#include "test/support/hook_server.h"
#include "test/support/json_schema.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Contains;
using trainctl::Json;
using Words = std::vector<std::string>;

namespace {

constexpr size_t kStepTokens = 8 * 32;

void write_tokens(const std::string& path, const std::vector<uint16_t>& tokens) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), std::streamsize(tokens.size() * 2));
}

/// A language of sixteen words, which is learned within a few steps.
std::vector<uint16_t> plain_tokens(size_t count, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<uint16_t> tokens(count);
  for (uint16_t& token : tokens) token = uint16_t(random() % 16);
  return tokens;
}

void spoil(std::vector<uint16_t>& tokens, size_t first, size_t end) {
  std::mt19937_64 random(first + 7);
  for (size_t i = first; i < end; ++i) tokens[i] = uint16_t(16 + random() % 240);
}

std::string spec_of(const std::string& train, int steps, const std::string& more = "") {
  return fmt::format(R"({{"version": 1, "name": "watched", "model": {{"preset": "llama-tiny"}},
  "data": {{"train": {}, "seq_len": 32{}}},
  "batch": {{"global_sequences": 8, "micro_sequences": 1}},
  "schedule": {{"total_steps": {}, "warmup_steps": 4, "lr": 3e-3, "min_lr": 3e-4, "type": "cosine"}},
  "parallelism": {{"world_size": "auto", "data": 2, "lanes": 4}},
  "checkpoint": {{"every_steps": 5, "chunk_mib": 0.01, "memory": "off"}},
  "observability": {{"loss_monitor": {{"window": 16, "diverged_steps": 8}}}}}}
)",
                     train, more, steps);
}

/// A job of 55 steps, some of which are bad, and one whose file lacks them.
struct Watched {
  const TemporaryFolder dir;
  std::string whole;  ///< a run of the second

  explicit Watched(const std::vector<size_t>& bad_steps) {
    constexpr int kSteps = 55;
    std::vector<uint16_t> tokens = plain_tokens((kSteps + 10) * kStepTokens + 1), cut;
    for (const size_t step : bad_steps) spoil(tokens, (step - 1) * kStepTokens, step * kStepTokens);
    // A target of the step before: the same as without the bad step, also where two follow each other.
    for (auto step = bad_steps.rbegin(); step != bad_steps.rend(); ++step)
      tokens[(*step - 1) * kStepTokens] = tokens[*step * kStepTokens];
    for (size_t i = 0; i < tokens.size(); ++i)
      if (std::find(bad_steps.begin(), bad_steps.end(), i / kStepTokens + 1) == bad_steps.end())
        cut.push_back(tokens[i]);
    write_tokens(dir.path() + "/tokens.bin", tokens);
    write_tokens(dir.path() + "/cut.bin", cut);
    for (const char* name : {"tokens", "cut"})
      write_file(dir.path() + "/" + name + ".json",
                 spec_of(fmt::format(R"([{{"path": "{}.bin", "format": "raw", "dtype": "uint16"}}])", name),
                         kSteps, R"(, "shuffle": false)"));
    REQUIRE(launch("cut", "whole", {"observability.loss_monitor.policy=off"}).status == 0);
    whole = dir.path() + "/runs/whole";
  }

  Words words(const std::string& job, const std::string& id, const Words& sets) const {
    Words all = {"launch", job + ".json", "-s", "observability.run_id=" + id};
    for (const std::string& s : sets) all.insert(all.end(), {"-s", s});
    return all;
  }
  Outcome launch(const std::string& job, const std::string& id, const Words& sets) const {
    return run_trainctl(dir.path(), words(job, id, sets));
  }
  std::string run(const std::string& id) const { return dir.path() + "/runs/" + id; }
  void check_like_whole(const std::string& id) const {
    CHECK(losses_of(run(id)) == losses_of(whole));
    const Outcome diff = run_trainctl(dir.path(), {"inspect-ckpt", run(id), "--diff", whole});
    INFO(diff.out << diff.err);
    CHECK(diff.status == 0);
  }
};

const std::string kSkip = "observability.loss_monitor.policy=skip";

}  // namespace

TEST_CASE("a spike is an event, a line of the status, a mark of the report, and one alert", "[loss]") {
  const Watched watched({40});
  const std::string alert =
      R"(observability.alerts.command=["/bin/sh","-c","echo \"$1\" >> alerts.txt","sh"])";
  const Outcome o = watched.launch("tokens", "w", {alert, R"(observability.alerts.on=["spike"])"});
  INFO(o.err);
  REQUIRE(o.status == 0);
  const auto spikes = events_of(watched.run("w"), "loss_spike");
  REQUIRE(spikes.size() == 1);
  CHECK(spikes[0]["first"] == 40);
  CHECK(spikes[0]["last"] == 40);
  CHECK_THAT(o.err, Contains("the loss rose to"));
  const Outcome status = run_trainctl(watched.dir.path(), {"status", "w"});
  CHECK_THAT(status.out, Contains("trouble    the loss rose to") && Contains("in step 40"));
  const Outcome report = run_trainctl(watched.dir.path(), {"--json", "report", "w"});
  CHECK_THAT(report.out, Contains("\"loss_spike\""));
  const std::string alerts = read_file(watched.dir.path() + "/alerts.txt");
  CHECK(std::count(alerts.begin(), alerts.end(), '\n') == 1);
  CHECK_THAT(alerts, Contains("run w: the loss rose to") && Contains("look: trainctl diagnose w"));
  CHECK(events_of(watched.run("w"), "alert_sent").size() == 1);
  // To watch changes nothing.
  REQUIRE(watched.launch("tokens", "off", {"observability.loss_monitor.policy=off"}).status == 0);
  CHECK(losses_of(watched.run("w")) == losses_of(watched.run("off")));
}

TEST_CASE("the samples of a spike are never trained and all others once, on every mesh", "[rollback]") {
  const Watched watched({40, 41});
  int n = 0;
  for (const Words& mesh : std::vector<Words>{{},
                                              {"parallelism.data=1", "parallelism.pipeline=2"},
                                              {"parallelism.data=3", "parallelism.zero_stage=0"}}) {
    Words sets = mesh;
    sets.push_back(kSkip);
    const std::string id = fmt::format("m{}", n++);
    const Outcome o = watched.launch("tokens", id, sets);
    INFO(o.err);
    REQUIRE(o.status == 0);
    watched.check_like_whole(id);
    REQUIRE(events_of(watched.run(id), "loss_rollback").size() == 1);
    CHECK(events_of(watched.run(id), "loss_rollback")[0]["skipped"] ==
          Json({{"first", 39 * 8}, {"count", 16}}));
    CHECK(events_of(watched.run(id), "failure").empty());
  }
  const Outcome spikes = run_trainctl(watched.dir.path(), {"--json", "data", "spikes", "m0"});
  INFO(spikes.err);
  CHECK(result_error(spikes.out, "data-spikes") == "");
  const Json found = Json::parse(spikes.out);
  CHECK(found["skipped_samples"] == 16);
  CHECK(found["skipped"][0]["sample"] == 39 * 8);
  CHECK(found["skipped"][0]["token"] == 39 * kStepTokens);
  const Outcome status = run_trainctl(watched.dir.path(), {"status", "m0"});
  CHECK_THAT(status.out, Contains("rollbacks  1 for the loss · 16 samples left out"));
  // A branch from behind it, with nothing of the run's records but the checkpoint.
  const Outcome branch = run_trainctl(watched.dir.path(), {"launch", "tokens.json", "--from", "m0@45", "-s",
                                                           "observability.run_id=b", "-s", kSkip});
  INFO(branch.err);
  REQUIRE(branch.status == 0);
  watched.check_like_whole("m0");
  const std::vector<double> all = losses_of(watched.whole);
  std::vector<double> of_branch;
  std::istringstream lines(read_file(watched.run("b") + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    of_branch.push_back(Json::parse(line)["loss"].get<double>());
  CHECK(of_branch == std::vector<double>(all.begin() + 45, all.end()));
}

TEST_CASE("steps behind a rollback are computed again with what was decided", "[loss]") {
  const Watched watched({40});
  REQUIRE(watched.launch("tokens", "r", {kSkip, "checkpoint.keep_last=20"}).status == 0);
  // The checkpoint of step 35 is older than the decision.
  const Outcome o = run_trainctl(watched.dir.path(), {"verify", "r", "--step", "40"});
  INFO(o.out << o.err);
  CHECK(o.status == 0);
  CHECK_THAT(o.out, Contains("identical, bit for bit: steps 36 to 40"));
}

TEST_CASE("kill -9 in the middle of going back, and a second spike meanwhile, change no bit", "[rollback]") {
  const Watched watched({40, 43});
  for (const bool everything : {false, true})
    for (int delay_ms : {0, 60, 300}) {
      const std::string id = fmt::format("{}{}", everything ? "all" : "one", delay_ms);
      CAPTURE(id);
      Words words = watched.words("tokens", id, {kSkip});
      words.insert(words.begin(), trainctl_path());
      Child child(words, watched.dir.path());
      REQUIRE(eventually(
          60, [&] { return !child.running() || std::filesystem::exists(watched.run(id) + "/loss.json"); }));
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      if (everything) trainctl::signal_marked(trainctl::kRunVariable, watched.run(id), SIGKILL);
      child.signal(SIGKILL);
      child.wait(30);
      const Outcome o = run_trainctl(watched.dir.path(), {"resume", id, "-s", "parallelism.data=2"});
      INFO(o.err);
      REQUIRE(o.status == 0);
      watched.check_like_whole(id);
      CHECK(Json::parse(read_file(watched.run(id) + "/loss.json"))["decisions"].size() == 2);
    }
}

TEST_CASE("a run that was stopped behind a spike goes on with what it decided", "[loss]") {
  const Watched watched({40});
  const Outcome first = run_trainctl(
      watched.dir.path(),
      {"launch", "tokens.json", "-s", "observability.run_id=r", "-s", kSkip, "--max-steps", "45"});
  INFO(first.err);
  REQUIRE(first.status == 0);
  REQUIRE(events_of(watched.run("r"), "loss_rollback").size() == 1);
  const Outcome second = run_trainctl(watched.dir.path(), {"resume", "r", "-s", "parallelism.data=1", "-s",
                                                           "observability.loss_monitor.policy=off"});
  INFO(second.err);
  REQUIRE(second.status == 0);
  watched.check_like_whole("r");
}

TEST_CASE("a run that has gone back often enough stops and names the cause", "[loss]") {
  const Watched watched({40, 43});
  const Outcome o = watched.launch("tokens", "r", {kSkip, "observability.loss_monitor.max_rollbacks=1"});
  CHECK(o.status == trainctl::exit_status(trainctl::ErrorCode::kDiverged));
  CHECK_THAT(
      o.err,
      Contains("the run has gone back for its loss 1 time (observability.loss_monitor.max_rollbacks)"));
  const Outcome status = run_trainctl(watched.dir.path(), {"--json", "status", "r"});
  CHECK(Json::parse(status.out)["state"] == "failed");
  CHECK(result_error(status.out, "status") == "");
  // A higher limit, and it goes on to the bits of the run without both.
  const Outcome resumed =
      run_trainctl(watched.dir.path(), {"resume", "r", "-s", "observability.loss_monitor.max_rollbacks=5"});
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  watched.check_like_whole("r");
}

TEST_CASE("a lower rate begins with the spike, is recorded, and survives a resume on another mesh",
          "[loss]") {
  const Watched watched({40});
  const Words lower = {"observability.loss_monitor.policy=lower_rate",
                       "observability.loss_monitor.lead_steps=3", "observability.loss_monitor.rate_steps=8"};
  const Outcome o = watched.launch("tokens", "r", lower);
  INFO(o.err);
  REQUIRE(o.status == 0);
  REQUIRE(watched.launch("tokens", "plain", {"observability.loss_monitor.policy=off"}).status == 0);
  const auto rates = [&](const std::string& id) {
    std::vector<double> list;
    std::istringstream lines(read_file(watched.run(id) + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) list.push_back(Json::parse(line)["lr"].get<double>());
    return list;
  };
  const std::vector<double> now = rates("r"), plain = rates("plain");
  REQUIRE(now.size() == 55);
  // The bad step is there again: among steps of a lower rate it is no reason to go back once more.
  CHECK(Json::parse(read_file(watched.run("r") + "/loss.json"))["decisions"].size() == 1);
  for (size_t i = 0; i < plain.size(); ++i) CHECK(now[i] == (i >= 36 && i < 44 ? plain[i] * 0.5 : plain[i]));
  // The same from the middle on, on another mesh.
  Words words = watched.words("tokens", "cut-off", lower);
  words.insert(words.end(), {"--max-steps", "42"});
  REQUIRE(run_trainctl(watched.dir.path(), words).status == 0);
  const Outcome resumed = run_trainctl(
      watched.dir.path(), {"resume", "cut-off", "-s", "parallelism.data=1", "-s", "parallelism.pipeline=2"});
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  CHECK(losses_of(watched.run("cut-off")) == losses_of(watched.run("r")));
}

TEST_CASE("the one corrupt file of a mixture is named", "[loss]") {
  const TemporaryFolder dir;
  write_tokens(dir.path() + "/books.bin", plain_tokens(200 * kStepTokens, 1));
  for (int shard = 0; shard < 8; ++shard) {
    std::vector<uint16_t> tokens = plain_tokens(16 * kStepTokens, uint64_t(2 + shard));
    if (shard == 5) spoil(tokens, 0, tokens.size());
    write_tokens(fmt::format("{}/web-{:03}.bin", dir.path(), shard), tokens);
  }
  write_file(
      dir.path() + "/job.json",
      spec_of(R"([{"path": "books.bin", "format": "raw", "dtype": "uint16", "weight": 0.9, "name": "books"},
  {"path": "web-*.bin", "format": "raw", "dtype": "uint16", "weight": 0.1, "name": "web"}])",
              160, R"(, "shuffle": true)"));
  const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=mix", "-s",
                                              "parallelism.data=1", "-s", "checkpoint.every_steps=0"});
  INFO(o.err);
  REQUIRE(o.status == 0);
  const Outcome found = run_trainctl(dir.path(), {"--json", "data", "spikes", "mix"});
  INFO(found.out << found.err);
  REQUIRE(result_error(found.out, "data-spikes") == "");
  const Json result = Json::parse(found.out);
  REQUIRE(result.contains("blamed"));
  CHECK(result["blamed"]["source"] == "web");
  CHECK_THAT(result["blamed"]["file"].get<std::string>(), Contains("web-005.bin"));
  CHECK(result["spikes"].size() >= 4);
  const Outcome shown = run_trainctl(dir.path(), {"data", "spikes", "mix"});
  CHECK_THAT(shown.out, Contains("spikes read source web, web-005.bin, which"));
}

TEST_CASE("a webhook hears of the end; one that never answers costs a line in the events", "[alerts]") {
  const Watched watched({40});
  const HookServer hook, hanging(HookServer::Answers::never);
  const std::string finished = R"(observability.alerts.on=["finished"])";
  const Outcome alerted = watched.launch(
      "cut", "t",
      {"observability.alerts.webhook=" + hook.url(), finished, "observability.alerts.timeout_seconds=600"});
  INFO(alerted.err);
  CHECK(alerted.status == 0);
  REQUIRE(hook.bodies().size() == 1);
  CHECK(result_error(hook.bodies()[0], "alert") == "");
  const Json alert = Json::parse(hook.bodies()[0]);
  CHECK(alert["cause"] == "finished");
  CHECK(alert["run_id"] == "t");
  const Outcome hung =
      watched.launch("tokens", "h",
                     {"observability.alerts.webhook=" + hanging.url(),
                      "observability.alerts.timeout_seconds=0.2", "observability.alerts.tries=1"});
  INFO(hung.err);
  CHECK(hung.status == 0);
  const auto failed = events_of(watched.run("h"), "alert_failed");
  REQUIRE(failed.size() >= 2);  // the spike and the end
  CHECK_THAT(failed[0]["reason"].get<std::string>(), Contains("no answer from http://127.0.0.1:"));
  CHECK(events_of(watched.run("h"), "alert_sent").empty());
}

TEST_CASE("a rank that dies twice alerts once", "[alerts]") {
  const Watched watched({40});
  const std::string alert =
      R"(observability.alerts.command=["/bin/sh","-c","echo \"$1\" >> failures.txt","sh"])";
  Words words = watched.words(
      "cut", "f", {alert, R"(observability.alerts.on=["failure"])", "fault_tolerance.max_restarts=5"});
  words.insert(words.begin(), trainctl_path());
  Child child(words, watched.dir.path(), {stop_variable({{.rank = 0, .step = 8}, {.rank = 0, .step = 22}})});
  for (const int epoch : {1, 2})
    REQUIRE(::kill(await_stopped_rank(child, watched.run("f"), 2, 0, epoch)[0], SIGKILL) == 0);
  const Outcome o = child.wait(120);
  INFO(o.err);
  CHECK(o.status == 0);
  watched.check_like_whole("f");
  const std::string alerts = read_file(watched.dir.path() + "/failures.txt");
  INFO(alerts);
  CHECK(std::count(alerts.begin(), alerts.end(), '\n') == 1);
  CHECK(events_of(watched.run("f"), "failure").size() == 2);
  CHECK(events_of(watched.run("f"), "alert_sent").size() == 1);
}

TEST_CASE(
    "a spike of one source is found and named with its file, and every mesh has the same losses of sources",
    "[loss]") {
  const TemporaryFolder dir;
  const std::string folder = dir.path();
  constexpr size_t kSteps = 120, kBad = 100, kSourceTokens = kStepTokens / 2;
  write_tokens(folder + "/web.bin", plain_tokens((kSteps + 10) * kSourceTokens));
  // A file for the first half of the steps, one for the second.
  std::vector<uint16_t> plain(kSteps / 2 * kSourceTokens, 5), bad = plain;
  const size_t at = (kBad - 1 - kSteps / 2) * kSourceTokens + 40;
  bad[at] = 200, bad[at + 1] = 201;
  write_tokens(folder + "/code-1.bin", plain);
  write_tokens(folder + "/code-2.bin", bad);
  const char* const source = R"({{"path": "{}", "format": "raw", "dtype": "uint16", "name": "{}"}})";
  write_file(folder + "/job.json",
             spec_of(fmt::format("[{}, {}]", fmt::format(fmt::runtime(source), "web.bin", "web"),
                                 fmt::format(fmt::runtime(source), "code-*.bin", "code")),
                     kSteps - 2, R"(, "shuffle": false)"));
  const auto sources_of = [](const std::string& run) {
    std::string all;
    std::istringstream lines(read_file(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) all += Json::parse(line).at("sources").dump();
    return all;
  };
  int n = 0;
  for (const Words& mesh : std::vector<Words>{{}, {"parallelism.data=1", "parallelism.pipeline=2"}}) {
    const std::string id = fmt::format("s{}", n++), run = folder + "/runs/" + id;
    Words words = {"launch", "job.json", "-s", "observability.run_id=" + id};
    for (const std::string& field : mesh) words.insert(words.end(), {"-s", field});
    const Outcome o = run_trainctl(folder, words);
    INFO(o.err);
    REQUIRE(o.status == 0);
    CHECK(sources_of(run) == sources_of(folder + "/runs/s0"));
    std::vector<Json> spikes;
    for (const Json& spike : events_of(run, "loss_spike"))
      if (spike.contains("source")) spikes.push_back(spike);
    REQUIRE(spikes.size() == 1);
    CHECK(spikes[0]["source"] == "code");
    CHECK(spikes[0]["first"] == kBad);
    CHECK_THAT(o.err, Contains("the loss of source code rose to "));
    CHECK(events_of(run, "loss_rollback").empty());
    CHECK_THAT(run_trainctl(folder, {"status", id}).out, Contains("sources    web ") && Contains(" · code "));
    CHECK_THAT(run_trainctl(folder, {"data", "spikes", id}).out, Contains("; it read code-2.bin\n"));
  }
}
