// Goal: the table of nodes tells an engineer on call which node is in trouble, fits any terminal, and stays
// short for thousands of nodes;
//       what a node has and uses comes from its agent unchanged; a folder that cannot be written is named.
// Method: made-up states at every width of a terminal; the facts of this machine; folders that refuse.
#include "runtime/observe/run_table.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "runtime/base/json.h"
#include "runtime/machine/node_facts.h"
#include "runtime/observe/status.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using Catch::Contains;

namespace {

constexpr double kNow = 1000;

RunStatus some_run(int nodes) {
  RunStatus s;
  s.run_id = "r", s.state = RunState::running, s.updated_unix_s = kNow, s.total_steps = 10;
  for (int n = 0; n < nodes; ++n) {
    NodeStatus node{.name = "node" + std::to_string(n),
                    .state = NodeState::running,
                    .first = 2 * n,
                    .count = 2,
                    .heard_unix_s = kNow - 0.2,
                    .since_unix_s = kNow - 65};
    node.facts = {.cores = 8,
                  .memory_bytes = 64ull << 30,
                  .shared_memory_bytes = 32ull << 30,
                  .scratch_free_bytes = 5'000'000'000,
                  .gpus = {{"NVIDIA H200", 8, 141ull << 30}}};
    node.usage = {.memory_used_bytes = 16ull << 30, .hottest_c = 61};
    s.nodes.push_back(node);
    for (int r = 0; r < 2; ++r)
      s.ranks.push_back(
          {.rank = 2 * n + r,
           .phase = RankPhase::present,
           .host = node.name,
           .activity = Activity{.phase = RunPhase::forward, .step = 5, .micro_batch = 0, .virtual_stage = 0},
           .heard_unix_s = kNow});
  }
  return s;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace

TEST_CASE("the table has a row for each node and its columns stand below each other") {
  RunStatus s = some_run(3);
  s.nodes[1].state = NodeState::lost, s.nodes[1].reason = "silent for 2.0 s", s.nodes[1].count = 0;
  s.nodes[2].usage.hottest_c.reset();
  s.ranks[4].stopped = true;
  CHECK(joined(node_table(s, kNow, {})) ==
        "name   ranks  state    since  heard   gpu             memory  doing\n"
        "node0  0-1    running  1m 5s     0s  61°C  25 % of 64.00 GiB  step 5: forward of micro-batch 0, "
        "virtual stage 0\n"
        "node1  -      lost     1m 5s     0s  61°C  25 % of 64.00 GiB  silent for 2.0 s\n"
        "node2  4-5    running  1m 5s     0s     -  25 % of 64.00 GiB  rank 4 is stopped (by SIGSTOP or a "
        "debugger)\n");
  for (NodeStatus& node : s.nodes) node.usage = {}, node.facts = {};
  CHECK_THAT(node_table(s, kNow, {})[0], !Contains("gpu") && !Contains("memory"));
  s.nodes.clear();
  CHECK(node_table(s, kNow, {}).empty());
}

TEST_CASE("no row is wider than the terminal, and name and state are the last to go") {
  RunStatus s = some_run(4);
  s.nodes[3].state = NodeState::quarantined;
  for (int columns = 1; columns <= 150; ++columns) {
    CAPTURE(columns);
    for (const std::string& line : node_table(s, kNow, {.columns = columns}))
      REQUIRE(columns_of(line) <= columns);
    if (columns >= 20)
      CHECK_THAT(node_table(s, kNow, {.columns = columns})[4], Contains("node3") && Contains("quarantined"));
  }
  CHECK(cut_to("61°C", 4) == "61°C");
  CHECK(cut_to("61°C", 3) == "61…");
}

TEST_CASE("of many nodes those in trouble are shown and the rest is counted") {
  RunStatus s = some_run(2000);
  s.nodes[1234].state = NodeState::lost, s.nodes[1234].reason = "the connection was closed";
  s.nodes[777].heard_unix_s = kNow - 5;
  for (int n = 1990; n < 2000; ++n) s.nodes[size_t(n)].state = NodeState::spare, s.nodes[size_t(n)].count = 0;
  const auto lines = node_table(s, kNow, {.most_nodes = 10, .color = true});
  REQUIRE(lines.size() == 12);
  CHECK_THAT(lines[1], Contains("\033[33mnode777 "));
  CHECK_THAT(lines[2], Contains("\033[31mnode1234") && Contains("the connection was closed"));
  CHECK(lines[11] == "and 1980 running, 10 spare (--json has all)");
  CHECK(machine_lines(s) ==
        std::vector<std::string>{
            "node0, node1, node2, node3 and 1996 more: 8 cores, 64.00 GiB, 8 x NVIDIA H200 "
            "141.00 GiB, /dev/shm 32.00 GiB, /tmp 5.00 GB free"});
}

TEST_CASE("a clock that is apart is named, others are not") {
  RunStatus s = some_run(2);
  s.nodes[0].clock_offset_s = 0.4;
  s.nodes[1].clock_offset_s = -7.25;
  const auto lines = machine_lines(s);
  REQUIRE(lines.size() == 2);
  CHECK(lines[1] == "node1: its clock is 7.2 s behind the supervisor's; set it by NTP");
}

TEST_CASE("events read as sentences, and what concerns the program alone is left out") {
  const std::vector<std::string> lines = {
      R"({"kind":"supervisor","pid":3,"t":0,"v":1})",
      R"({"kind":"checkpoint","step":5,"seconds":1,"t":0,"v":1})",
      R"({"kind":"node_lost","node":"node2","reason":"silent for 2.0 s","epoch":1,"t":1,"v":1})",
      R"({"kind":"recovered","cause":"rank","ending_s":0.05,"deciding_s":0.01,"starting_s":0.3,)"
      R"("first_step_s":0.2,"seconds":0.56,"t":2,"v":1})",
      "torn",
      R"({"kind":"unheard_of","who":"x","list":[1],"t":3,"v":1})",
      R"({"kind":5})"};
  const auto texts = event_lines({lines.begin(), lines.end() - 1}, 9);
  REQUIRE(texts.size() == 3);
  CHECK_THAT(texts[0], Contains("node_lost    node2: silent for 2.0 s"));
  CHECK_THAT(
      texts[1],
      Contains(
          "0.56 s after the first evidence: ending 0.05, deciding 0.01, starting 0.30, first step 0.20"));
  CHECK_THAT(texts[2], Contains("unheard_of   who=x"));
  CHECK(event_lines({lines.begin(), lines.end() - 1}, 2).size() == 2);
  CHECK(event_lines(lines, 9) == texts);  // what is no event hides no other
}

TEST_CASE("a screen drawn in place never wraps, and status.json carries what the table shows") {
  RunStatus s = some_run(40);
  s.reason = std::string(300, 'x');
  for (const int columns : {20, 60, 99, 100, 200}) {
    const std::string text = render_status(s, SupervisorState::alive, kNow, {.columns = columns, .rows = 24});
    CAPTURE(columns, text);
    for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
      REQUIRE(columns_of(text.substr(begin, text.find('\n', begin) - begin)) <= columns);
    CHECK(std::count(text.begin(), text.end(), '\n') <= 24);
  }
  s.nodes[0].clock_offset_s = 0.25;
  const RunStatus back = RunStatus::from_json(s.to_json());
  CHECK(back.to_json() == s.to_json());
  CHECK(back.nodes[0].facts.gpu_count() == 8);
  CHECK(back.nodes[0].usage.hottest_c == 61);
  CHECK(back.nodes[0].clock_offset_s == 0.25);
  CHECK_FALSE(back.nodes[1].clock_offset_s);
}

TEST_CASE("facts of this machine, as text and back") {
  const NodeFacts facts = node_facts(false);
  CHECK(facts.cores >= 1);
  CHECK(facts.memory_bytes > memory_used_here());
  CHECK(facts.shared_memory_bytes > 0);
  CHECK(facts.gpus.empty());
  CHECK(NodeFacts::from_json(facts.to_json()).to_json() == facts.to_json());
  for (const std::string damaged : {"", "[]", R"({"cores":"many"})", R"({"gpus":[1]})"}) {
    CHECK(NodeFacts::from_json(damaged).cores == 0);
    CHECK_FALSE(NodeUsage::from_json(damaged).hottest_c);
  }
}

TEST_CASE("a folder that cannot be written is named with the reason") {
  const test::TemporaryFolder dir;
  CHECK(folders_problem({"/tmp", dir.path()}).is_none());
  CHECK(real_file_system().list(dir.path()).empty());
  CHECK(folders_problem({"/tmp", dir.path() + "/none", dir.path()}).text() ==
        "cannot write " + dir.path() +
            "/none: No such file or directory; make room or repair it, or leave the node out");
  CHECK_THAT(folders_problem({"/proc"}).text(), Contains("cannot write /proc: "));
}
