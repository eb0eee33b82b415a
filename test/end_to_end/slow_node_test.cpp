// Goal: a node that computes longer than the others is named, with the reason, and a spare takes its place at
// a save: no step is lost, no failure counted, and the run ends with the bits of an undisturbed one. Its
// records divide the time. Method: a whole run on agents of this machine, whose ranks report times that are
// given (TRAINCTL_TIMES_AT), so that neither a slow nor a busy machine decides what is slow. A rank holds
// the run behind the steps that suffice, until the others have heard that they are to save.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "runtime/supervise/decide/quarantine.h"
#include "test/end_to_end/fault_bench.h"
#include "test/end_to_end/own_nodes.h"

using namespace trainctl::test;
using Catch::Matchers::Contains;
using trainctl::Json;

namespace {

/// Two judgements, of which the second comes eight steps and 12 s of steps behind the first, are over long
/// before step 44.
constexpr int kHeldStep = 44;

std::string longer_spec() {
  std::string spec = tiny_spec("tiny");
  const std::string steps = "\"total_steps\": 20";
  spec.replace(spec.find(steps), steps.size(), "\"total_steps\": 48");
  return spec;
}

/// What of an attempt's steps that count was waited for a slower rank.
double waited_share(const Json& attempt) {
  const Json& seconds = attempt.at("seconds");
  const double waited = seconds.value("stragglers", 0.0);
  return waited / (waited + seconds.value("training", 0.0));
}

}  // namespace

TEST_CASE("a node that computes longer is named, and a spare takes its place at a save", "[slow_node]") {
  const FaultBench bench(longer_spec());
  const std::string slow = "127.0.0.2", spare = "127.0.0.4", list = bench.dir / "list.json";
  const std::string shell = write_shell(bench.dir.path(), slow, "TRAINCTL_TIMES_AT=1.5:0", spare);
  std::vector<std::string> words;
  for (const std::string& field :
       {std::string("parallelism.data=3"), std::string("parallelism.pipeline=1"),
        std::string(R"(launcher.hosts=["127.0.0.1:1","127.0.0.2:1","127.0.0.3:1","127.0.0.4:1"])"),
        "launcher.shell=" + shell, std::string("fault_tolerance.slow_nodes=swap"),
        std::string("fault_tolerance.max_restarts=0"), std::string("observability.log_every_steps=1")})
    words.insert(words.end(), {"-s", field});
  const auto child = bench.start("slow", 1, words,
                                 {"TRAINCTL_TIMES_AT=1:0.5", stop_variable({{.rank = 0, .step = kHeldStep}}),
                                  "TRAINCTL_QUARANTINE=" + list});
  const std::string run = run_of(bench.dir.path(), "slow");
  write_file(bench.dir / "go", "");  // the first attempt has the others
  // On a slow machine the spare's turn comes before that step.
  std::vector<pid_t> ranks;
  const auto is_held = [&] { return ranks.size() == 3 && rank_stopped(ranks[0]); };
  REQUIRE(eventually(120, [&] {
    ranks = rank_pids(run, 3);
    return is_held() || !events_of(run, "restart").empty() || !child->running();
  }));
  if (is_held()) {
    await_stop_heard(*child, run, 3, 0);
    REQUIRE(::kill(ranks[0], SIGCONT) == 0);
  }
  const Outcome o = child->wait(300);
  INFO(o.err);
  REQUIRE(o.status == 0);

  const std::vector<Json> found = events_of(run, "slow_ranks"), swapped = events_of(run, "slow_node");
  REQUIRE(found.size() == 1);
  CHECK(found[0].at("cause") == "compute");
  CHECK(found[0].at("node") == slow);
  CHECK(found[0].at("ranks") == Json{1});
  CHECK(found[0].at("share") == 0.5);
  CHECK(events_of(run, "slow_ranks_over").empty());
  // An event before it may say that there is no spare yet.
  REQUIRE_FALSE(swapped.empty());
  CHECK(swapped.back().at("node") == slow);
  CHECK(swapped.back().at("left_out") == true);
  CHECK_THAT(swapped.back().at("text").get<std::string>(),
             Contains("its ranks compute 50 % longer than others; a spare takes its place after a save"));
  CHECK(events_of(run, "regroup").size() == 1);
  CHECK(events_of(run, "failure").empty());
  const std::vector<Json> restarts = events_of(run, "restart");
  REQUIRE(restarts.size() == 1);
  CHECK(restarts[0].at("nodes") == Json{"127.0.0.1", spare, "127.0.0.3"});
  CHECK(restarts[0].at("lost_steps") == 0);
  const auto entries = trainctl::QuarantineList::from_json(read_file(list)).entries();
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].node == slow);
  CHECK(entries[0].evidence.at(0).kind == trainctl::NodeEvidence::slow);

  const Outcome status = run_trainctl(bench.dir.path(), {"status", run, "--json"});
  INFO(status.out << status.err);
  REQUIRE(status.status == 0);
  const Json body = Json::parse(status.out);
  CHECK(body.at("restarts") == 0);
  const Json attempts = body.at("time").at("attempts");
  REQUIRE(attempts.size() == 2);
  CHECK(body.at("time").at("lost_steps") == 0);
  CHECK(waited_share(attempts[0]) > 0);
  CHECK(waited_share(attempts[1]) == 0);
  bench.check_like_whole(run);
  bench.require_nothing_left(run);
}

TEST_CASE("where no spare is there, a slow stage has fewer layers after a save", "[slow_node]") {
  const FaultBench bench(longer_spec());
  const std::string slow = "127.0.0.2";  // one of the three ranks of the first stage
  const std::string shell = write_shell(bench.dir.path(), slow, "TRAINCTL_TIMES_AT=3:0");
  std::string hosts;
  for (int i = 1; i <= 6; ++i) hosts += fmt::format("{}\"127.0.0.{}:1\"", i > 1 ? "," : "", i);
  std::vector<std::string> words;
  for (const std::string& field :
       {std::string("parallelism.data=3"), std::string("parallelism.pipeline=2"),
        "launcher.hosts=[" + hosts + "]", "launcher.shell=" + shell,
        std::string("fault_tolerance.slow_nodes=rebalance"), std::string("fault_tolerance.max_restarts=0"),
        std::string("observability.log_every_steps=1")})
    words.insert(words.end(), {"-s", field});
  const auto child = bench.start(
      "slow", 1, words, {"TRAINCTL_TIMES_AT=1:0.5", stop_variable({{.rank = 0, .step = kHeldStep}})});
  const std::string run = run_of(bench.dir.path(), "slow");
  std::vector<pid_t> ranks;
  const auto is_held = [&] { return ranks.size() == 6 && rank_stopped(ranks[0]); };
  REQUIRE(eventually(120, [&] {
    ranks = rank_pids(run, 6);
    return is_held() || !events_of(run, "restart").empty() || !child->running();
  }));
  if (is_held()) {
    await_stop_heard(*child, run, 6, 0);
    REQUIRE(::kill(ranks[0], SIGCONT) == 0);
  }
  const Outcome o = child->wait(300);
  INFO(o.err);
  REQUIRE(o.status == 0);
  const std::vector<Json> found = events_of(run, "slow_node"), restarts = events_of(run, "restart");
  REQUIRE(found.size() == 1);
  CHECK(found[0].at("node") == slow);
  CHECK(found[0].at("left_out") == false);
  CHECK_THAT(found[0].at("text").get<std::string>(),
             Contains("no spare is there: stages get 1, 3 layers after a save"));
  REQUIRE(restarts.size() == 1);
  CHECK(restarts[0].at("lost_steps") == 0);
  CHECK(restarts[0].at("nodes").size() == 6);
  CHECK(events_of(run, "failure").empty());
  bench.check_like_whole(run);
  bench.require_nothing_left(run);
}
