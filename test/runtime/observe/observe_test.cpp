// Journals, the console, status and diagnosis.
//
// Goal: records stay whole lines whatever a crash does to them, each step stands once and in order, and the
// views say what the records hold. Method: files with damage put in by hand; views compared with the text
// expected.
#include <fcntl.h>
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cmath>

#include "runtime/base/json.h"
#include "runtime/base/units.h"
#include "runtime/observe/console.h"
#include "runtime/run/record/journal.h"
#include "runtime/observe/status.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::TemporaryFolder;

namespace {

std::string step_line(int64_t step) {
  return fmt::format(R"({{"v":1,"t":2.5,"step":{},"loss":{}}})", step, 1.0 / double(step));
}

}  // namespace

TEST_CASE("a journal cuts off the line that a crash has torn and goes on") {
  FileSystem& fs = real_file_system();
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  for (const std::string& torn : std::vector<std::string>{"", "{\"ste", "{\"step\":3}", std::string(10000, 'x')}) {
    if (fs.exists(path)) fs.remove_file(path);
    fs.write_new_text(path, "{\"step\":1}\n{\"step\":2}\n" + torn);
    {
      Journal journal(path);
      journal.append("{\"step\":3}");
      CHECK(journal.error().is_none());
    }
    CHECK(fs.read_text(path) == "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  }
  fs.remove_file(path);
  fs.write_new_text(path, "torn from the first line on");
  Journal(path).append("a");
  CHECK(fs.read_text(path) == "a\n");
}

TEST_CASE("a full disk is reported once and never thrown") {
  Journal journal("/dev/full");
  journal.append("x");
  journal.append("y");
  CHECK(journal.error().text().find("No space left") != std::string::npos);
}

TEST_CASE("going back to a checkpoint leaves each step once, in order, and loses no line") {
  FileSystem& fs = real_file_system();
  for (const int64_t back_to : {0, 1, 4, 7, 100}) {
    TemporaryFolder folder;
    const std::string metrics = folder / "metrics.jsonl", side = folder / "side.jsonl";
    std::string text;
    for (int64_t step = 1; step <= 7; ++step) text += step_line(step) + "\n";
    const std::string in_one = step_line(8) + step_line(9),
                      zeros = "{\"v\":1,\"step\":8," + std::string(9, '\0') + "}";
    fs.write_new_text(metrics, text + "damaged\n" + in_one + "\n" + zeros + "\n" + step_line(3) + "\n");
    const int64_t moved = supersede_metrics(fs, metrics, back_to, side);
    const int64_t kept = std::min<int64_t>(7, back_to);
    CHECK(moved == 11 - kept);
    const auto lines = lines_of(fs, metrics);
    REQUIRE(int64_t(lines.size()) == kept);
    for (int64_t i = 0; i < kept; ++i) CHECK(Json::parse(lines[size_t(i)])["step"] == i + 1);
    CHECK(int64_t(lines_of(fs, side).size()) == moved);
    CHECK(supersede_metrics(fs, metrics, back_to, side) == 0);
  }
  CHECK(supersede_metrics(fs, "/tmp/there-is-no-such-file", 3, "/tmp/nor-this") == 0);
}

TEST_CASE("an event carries kind and time, and its fields cannot replace them") {
  const Json line =
      Json::parse(event_line(12.5, EventKind::restart, R"({"from_step": 4, "kind": "forged"})"));
  CHECK(line == Json({{"v", 1}, {"t", 12.5}, {"kind", "restart"}, {"from_step", 4}}));
  CHECK(Json::parse(event_line(1, EventKind::change, "plain text"))["value"] == "plain text");
}

TEST_CASE("the tail of a log is its last lines") {
  FileSystem& fs = real_file_system();
  TemporaryFolder folder;
  const std::string path = folder / "log";
  fs.write_new_text(path, "a\nb\nc\n");
  CHECK(tail_of(path, 2) == "b\nc\n");
  CHECK(tail_of(path, 3) == "a\nb\nc\n");
  CHECK(tail_of(path, 9) == "a\nb\nc\n");
  CHECK(tail_of(folder / "none", 2).empty());
}

TEST_CASE("numbers and durations are short") {
  CHECK(short_number(412) == "412");
  CHECK(short_number(8123) == "8.12 k");
  CHECK(short_number(1.5e9) == "1.5 G");
  CHECK(short_number(NAN) == "-");
  CHECK(short_duration(8.2) == "8s");
  CHECK(short_duration(252) == "4m 12s");
  CHECK(short_duration(3600 * 53) == "2d 5h");
  CHECK(short_duration(INFINITY) == "-");
}

TEST_CASE("off a terminal the console writes one key=value line when a step is due") {
  std::string text;
  TerminalConsole console({.total_steps = 100, .write = [&](const std::string& t) { text += t; }});
  const StepLine view = step_view(
      R"({"step":100,"loss":7.902,"grad_norm":1.92,"lr":6.3e-05,"tokens_per_s":518000,"mfu":0.421,"step_s":8.11})");
  console.step(view, false, 0);
  CHECK(text.empty());
  console.step(view, true, 1767780672);
  CHECK(text ==
        "t=2026-01-07T10:11:12Z step=100 loss=7.9020 grad_norm=1.92 lr=6.3e-05 tok_s=518000 mfu=0.421 "
        "step_s=8.11\n");
  text.clear();
  console.step(step_view(R"({"step":101,"loss":null})"), true, 0);
  CHECK(text == "t=1970-01-01T00:00:00Z step=101\n");
}

TEST_CASE("on a terminal there are a table and one line that is redrawn, and notes do not tear it") {
  std::string text;
  TerminalConsole console({.terminal = true, .total_steps = 4, .write = [&](const std::string& t) { text += t; }});
  console.step(step_view(R"({"step":1,"loss":2.5,"step_s":0.5})"), true, 0);
  CHECK(text.find("    step     loss") == 0);
  CHECK(text.find("\r 1/4 [") != std::string::npos);
  text.clear();
  console.note(" ▸ checkpoint step 1");
  CHECK(text.find("\r\033[K ▸ checkpoint step 1\n\r 1/4 [") == 0);
  text.clear();
  console.say("failed");
  CHECK(text == "\r\033[Kfailed\n");
}

TEST_CASE("on a narrow terminal nothing is wider than its lines") {
  for (int columns = 1; columns <= 120; ++columns) {
    std::string text;
    TerminalConsole console({.terminal = true, .total_steps = 600, .columns = [&] { return columns; },
                     .write = [&](const std::string& t) { text += t; }});
    console.step(
        {.step = 150, .loss = 0.1667, .lr = 6.3e-05, .step_s = 0.5, .tokens_per_s = 518000, .mfu = 0.4}, true, 0);
    CAPTURE(columns, text);
    int width = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text.compare(i, 3, "\033[K") == 0) {
        i += 2;
      } else if (text[i] == '\n' || text[i] == '\r') {
        width = 0;
      } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
        REQUIRE(++width <= columns);
      }
    }
    if (columns == 40)
      CHECK(text.find("\r 150/600 [██      ]  loss 0.1667  eta -\033[K") != std::string::npos);
    if (columns == 90) CHECK(text.find("mfu   step_s    data       eta\n") != std::string::npos);
  }
}

TEST_CASE("the time left does not jump with one slow step") {
  std::string text;
  TerminalConsole console({.terminal = true, .total_steps = 1000, .write = [&](const std::string& t) { text += t; }});
  double now = 100;
  for (int step = 1; step <= 100; ++step) console.step({.step = step}, false, now += 1);
  text.clear();
  console.step({.step = 101}, false, now += 10);   // an evaluation
  CHECK(text.find("eta 16m 20s") != std::string::npos);   // 899 steps of 109 s / 100
}

TEST_CASE("a quiet console only says what went wrong") {
  std::string text;
  TerminalConsole console({.quiet = true, .write = [&](const std::string& t) { text += t; }});
  console.note("note");
  console.step(step_view(R"({"step":1})"), true, 0);
  console.say("said");
  CHECK(text == "said\n");
}

namespace {

RunStatus healthy() {
  RunStatus s;
  s.run_id = "tiny-1";
  s.directory = "/runs/tiny-1";
  s.state = RunState::running;
  s.epoch = 2;
  s.restarts = 1;
  s.step = 40;
  s.total_steps = 100;
  s.saved_step = 30;
  s.started_unix_s = 1000;
  s.updated_unix_s = 2000;
  s.step_unix_s = 1999;
  s.last_step = {.step = 40, .loss = 2.5, .step_s = 1.5, .tokens_per_s = 1000};
  for (int rank = 0; rank < 4; ++rank)
    s.ranks.push_back({.rank = rank, .pid = 100 + rank, .phase = RankPhase::present, .host = "h",
                       .activity = Activity{.phase = RunPhase::forward, .step = 41, .micro_batch = 1, .virtual_stage = 0},
                       .heard_unix_s = 1999.5});
  return s;
}

}  // namespace

TEST_CASE("speed stays on the line of progress and in the status between the steps that have it") {
  std::string text;
  TerminalConsole console(
      {.terminal = true, .total_steps = 4, .write = [&](const std::string& t) { text += t; }});
  console.step({.step = 1, .loss = 2, .step_s = 0.5, .tokens_per_s = 1000, .mfu = 0.25}, false, 10);
  text.clear();
  console.step({.step = 2, .loss = 1}, false, 11);
  CHECK(text.find("1 k tok/s  mfu 25.0 %") != std::string::npos);
  RunStatus s = healthy();
  s.last_step = {.step = 41, .loss = 2.5};
  CHECK(render_status(s, SupervisorState::alive, 2000).find("speed      - tokens/s") != std::string::npos);
  const StepLine timed = step_view(R"({"step":40,"step_s":1.5,"tokens_per_s":1000})");
  CHECK(
      render_status(s, SupervisorState::alive, 2000, {.timed_step = timed}).find("speed      1 k tokens/s") !=
      std::string::npos);
}

TEST_CASE("status.json returns what was written") {
  FileSystem& fs = real_file_system();
  TemporaryFolder folder;
  RunStatus s = healthy();
  write_status(fs, folder / "status.json", s);
  write_status(fs, folder / "status.json", s);
  const auto back = read_status(fs, folder / "status.json");
  REQUIRE(back);
  // Id and folder are those of the place where the file was found: the run may have been copied.
  s.directory = folder.path();
  s.run_id = folder.path().substr(folder.path().rfind('/') + 1);
  CHECK(back->to_json() == s.to_json());
  CHECK(fs.list(folder.path()) == std::vector<std::string>{"status.json"});
  CHECK_FALSE(read_status(fs, folder / "none"));
}

TEST_CASE("status is one screen that names the next command") {
  const std::string live = render_status(healthy(), SupervisorState::alive, 2001);
  CHECK(live.find("run        tiny-1 · running · attempt 2 · 1 restart\n") == 0);
  CHECK(live.find("step       40/100 (40.0 %) · 1.5 s/step · eta 1m 30s") != std::string::npos);
  CHECK(live.find("ranks      4 of 4 alive · updated 1s ago") != std::string::npos);
  CHECK(live.find("next       trainctl stop tiny-1") != std::string::npos);
  CHECK(render_status(healthy(), SupervisorState::alive, 2006).find("note       the supervisor wrote nothing for 6s") == 0);
  CHECK(render_status(healthy(), SupervisorState::stopped, 2006).find("note       the supervisor is stopped (SIGSTOP or ctrl-Z): all below is 6s old") == 0);
  CHECK(diagnose(healthy(), SupervisorState::stopped, 2006).verdict == "hang");
  const std::string dead = render_status(healthy(), SupervisorState::none, 2001);
  CHECK(dead.find("running when its supervisor died") != std::string::npos);
  CHECK(dead.find("next       trainctl resume tiny-1") != std::string::npos);
}

TEST_CASE("status shows how far the newest states have come, how often the run saves, and why") {
  RunStatus s = healthy();
  const auto shows = [&](const std::string& line, SupervisorState supervisor = SupervisorState::alive) {
    const std::string text = render_status(s, supervisor, 2001);
    INFO(text);
    CHECK(text.find("\n" + line + "\n") != std::string::npos);
  };
  shows("checkpoint step 30 written · none verified");
  s.staged_step = 39;
  shows("checkpoint step 39 in memory · 30 written · none verified");
  shows("checkpoint step 39 was in memory · 30 written · none verified", SupervisorState::none);
  s.partner_step = 36;
  s.partner_nodes = 4;
  shows("checkpoint step 39 in memory · 36 with second copies on 4 nodes · 30 written · none verified");
  shows(
      "checkpoint step 39 was in memory · 36 was with second copies on 4 nodes · 30 written · none verified",
      SupervisorState::none);
  CHECK(parse_json(s.to_json()).at("partner_step") == 36);
  CHECK(parse_json(s.to_json()).at("partner_nodes") == 4);
  s.partner_step = -1;
  CHECK_FALSE(parse_json(s.to_json()).contains("partner_nodes"));
  s.verified_step = 30;
  s.uploaded_step = 20;
  s.store = "s3://b/r";
  shows("checkpoint step 39 in memory · 30 written · 30 verified · 20 copied to s3://b/r");
  s.saved_step = s.verified_step = s.uploaded_step = -1;
  s.store.clear();
  shows("checkpoint step 39 in memory · none written yet");
  s.save_intervals = {{.reason = IntervalReason::write_time, .steps = 4, .interval_s = 8, .cost_s = 0.5, .mtbf_s = 7200}};
  shows("saves      every 4 steps (8 s), as long as a save takes: a save costs 0.5 s, one failure in 2h 0m; loses 0 %");
  s.save_intervals = {{.reason = IntervalReason::unmeasured, .interval_s = 600}};
  shows("saves      first save after 10m 0s; then from its measured cost");
  s.exit_code = 10;
  s.state = RunState::failed;
  shows("checkpoint step 39 was in memory · none written yet");
}

TEST_CASE("diagnosis: healthy, hang with the missing ranks, silence, start, a lost supervisor, an end") {
  CHECK(diagnose(healthy(), SupervisorState::alive, 2000).verdict == "healthy");
  CHECK(diagnose(healthy(), SupervisorState::none, 2000).verdict == "supervisor_lost");

  RunStatus hang = healthy();
  hang.step_unix_s = 1900;
  for (const int rank : {0, 1, 3}) {
    Activity& a = hang.ranks[size_t(rank)].activity.emplace();
    a = {.kind = Activity::waiting, .phase = RunPhase::reducing_gradients, .step = 41, .communicator = "dp", .operation = "reduce"};
    a.add_peer(2);
  }
  const Diagnosis d = diagnose(hang, SupervisorState::alive, 2000);
  CHECK(d.verdict == "hang");
  CHECK(d.summary == "no step for 1m 40s (usually 1.5 s): rank 2 keeps ranks 0-1,3 waiting in reduce (dp)");
  CHECK(d.details == std::vector<std::string>{"rank 2: step 41: forward of micro-batch 1, virtual stage 0",
                                              "ranks 0-1,3: step 41: reducing gradients, waiting in reduce"});

  RunStatus evaluating = hang;
  evaluating.ranks[2].activity = Activity{.phase = RunPhase::evaluating, .step = 40, .done = 3, .total = 10};
  CHECK(diagnose(evaluating, SupervisorState::alive, 2000).verdict == "healthy");
  CHECK(diagnose(evaluating, SupervisorState::alive, 2000).summary == "no step for 1m 40s; rank 2: step 40: evaluation (3 of 10)");

  RunStatus stopped = hang;
  stopped.ranks[1].stopped = true;
  CHECK(diagnose(stopped, SupervisorState::alive, 2000).summary == "rank 1 is stopped (by SIGSTOP or a debugger); ranks 0,3 wait in reduce (dp)");

  RunStatus nodes = hang;
  nodes.nodes = {{.name = "a", .state = NodeState::running, .count = 2},
                 {.name = "b", .state = NodeState::running, .first = 2, .count = 2}};
  for (int rank = 0; rank < 4; ++rank) nodes.ranks[size_t(rank)].host = rank < 2 ? "a" : "b";
  const Diagnosis placed = diagnose(nodes, SupervisorState::alive, 2000);
  CHECK(placed.summary ==
        "no step for 1m 40s (usually 1.5 s): rank 2 on b keeps ranks 0-1,3 waiting in reduce (dp)");
  CHECK(placed.details == std::vector<std::string>{"rank 2 on b: step 41: forward of micro-batch 1, virtual stage 0",
                                                   "ranks 0-1,3 on a, b: step 41: reducing gradients, waiting in reduce"});

  RunStatus waits = nodes;
  waits.state = RunState::waiting;
  waits.reason = "1 of 2 nodes is there: waiting for more";
  waits.ranks.clear();
  waits.nodes[1].state = NodeState::lost, waits.nodes[1].reason = "silent for 2.0 s";
  CHECK(diagnose(waits, SupervisorState::alive, 2000).verdict == "waiting");
  CHECK(diagnose(waits, SupervisorState::alive, 2000).summary == waits.reason);
  CHECK(diagnose(waits, SupervisorState::alive, 2000).details ==
        std::vector<std::string>{"b: lost, silent for 2.0 s"});

  RunStatus silent = healthy();
  silent.ranks[1].heard_unix_s = 1990;
  CHECK(diagnose(silent, SupervisorState::alive, 2000).summary ==
        "rank 1 sent no heartbeat for 10s: stopped, or the machine hangs");

  RunStatus starting = healthy();
  starting.ranks[3].phase = RankPhase::absent;
  CHECK(diagnose(starting, SupervisorState::alive, 2000).verdict == "starting");

  RunStatus stuck = healthy();
  CHECK(diagnose(stuck, SupervisorState::alive, 2100).summary.find("the supervisor is alive but wrote no status for 1m 40s") ==
        0);

  RunStatus failed = healthy();
  failed.state = RunState::failed;
  failed.exit_code = 10;
  failed.reason = "rank 1 was killed";
  failed.advice = "trainctl resume tiny-1";
  CHECK(diagnose(failed, SupervisorState::none, 3000).verdict == "failed");
  CHECK(diagnose(failed, SupervisorState::none, 3000).summary == "the run has failed at step 40: rank 1 was killed");
  CHECK(diagnose(failed, SupervisorState::none, 3000).advice == "trainctl resume tiny-1");
}

TEST_CASE("the status of a copied run names the copy") {
  RunStatus status;
  status.run_id = "ref";
  status.directory = "/data/runs/ref";
  status.advice = "trainctl resume ref";
  CHECK(found_in(status, "/data/runs/ref").advice == "trainctl resume ref");
  const RunStatus copy = found_in(status, "/data/runs/bad");
  CHECK(copy.run_id == "bad");
  CHECK(copy.directory == "/data/runs/bad");
  CHECK(copy.advice == "trainctl resume bad");
  status.advice = "trainctl inspect-ckpt /data/runs/ref/ckpt/step-00000020";
  CHECK(found_in(status, "/other/bad").advice == "trainctl inspect-ckpt /other/bad/ckpt/step-00000020");
}
