// Goal: a run on several nodes is traced from any of them: one file with the ranks of all nodes, each with
// the name of its node, on one clock with a stated error; a node that is lost meanwhile ends the trace with
// its name, and the run goes on and can be traced again.
// Method: 8 ranks on four fake nodes of one machine, whose monotonic clocks are in truth one clock: each
// offset that was found must be within the error that is stated, and no message may arrive before it was
// sent.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "runtime/base/json.h"
#include "test/cluster/cluster_run.h"

using trainctl::Json;
using namespace trainctl::test;
using Catch::Contains;

namespace {

struct NodeTrace {
  std::map<int, std::string> processes;
  std::map<int64_t, std::pair<double, double>> flows;  ///< by id: sent and arrived
  Json other;
};

NodeTrace read_trace(const std::string& path) {
  NodeTrace trace;
  const Json all = Json::parse(read_file(path));
  trace.other = all.at("otherData");
  for (const Json& e : all.at("traceEvents")) {
    if (e.at("ph") == "M" && e.at("name") == "process_name")
      trace.processes[e.at("pid")] = e.at("args").at("name");
    if (e.at("ph") == "s") trace.flows[e.at("id")].first = e.at("ts");
    if (e.at("ph") == "f") trace.flows[e.at("id")].second = e.at("ts");
  }
  return trace;
}

}  // namespace

TEST_CASE("a run on several nodes is traced from one of them", "[trace][cluster_run]") {
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.steps = 20000, .silence_s = 4});
  run.launch();
  run.await_step(12);
  const std::string file = run.path() + "/t.json";
  const auto trace_from = [&](int node, const std::string& steps) {
    return nodes.run(node, {program(), "--json", "trace", run.path(), "--steps", steps, "--out", file}, 60);
  };
  const Outcome o = trace_from(2, "3");
  INFO(o.err << run.story());
  REQUIRE(o.status == 0);
  const Json summary = Json::parse(o.out);
  CHECK(summary.at("ranks").size() == 8);
  CHECK(summary.at("last_step").get<int64_t>() - summary.at("first_step").get<int64_t>() == 2);
  const NodeTrace trace = read_trace(file);
  std::map<std::string, int> ranks_of;
  for (int rank = 0; rank < 8; ++rank) {
    const std::string name = trace.processes.at(rank);
    ++ranks_of[name.substr(name.rfind(' ') + 1)];
  }
  CHECK(ranks_of.size() == 4);
  for (const auto& [node, count] : ranks_of) CHECK(count == 2);
  // All nodes have one clock in truth.
  REQUIRE(trace.other.at("clocks").size() == 4);
  double errors_us = 0;
  for (const Json& clock : trace.other.at("clocks"))
    for (const char* when : {"before", "after"}) {
      INFO(clock.dump());
      const double offset_us = clock.at(when).at("offset_us"), error_us = clock.at(when).at("error_us");
      CHECK(error_us > 0);
      CHECK(std::abs(offset_us) <= error_us + 0.01);
      errors_us = std::max(errors_us, error_us);
    }
  CHECK(trace.other.at("alignment_error_us").get<double>() <= 2 * errors_us + 0.01);
  CHECK(trace.other.at("alignment_error_us").get<double>() > 0);
  // TP2 x PP2 x DP2: 4 pipelines with messages both ways.
  CHECK(trace.flows.size() == summary.at("flows"));
  CHECK(trace.flows.size() > 0);
  for (const auto& [id, ends] : trace.flows) CHECK(ends.first <= ends.second);

  // A node that is lost while it records; a spare takes its place.
  Child cut(nodes.exec(1, {program(), "trace", run.path(), "--steps", "1000"}));
  REQUIRE(eventually(120, [&] {
    if (!std::filesystem::exists(run.path() + "/trace")) return false;
    for (const auto& entry : std::filesystem::directory_iterator(run.path() + "/trace"))
      if (std::filesystem::exists(entry.path() / "answer.json")) return true;
    return false;
  }));
  int lost = -1;
  for (const int node : run.members())
    if (node != 1) lost = node;
  REQUIRE(lost > 0);
  nodes.crash(lost);
  const Outcome broken = cut.wait(40);
  INFO(broken.err);
  CHECK(broken.status == 10);
  CHECK_THAT(broken.err, Contains("was not traced: attempt 1 failed (" + nodes.host(lost)) &&
                             Contains("while 8 ranks recorded; nothing was kept"));
  for (const auto& entry : std::filesystem::directory_iterator(run.path() + "/trace"))
    CHECK(entry.path().filename() == "last.json");  // the summary of the trace before
  run.await_event("recovered");
  const Outcome again = trace_from(1, "2");
  INFO(again.err);
  CHECK(again.status == 0);
  CHECK(Json::parse(again.out).at("epoch") == 2);
  CHECK(read_trace(file).processes.at(0).find(nodes.host(lost)) == std::string::npos);
  run.supervisor().signal(SIGINT);
  CHECK(run.finish().status == 75);
  run.check_nothing_left();
}
