// Goal: a rank that computes wrongly, or whose memory loses a bit, is found and named while the run goes
// on; the run goes back to a state of which nothing is doubted, and ends with the bits of an undisturbed
// one. What was wrong only in a check changes nothing. Method: whole runs of replicas; a rank flips a bit
// at a known step (TRAINCTL_FLIP_AT). Nodes are agents of this machine that a script starts in place of a
// remote shell: one of them has a broken device.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "test/end_to_end/fault_bench.h"
#include "test/end_to_end/own_nodes.h"

using namespace trainctl::test;
using Catch::Matchers::Contains;
using trainctl::Json;

namespace {

/// Three replicas, a checkpoint every 2 steps, of which one is kept, and a check every 4.
std::vector<std::string> replica_words(const std::string& name, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"launch", "job.json"};
  for (const char* field : {"parallelism.data=3", "parallelism.pipeline=1", "checkpoint.every_steps=2",
                            "checkpoint.keep_last=1", "observability.replay_every_steps=4"})
    words.insert(words.end(), {"-s", field});
  for (const std::string& field : more) words.insert(words.end(), {"-s", field});
  words.insert(words.end(), {"-s", "name=" + name});
  return words;
}

std::string flip_variable(const std::string& text) { return "TRAINCTL_FLIP_AT=" + text; }

/// From which step each attempt began.
std::vector<int64_t> begun_from(const std::string& run) {
  std::vector<int64_t> steps;
  for (const Json& start : events_of(run, "start")) steps.push_back(start["from_step"].get<int64_t>());
  return steps;
}

/// Where the second attempt began: with the newest state that is not doubted and was saved. A slow disk may
/// have left a save out.
int64_t went_back_to(const std::string& run, int64_t newest) {
  const std::vector<int64_t> begun = begun_from(run);
  REQUIRE(begun.size() == 2);
  CHECK(begun[0] == 0);
  CHECK(begun[1] <= newest);
  return begun[1];
}

/// The steps behind which all replicas agreed, and how many there were.
using Agreed = std::vector<std::pair<int64_t, int>>;
Agreed agreed_steps(const std::string& run) {
  Agreed agreed;
  std::istringstream lines(read_file(run + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    if (const Json step = Json::parse(line); step.contains("replayed"))
      agreed.emplace_back(step["step"].get<int64_t>(), step["replayed"].get<int>());
  return agreed;
}

/// The same for the first epochs of a run.
std::string in_each_epoch(const std::string& text) {
  std::string all = text;
  for (int epoch = 2; epoch <= 5; ++epoch) all += ";" + text;
  return flip_variable(all);
}

/// Its products are wrong from step 5 on: the check behind step 4 agrees, that behind step 8 does not.
const std::string kWrongFrom5 = in_each_epoch("1::5:products");

void check_found_behind_8(const std::string& run, const std::string& answer) {
  const std::vector<Json> differ = events_of(run, "replay_differs");
  REQUIRE(differ.size() == 1);
  CHECK(differ[0]["step"] == 8);
  CHECK(differ[0]["answer"] == answer);
  CHECK(differ[0]["ranks"] == Json{1});
}

}  // namespace

TEST_CASE("a rank that computes wrongly is named, its node put out, and what it trained is trained again",
          "[wrong_node]") {
  const FaultBench bench;
  // Each is this machine.
  const std::vector<std::string> nodes = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};
  const std::string shell = write_shell(bench.dir.path(), nodes[1], kWrongFrom5);
  struct Row {
    int replicas;
    const char* found;
  };
  for (const Row& row : {Row{3, "rank 1 computed wrongly each time, by the results of 3 replicas"},
                         // Products with known bits decide.
                         Row{2, "rank 1 differed from 1 replica, and computes products wrongly"}}) {
    CAPTURE(row.replicas);
    const std::string name = fmt::format("of{}", row.replicas), list = bench.dir / (name + ".json");
    std::string hosts;
    for (int i = 0; i < row.replicas; ++i)
      hosts += fmt::format("{}\"{}:1\"", i == 0 ? "" : ",", nodes[size_t(i)]);
    const Outcome o = run_trainctl(
        bench.dir.path(),
        replica_words(name, {fmt::format("parallelism.data={}", row.replicas),
                             fmt::format("launcher.hosts=[{}]", hosts), "launcher.shell=" + shell}),
        300, {"TRAINCTL_QUARANTINE=" + list});
    INFO(o.err);
    REQUIRE(o.status == 0);
    const std::string run = run_of(bench.dir.path(), name);
    check_found_behind_8(run, "put_out");
    CHECK_THAT(o.err, Contains(row.found) &&
                          Contains("going back to a state of step 4 or before: all replicas agreed then"));
    // The checkpoint of step 6 has what it made of the state; that of step 4 was kept besides.
    const int64_t begun = went_back_to(run, 4);
    CHECK(events_of(run, "state_not_verified").empty());
    REQUIRE(events_of(run, "failure").size() == 1);
    CHECK(events_of(run, "failure")[0]["rank"] == 1);
    REQUIRE(events_of(run, "quarantine").size() == 1);
    CHECK(events_of(run, "quarantine")[0]["node"] == nodes[1]);
    CHECK_THAT(run_trainctl(bench.dir.path(), {"nodes", "--list", list}).out, Contains(nodes[1]));
    // Without a spare the others carry the run, one replica fewer.
    const int n = row.replicas;
    CHECK(agreed_steps(run) ==
          Agreed{{4, begun == 4 ? n : n - 1}, {8, n - 1}, {12, n - 1}, {16, n - 1}, {20, n - 1}});
    bench.check_like_whole(run);
    bench.require_nothing_left(run);
  }
}

TEST_CASE("with no other node the run fails by the wrong rank, and a resume goes on from before its work",
          "[wrong]") {
  const FaultBench bench;
  const Outcome o = run_trainctl(bench.dir.path(), replica_words("alone"), 300, {kWrongFrom5});
  INFO(o.err);
  CHECK(o.status == trainctl::exit_status(trainctl::ErrorCode::kDevice));
  CHECK_THAT(o.err, Contains("rank 1 computed wrongly each time"));
  const std::string run = run_of(bench.dir.path(), "alone");
  check_found_behind_8(run, "put_out");
  const Outcome resumed = run_trainctl(bench.dir.path(), {"resume", run});
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  went_back_to(run, 4);
  CHECK(agreed_steps(run) == Agreed{{4, 3}, {8, 3}, {12, 3}, {16, 3}, {20, 3}});
  bench.check_like_whole(run);
}

TEST_CASE("what was wrong once, in a check, is an event and an alert and changes nothing", "[wrong]") {
  const FaultBench bench;
  const std::string alert =
      R"(observability.alerts.command=["/bin/sh","-c","echo \"$1\" >> alerts.txt","sh"])";
  const Outcome o = run_trainctl(bench.dir.path(),
                                 replica_words("once", {alert, R"(observability.alerts.on=["corruption"])"}),
                                 300, {flip_variable("1:evaluating:8:product")});
  INFO(o.err);
  REQUIRE(o.status == 0);
  const std::string run = run_of(bench.dir.path(), "once");
  const std::vector<Json> differ = events_of(run, "replay_differs");
  REQUIRE(differ.size() == 1);
  CHECK(differ[0]["step"] == 8);
  CHECK(differ[0]["answer"] == "go_on");
  CHECK(differ[0]["ranks"] == Json{1});
  CHECK(begun_from(run) == std::vector<int64_t>{0});
  CHECK(events_of(run, "failure").empty());
  CHECK(agreed_steps(run) == Agreed{{4, 3}, {12, 3}, {16, 3}, {20, 3}});
  const std::string alerts = read_file(bench.dir / "alerts.txt");
  CHECK(std::count(alerts.begin(), alerts.end(), '\n') == 1);
  CHECK_THAT(alerts, Contains("rank 1 computed wrongly once, and rightly the other time"));
  bench.check_like_whole(run);
}

TEST_CASE("a bit of a rank's moments that flips is found with the next update, and its rank is named",
          "[wrong]") {
  const FaultBench bench;
  for (const int zero : {0, 1}) {
    const std::string name = fmt::format("moment{}", zero);
    const Outcome o = run_trainctl(
        bench.dir.path(),
        replica_words(name, {fmt::format("parallelism.zero_stage={}", zero), "fault_tolerance.max_restarts=1",
                             "observability.state_digest_every_steps=1"}),
        300, {flip_variable("1:forward:8:moment")});
    INFO(o.err);
    REQUIRE(o.status == 0);
    const std::string run = run_of(bench.dir.path(), name);
    const std::vector<Json> failures = events_of(run, "failure");
    REQUIRE(failures.size() == 1);
    CHECK(failures[0]["rank"] == 1);
    CHECK_THAT(failures[0]["cause"].get<std::string>(),
               Contains("bits of the state of rank 1 changed between step 7 and the next one"));
    // No update has used it.
    went_back_to(run, 6);
    bench.check_like_whole(run);
  }
}

TEST_CASE("of two replicas whose states differ, the step that is computed again says which was wrong",
          "[wrong]") {
  const FaultBench bench;
  struct Row {
    const char* name;
    int wrong, pipeline;
    std::string flip;
  };
  for (const Row& row : {Row{"first", 0, 1, "0:forward:8:moment"}, Row{"second", 1, 1, "1:forward:8:moment"},
                         // A rank of the second stage.
                         Row{"stage", 3, 2, "3:forward:8:moment"}}) {
    CAPTURE(row.name);
    // States are digested behind each save and behind step 8: nothing looks at what the moments are between.
    const Outcome o = run_trainctl(
        bench.dir.path(),
        replica_words(row.name, {"parallelism.data=2", fmt::format("parallelism.pipeline={}", row.pipeline),
                                 "parallelism.zero_stage=0", "checkpoint.every_steps=4",
                                 "checkpoint.memory=off", "observability.state_digest_every_steps=8",
                                 "observability.replay_every_steps=0", "fault_tolerance.max_restarts=1"}),
        300, {flip_variable(row.flip)});
    INFO(o.err);
    REQUIRE(o.status == 0);
    const std::string run = run_of(bench.dir.path(), row.name);
    const std::vector<Json> differ = events_of(run, "replicas_differ");
    REQUIRE(differ.size() == 1);
    CHECK(differ[0]["step"] == 8);
    CHECK(differ[0]["replicas"].size() == 2);
    CHECK_THAT(differ[0]["text"].get<std::string>(), Contains("have the same state"));
    REQUIRE(events_of(run, "failure").size() == 1);
    CHECK_THAT(events_of(run, "failure")[0]["cause"].get<std::string>(),
               Contains("held different bits after step 8"));
    went_back_to(run, 4);
    const std::vector<Json> judged = events_of(run, "replicas_judged");
    REQUIRE(judged.size() == 1);
    CHECK(judged[0]["step"] == 8);
    REQUIRE(judged[0]["wrong"].size() == 1);
    CHECK(judged[0]["wrong"][0]["rank"] == row.wrong);
    CHECK_THAT(o.err, Contains(fmt::format("step 8 was computed again: rank {} held other bits", row.wrong)));
    // What was saved is the state that the step gives.
    bench.check_like_whole(run);
  }
}

TEST_CASE("two replicas that differ again in the same way: it is said that nothing tells them apart",
          "[wrong]") {
  const FaultBench bench;
  const std::string flip = "1:forward:8:moment";
  const Outcome o = run_trainctl(
      bench.dir.path(),
      replica_words("again", {"parallelism.data=2", "parallelism.zero_stage=0", "checkpoint.every_steps=4",
                              "checkpoint.memory=off", "observability.state_digest_every_steps=8",
                              "observability.replay_every_steps=0", "fault_tolerance.max_restarts=2"}),
      300, {flip_variable(flip + ";" + flip)});
  INFO(o.err);
  REQUIRE(o.status == 0);
  const std::string run = run_of(bench.dir.path(), "again");
  CHECK(events_of(run, "failure").size() == 2);
  const std::vector<Json> judged = events_of(run, "replicas_judged");
  REQUIRE(judged.size() == 1);
  CHECK(judged[0]["wrong"].empty());
  CHECK_THAT(judged[0]["text"].get<std::string>(), Contains("which of them was wrong is not known"));
  bench.check_like_whole(run);
}
