// Goal: the list of runs shows each run of a folder with its state, also where its supervisor died or its
// records are damaged; the logs of a run are merged by time, with their sources, each line once, and can be
// followed.
// Method: folders of runs made by hand.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "runtime/base/json.h"
#include "runtime/observe/terminal/run_list.h"
#include "runtime/observe/terminal/run_logs.h"
#include "runtime/observe/text_table.h"
#include "runtime/run/record/crash_record.h"
#include "runtime/run/record/run_status.h"
#include "runtime/train/measure/step_line.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::terminal;
using Catch::Matchers::Contains;
using test::TemporaryFolder;

namespace {

FileSystem& fs = real_file_system();

void make_run(const std::string& folder, double created_unix_s) {
  fs.make_directories(folder + "/logs");
  fs.make_directories(folder + "/failures");
  fs.write_new_text(folder + "/job.json", "{}");
  fs.write_new_text(folder + "/run.json",
                    RunIdentity{.run_id = "r", .created_unix_s = created_unix_s}.to_json());
}

RunStatus status_of(RunState state, int64_t step, double updated_unix_s, int exit_code = -1) {
  RunStatus s{.run_id = "r", .state = state, .exit_code = exit_code, .step = step, .total_steps = 100};
  s.updated_unix_s = updated_unix_s;
  s.last_step = {.step = step, .loss = 2.5};
  s.ranks.resize(4);
  return s;
}

void append(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::app) << text; }

std::vector<std::string> texts(const std::vector<LogLine>& lines) {
  std::vector<std::string> all;
  for (const LogLine& line : lines) all.push_back(line.source + ": " + line.text);
  return all;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("the list has every run of a folder, the newest first") {
  const TemporaryFolder root;
  for (const char* id : {"going", "ended", "dead", "made", "bad"}) make_run(root / id, 1000);
  fs.make_directory(root / "no-run");
  write_status(fs, root / "going/status.json", status_of(RunState::running, 40, 1990));
  write_status(fs, root / "ended/status.json", status_of(RunState::finished, 100, 1500, 0));
  write_status(fs, root / "dead/status.json", status_of(RunState::running, 7, 1200));
  fs.write_new_text(root / "bad/status.json", "not JSON");
  fs.write_new_text(root / "bad/events.jsonl", "{\"kind\":\"end\",\"t\":1100,\"exit_code\":\"none\"}\n");
  const auto runs =
      list_runs(fs, root.path(), [](const RunDirectory& run) { return run.path.ends_with("going"); });
  REQUIRE(runs.size() == 5);
  Texts states;
  for (const ListedRun& run : runs) states.push_back(run.id + " " + run.state);
  CHECK(states == Texts{"going running", "ended finished", "dead lost", "bad damaged", "made created"});
  CHECK(runs[0].loss == 2.5);
  CHECK_THAT(runs[3].note, Contains("damaged"));
  CHECK(render_run_list(runs, 2000, 0, false) ==
        "run    state        step    loss  ranks      age  updated\n"
        "going  running    40/100  2.5000      4  16m 40s      10s\n"
        "ended  finished  100/100  2.5000      4  16m 40s   8m 20s\n"
        "dead   lost        7/100  2.5000      4  16m 40s  13m 20s\n"
        "bad    damaged       0/0       -      -  16m 40s  16m 40s\n"
        "made   created       0/0       -      -  16m 40s  16m 40s\n");
  for (const std::string& line : {render_run_list(runs, 2000, 40, false)})
    CHECK(line.substr(0, line.find('\n')) == "run    state        step    loss");
  CHECK(render_run_list(runs, 2000, 0, true).find("\033[31mdead") != std::string::npos);
  CHECK(run_list_json(runs)[4]["loss"].is_null());
  CHECK(list_runs(fs, root / "nowhere", [](const RunDirectory&) { return false; }).empty());
}

TEST_CASE("ranks are named by numbers and ranges") {
  RankRanges ranges;
  REQUIRE(parse_ranks("0,3-7", ranges).is_none());
  CHECK(holds(ranges, 0));
  CHECK_FALSE(holds(ranges, 2));
  CHECK(holds(ranges, 7));
  for (const char* wrong : {"", "a", "3-", "-3", "7-3", "1,,2", "1, 2", "99999999999"}) {
    CAPTURE(wrong);
    CHECK(parse_ranks(wrong, ranges).exists());
  }
}

TEST_CASE("logs are merged by the times in them, with the causes of failures and the crash records") {
  const TemporaryFolder root;
  const RunDirectory run{root / "r"};
  make_run(run.path, 0);
  append(
      run.rank_log(0),
      "--- 2026-01-01T00:00:10Z attempt 1 rank 0 pid 5\none\n--- 2026-01-01T00:00:30Z attempt 2 rank 0 pid "
      "7\ntwo\n");
  append(run.rank_log(10), "--- 2026-01-01T00:00:10Z attempt 1 rank 10 pid 6\nten\n");
  append(run.file("logs/mpirun.log"),
         "--- 2026-01-01T00:00:05Z attempt 1: mpirun\n--- 2026-01-01T00:00:25Z attempt 2: mpirun\n");
  append(run.file("logs/node-n0.log"), "2026-01-01T00:00:06Z agent\n");
  append(run.file("logs/slurm-12.out"), "no time\n");
  const double t = 1767225600;  // 2026-01-01
  append(run.events(),
         fmt::format(R"({{"v":1,"t":{},"kind":"failure","cause":"rank 10 died","effect":"all ended"}})",
                     t + 21) +
             "\n");
  fs.make_directory(run.file("failures/1"));
  fs.write_new_text(run.file("failures/1/rank-10.json"), CrashRecord{.rank = 10,
                                                                     .pid = 6,
                                                                     .epoch = 1,
                                                                     .code = ErrorCode::kWorker,
                                                                     .message = "it died",
                                                                     .host = "n0",
                                                                     .unix_s = t + 20}
                                                             .to_json());
  fs.write_new_text(run.file("failures/1/rank-10.log"),
                    "--- 2026-01-01T00:00:10Z attempt 1 rank 10 pid 6\nten\n");
  RunLogs logs(fs, run, {});
  CHECK(texts(logs.read(true)) ==
        Texts{"slurm 12: no time", "mpirun: --- 2026-01-01T00:00:05Z attempt 1: mpirun",
              "node n0: 2026-01-01T00:00:06Z agent",
              "rank 0: --- 2026-01-01T00:00:10Z attempt 1 rank 0 pid 5", "rank 0: one",
              "rank 10: --- 2026-01-01T00:00:10Z attempt 1 rank 10 pid 6", "rank 10: ten",
              "rank 10: crash record: worker: it died (pid 6 on n0)", "failure: rank 10 died; all ended",
              "mpirun: --- 2026-01-01T00:00:25Z attempt 2: mpirun",
              "rank 0: --- 2026-01-01T00:00:30Z attempt 2 rank 0 pid 7", "rank 0: two"});
  CHECK(logs.read(true).empty());
  // What is written meanwhile comes once; half a line waits for its end.
  append(run.rank_log(0), "three\nfo");
  append(run.rank_log(3), "a new rank\n");
  CHECK(texts(logs.read(false)) == Texts{"rank 3: a new rank", "rank 0: three"});
  append(run.rank_log(0), "ur\n");
  CHECK(texts(logs.read(false)) == Texts{"rank 0: four"});
  append(run.rank_log(0), "the end");
  CHECK(texts(logs.read(true)) == Texts{"rank 0: the end"});

  RunLogs some(fs, run, {.ranks = {{1, 3}, {10, 10}}});
  CHECK(texts(some.read(true)) ==
        Texts{"rank 3: a new rank", "rank 10: --- 2026-01-01T00:00:10Z attempt 1 rank 10 pid 6",
              "rank 10: ten", "rank 10: crash record: worker: it died (pid 6 on n0)"});
  CHECK(last_failure(fs, run) == 1);
  RunLogs of_failure(fs, run, {.failure = 1});
  const auto lines = of_failure.read(true);
  CHECK(texts(lines) == Texts{"rank 10: --- 2026-01-01T00:00:10Z attempt 1 rank 10 pid 6", "rank 10: ten",
                              "rank 10: crash record: worker: it died (pid 6 on n0)",
                              "failure: rank 10 died; all ended"});
  CHECK(lines[1].failure == 1);
}
