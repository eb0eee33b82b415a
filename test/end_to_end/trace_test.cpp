// Goal: `trainctl trace` of a running run makes one file that a viewer of Chrome's trace format can draw:
// every instruction of each traced step is in it, slices nest, messages have both ends, steps take as long
// as metrics.jsonl says; the run keeps its bits; and whatever happens meanwhile, the command ends with one
// sentence and leaves a whole file or none.
// Method: the real program on eight ranks TP2 x PP2 x DP2 and on four; the file is read back; ranks are
// killed, the run and the command are stopped while they trace.
#include <fmt/format.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/base/json.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/environment.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using trainctl::Json;
using namespace trainctl::test;
using Catch::Contains;

namespace {

/// A run of many short steps, in the background.
struct Running {
  explicit Running(const TemporaryFolder& d, const std::vector<std::string>& more = {},
                   const std::vector<std::string>& environment = {})
      : dir(d), path(d / "runs/traced") {
    write_file(dir / "job.json", tiny_spec("traced"));
    std::vector<std::string> words = {trainctl_path(),
                                      "launch",
                                      "job.json",
                                      "-s",
                                      "observability.run_id=traced",
                                      "-s",
                                      "schedule.total_steps=100000",
                                      "-s",
                                      "checkpoint.every_steps=0"};
    words.insert(words.end(), more.begin(), more.end());
    child = std::make_unique<Child>(words, dir.path(), environment);
    REQUIRE(eventually(60, [&] { return !child->running() || line_count(path + "/metrics.jsonl") >= 5; }));
    REQUIRE(child->running());
  }
  ~Running() {
    child->signal(SIGQUIT);
    eventually(120, [&] { return !child->running(); });
  }
  /// Rank 0 stops, and all wait for it, so that no trace is complete before the test has acted.
  void hold() const { signal_rank_0(SIGSTOP); }
  void go_on() const { signal_rank_0(SIGCONT); }
  void signal_rank_0(int number) const { REQUIRE(::kill(rank_pids(path, 1).at(0), number) == 0); }
  Outcome trace(std::vector<std::string> words, double seconds = 60) const {
    words.insert(words.begin(), {"trace", "traced"});
    return run_trainctl(dir.path(), words, seconds);
  }
  std::unique_ptr<Child> trace_in_background(std::vector<std::string> words) const {
    words.insert(words.begin(), {trainctl_path(), "trace", "traced"});
    auto command = std::make_unique<Child>(words, dir.path());
    REQUIRE(eventually(120, [&] { return request_is_taken() || !command->running(); }));
    REQUIRE(command->running());
    return command;
  }
  bool request_is_taken() const {
    for (const std::string& name : left())
      if (std::filesystem::exists(path + "/trace/" + name + "/answer.json")) return true;
    return false;
  }
  /// What traces left in the run's folder, without the summary of the last one, which `plan --against` reads.
  std::set<std::string> left() const {
    std::set<std::string> names;
    if (std::filesystem::exists(path + "/trace"))
      for (const auto& entry : std::filesystem::directory_iterator(path + "/trace"))
        if (entry.path().filename() != "last.json") names.insert(entry.path().filename());
    return names;
  }
  bool is_clean() const { return left().empty() && !std::filesystem::exists(path + "/trace.request"); }

  const TemporaryFolder& dir;
  const std::string path;
  std::unique_ptr<Child> child;
};

struct Slice {
  std::string name, category;
  double begin_us = 0, end_us = 0;
  Json args;
};

/// A trace as a viewer sees it.
struct Viewed {
  explicit Viewed(const std::string& text) : all(Json::parse(text)) {
    for (const Json& e : all.at("traceEvents")) {
      const std::string kind = e.at("ph");
      if (kind == "X")
        threads[{e.at("pid"), e.at("tid")}].push_back({e.at("name"), e.at("cat"), e.at("ts"),
                                                       e.at("ts").get<double>() + e.at("dur").get<double>(),
                                                       e.at("args")});
      if (kind == "M" && e.at("name") == "process_name") processes[e.at("pid")] = e.at("args").at("name");
      if (kind == "M" && e.at("name") == "thread_name")
        names[{e.at("pid"), e.at("tid")}] = e.at("args").at("name");
      if (kind == "s" || kind == "f") flows[e.at("id")].push_back(e);
      if (kind == "C") ++counters;
    }
  }
  std::vector<Slice> compute(int rank) const {
    for (const auto& [thread, name] : names)
      if (thread.first == rank && name == "compute") return threads.at(thread);
    return {};
  }
  Json all;
  std::map<std::pair<int, int>, std::vector<Slice>> threads;
  std::map<std::pair<int, int>, std::string> names;
  std::map<int, std::string> processes;
  std::map<int, std::vector<Json>> flows;
  int counters = 0;
};

/// Nanoseconds as written; the sums of two numbers with three digits are not.
bool is_before(double a_us, double b_us) { return std::llround(a_us * 1000) <= std::llround(b_us * 1000); }

void check_nesting(const Viewed& trace) {
  for (const auto& [thread, slices] : trace.threads) {
    CAPTURE(thread.first, trace.names.at(thread));
    std::vector<double> open;
    double last_us = 0;
    for (const Slice& s : slices) {
      CHECK(is_before(last_us, s.begin_us));
      last_us = s.begin_us;
      while (!open.empty() && is_before(open.back(), s.begin_us)) open.pop_back();
      CHECK((open.empty() || is_before(s.end_us, open.back())));
      open.push_back(s.end_us);
    }
  }
}

/// How often each kind of instruction is in a step of a rank, by micro-batch; those in parts count once.
std::map<std::string, std::set<int>> instructions(const Viewed& trace, int rank, int64_t step) {
  std::map<std::string, std::set<int>> found;
  std::set<std::string> whole;
  for (const Slice& s : trace.compute(rank)) {
    if (s.args.value("step", int64_t(-1)) != step || !s.args.contains("micro_batch")) continue;
    const std::string kind = s.name.substr(0, s.name.find(" mb "));
    found[kind].insert(s.args.at("micro_batch").get<int>());
    CHECK(whole.insert(s.name).second);  // no instruction twice
  }
  return found;
}

/// From the end of one step to the end of the next, over the ranks.
void check_durations(const Viewed& trace, const std::string& run, int ranks, int64_t first, int64_t last) {
  const auto lines = [&] {
    std::map<int64_t, double> by_step;
    std::istringstream file(read_file(run + "/metrics.jsonl"));
    for (std::string line; std::getline(file, line);)
      if (const Json j = Json::try_parse(line); j.is_object())
        by_step[j.at("step")] = j.at("step_s");
    return by_step;
  }();
  for (int64_t step = first + 1; step <= last; ++step) {
    double shortest_s = 1e9, longest_s = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      std::map<std::string, double> ends_us;
      for (const Slice& s : trace.compute(rank))
        if (s.category == "step") ends_us[s.name] = s.end_us;
      const double s =
          (ends_us.at(fmt::format("step {}", step)) - ends_us.at(fmt::format("step {}", step - 1))) * 1e-6;
      shortest_s = std::min(shortest_s, s);
      longest_s = std::max(longest_s, s);
    }
    CAPTURE(step, shortest_s, longest_s);
    // A rank may lose its core between the two readings of the clock.
    constexpr double kMoments = 0.02;
    CHECK(lines.at(step) > shortest_s - kMoments);
    CHECK(lines.at(step) < longest_s + kMoments);
  }
}

}  // namespace

TEST_CASE("a trace has every instruction of its steps, and the run keeps its bits", "[trace]") {
  const TemporaryFolder dir;
  const std::vector<std::string> mesh = {"-s", "parallelism.tensor=2", "-s", "parallelism.pipeline=2",
                                         "-s", "parallelism.data=2"};
  Running run(dir, mesh);
  const Outcome o = run.trace({"--steps", "3", "--out", "t.json", "--json"});
  INFO(o.err);
  REQUIRE(o.status == 0);
  const Json summary = Json::parse(o.out);
  const int64_t first = summary.at("first_step"), last = summary.at("last_step");
  CHECK(last - first == 2);
  CHECK(summary.at("ranks").size() == 8);
  CHECK(summary.at("alignment_error_us") == 0.0);
  CHECK(summary.at("overwritten_spans") == 0);
  CHECK(summary.at("file") == "t.json");
  CHECK(summary.at("notes").empty());
  const Viewed trace(read_file(dir / "t.json"));
  CHECK(trace.all.at("displayTimeUnit") == "ms");
  CHECK(trace.all.at("otherData").at("run") == "traced");
  CHECK(trace.processes.at(5).rfind("rank 5 · stage 1 · dp 0 · tp 1", 0) == 0);
  CHECK(trace.counters == 8 * 6);
  check_nesting(trace);
  const std::set<int> all_micro_batches = {0, 1, 2, 3};  // 8 sequences on two data-parallel ranks
  for (int rank = 0; rank < 8; ++rank)
    for (int64_t step = first; step <= last; ++step) {
      CAPTURE(rank, step);
      auto found = instructions(trace, rank, step);
      CHECK(found["forward"] == all_micro_batches);
      CHECK(found["backward"] == all_micro_batches);
      const bool is_first = rank < 4;
      CHECK(found["send activation"] == (is_first ? all_micro_batches : std::set<int>()));
      CHECK(found["wait activation"] == (is_first ? std::set<int>() : all_micro_batches));
      CHECK(found["send gradient"] == (is_first ? std::set<int>() : all_micro_batches));
      CHECK(found["wait gradient"] == (is_first ? all_micro_batches : std::set<int>()));
      int sums = 0, optimizers = 0, exchanges = 0;
      for (const auto& [thread, slices] : trace.threads)
        for (const Slice& s : slices) {
          if (thread.first != rank || s.args.value("step", int64_t(-1)) != step) continue;
          sums += s.name == "sum" && s.category == "state";
          optimizers += s.name == "optimizer";
          exchanges += s.category == "exchange";
          if (s.category == "exchange") CHECK(s.args.at("peers").size() >= 1);
        }
      CHECK(sums == 1);
      CHECK(optimizers == 1);
      CHECK(exchanges > 16);
    }
  // An arrow for each activation and each gradient, from its sender to its receiver, and forwards.
  CHECK(trace.flows.size() == size_t(2 * 4 * 4 * 3));
  CHECK(summary.at("flows") == trace.flows.size());
  std::set<std::string> peers;
  for (const Json& with : summary.at("communication")) peers.insert(with.at("peers"));
  CHECK((peers.contains("tensor") && peers.contains("data") && peers.contains("pipeline")));
  for (const auto& [id, ends] : trace.flows) {
    REQUIRE(ends.size() == 2);
    CHECK(ends[0].at("ph") == "s");
    CHECK(ends[1].at("ph") == "f");
    CHECK(ends[0].at("ts").get<double>() <= ends[1].at("ts").get<double>());
    CHECK(std::abs(ends[0].at("pid").get<int>() - ends[1].at("pid").get<int>()) == 4);
  }
  check_durations(trace, run.path, 8, first, last);
  // The same again, packed, of some ranks, where the run keeps its own files.
  const Outcome packed = run.trace({"--steps", "1", "--ranks", "0,4-5"});
  INFO(packed.err);
  REQUIRE(packed.status == 0);
  CHECK_THAT(packed.out, Contains("3 of 8 ranks") && Contains("ui.perfetto.dev"));
  REQUIRE(run.left().size() == 1);
  CHECK(run.left().begin()->ends_with(".json.gz"));
  const std::string file = run.path + "/trace/" + *run.left().begin();
  const Viewed some(Child({"gzip", "-dc", file}, dir.path()).wait(120).out);
  CHECK(some.processes.size() >= 3);
  check_nesting(some);
  CHECK(run_trainctl(dir.path(), {"stop", "traced"}, 60).status == 0);
  // A run that was never traced.
  const Json ended = Json::parse(read_file(run.path + "/status.json"));
  const int64_t steps = ended.at("step");
  std::vector<std::string> plain = {"launch",      "job.json",
                                    "-s",          "observability.run_id=plain",
                                    "-s",          "schedule.total_steps=100000",
                                    "-s",          "checkpoint.every_steps=0",
                                    "--max-steps", std::to_string(steps)};
  plain.insert(plain.end(), mesh.begin(), mesh.end());
  REQUIRE(run_trainctl(dir.path(), plain, 200).status == 0);
  CHECK(losses_of(dir / "runs/plain") == losses_of(run.path));
  CHECK_THAT(run_trainctl(dir.path(), {"inspect-ckpt", run.path, "--diff", dir / "runs/plain"}).out,
             Contains("identical"));
}

TEST_CASE("what cannot be traced is refused with a sentence", "[trace]") {
  const TemporaryFolder dir;
  {
    Running run(dir);
    const auto refusal = [&](const std::vector<std::string>& words) {
      const Outcome o = run.trace(words);
      CHECK(o.status == 2);
      return o.err;
    };
    CHECK_THAT(refusal({"--ranks", "0,9"}), Contains("the run has the ranks 0 to 3, and no rank 9"));
    CHECK_THAT(refusal({"--out", "no/t.json"}), Contains("there is no folder"));
    CHECK_THAT(refusal({"--out", "runs"}), Contains("is a folder"));
    CHECK_THAT(refusal({"--steps", "0"}), Contains("--steps"));
    CHECK(run.is_clean());
    run.hold();
    const auto first = run.trace_in_background({"--steps", "1000", "--out", "t.json"});
    CHECK_THAT(refusal({"--steps", "1"}), Contains("is being traced by another command"));
    // Ctrl-C: nothing is left, and the run goes on.
    first->signal(SIGINT);
    const Outcome given_up = first->wait(120);
    CHECK(given_up.status == 130);
    CHECK_THAT(given_up.err, Contains("the trace was given up; the run goes on"));
    CHECK(run.is_clean());
    CHECK_FALSE(std::filesystem::exists(dir / "t.json"));
    // The ranks still record for the one that gave up: the next takes its place.
    run.go_on();
    const Outcome next = run.trace({"--steps", "2", "--json"});
    INFO(next.err);
    CHECK(next.status == 0);
    CHECK(Json::parse(next.out).at("last_step").get<int64_t>() -
              Json::parse(next.out).at("first_step").get<int64_t>() ==
          1);
    // Not within its time.
    run.hold();
    const Outcome late = run.trace({"--steps", "1000", "--timeout", "1"});
    CHECK(late.status == 9);
    CHECK_THAT(late.err, Contains("wait longer with --timeout SECONDS"));
    run.go_on();
  }
  const Outcome ended = run_trainctl(dir.path(), {"trace", "traced"});
  CHECK(ended.status == 2);
  CHECK_THAT(ended.err, Contains("run traced is not running: it is aborted") &&
                            Contains("next: trainctl resume traced"));
}

TEST_CASE("a run that ends while it is traced gives what was recorded", "[trace]") {
  const TemporaryFolder dir;
  {
    // More steps than are left, and more spans than a rank has room for.
    Running run(dir, {"--max-steps", "400"}, {stop_variable({{.rank = 0, .step = 10}})});
    await_stopped_rank(*run.child, run.path, 4, 0);
    const auto command = run.trace_in_background({"--steps", "1000", "--out", "t.json", "--json"});
    run.go_on();
    const Outcome o = command->wait(120);
    INFO(o.err);
    REQUIRE(o.status == 0);
    CHECK_THAT(o.err, Contains("ends with step 400: at most") && Contains("the run ended with step 400: "));
    const Json summary = Json::parse(o.out);
    CHECK(summary.at("last_step") == 400);
    CHECK(summary.at("overwritten_spans").get<int64_t>() > 0);
    CHECK_THAT(o.err, Contains("are left out: a rank had no room"));
    const Viewed trace(read_file(dir / "t.json"));
    check_nesting(trace);
    for (int rank = 0; rank < 4; ++rank)
      for (int64_t step = summary.at("first_step"); step <= 400; step += 10)
        CHECK(instructions(trace, rank, step)["forward"] == std::set{0, 1, 2, 3});
    CHECK(run.child->wait(60).status == 0);
    CHECK(run.is_clean());
  }
  {
    std::filesystem::remove_all(dir / "runs");
    // With steps so long that a thousand of them take longer than the stop.
    Running run(dir, {"-s", "batch.global_sequences=128"});
    const auto command = run.trace_in_background({"--steps", "1000", "--out", "stopped.json"});
    REQUIRE(run_trainctl(dir.path(), {"stop", "traced"}, 60).status == 0);
    const Outcome o = command->wait(120);
    INFO(o.err);
    // Where it was stopped before the first step to record, there is nothing to keep.
    CHECK((o.status == 0 || o.status == 10));
    CHECK_THAT(o.err, Contains("the run ended with step "));
    CHECK(std::filesystem::exists(dir / "stopped.json") == (o.status == 0));
    if (o.status == 0) check_nesting(Viewed(read_file(dir / "stopped.json")));
    CHECK(run.is_clean());
  }
}

TEST_CASE("a rank that dies while it is traced, and the attempt behind it", "[trace]") {
  const TemporaryFolder dir;
  Running run(dir, {"-s", "fault_tolerance.max_restarts=2", "-s", "checkpoint.memory=on"});
  run.hold();
  const auto command = run.trace_in_background({"--steps", "1000", "--out", "t.json"});
  const std::vector<pid_t> pids = rank_pids(run.path, 4);
  REQUIRE(pids.size() == 4);
  REQUIRE(::kill(pids[2], SIGKILL) == 0);
  const Outcome o = command->wait(120);
  CHECK(o.status == 10);
  CHECK_THAT(o.err, Contains("run traced was not traced: attempt 1 failed (rank 2 (pid") &&
                        Contains("SIGKILL") && Contains("while 4 ranks recorded; nothing was kept"));
  CHECK(run.is_clean());
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    CHECK(entry.path().filename().string().find("t.json") == std::string::npos);
  // The next attempt can be traced.
  REQUIRE(eventually(60, [&] { return !events_of(run.path, "recovered").empty(); }));
  const Outcome next = run.trace({"--steps", "2", "--json"});
  INFO(next.err);
  REQUIRE(next.status == 0);
  CHECK(Json::parse(next.out).at("epoch") == 2);
}

TEST_CASE("a supervisor that dies while it is traced", "[trace]") {
  const TemporaryFolder dir;
  Running run(dir, {"-s", "fault_tolerance.grace_seconds=2"});
  run.hold();
  const auto command = run.trace_in_background({"--steps", "1000"});
  run.child->signal(SIGKILL);
  const Outcome o = command->wait(120);
  CHECK(o.status == 10);
  CHECK_THAT(o.err, Contains("its supervisor has ended or was replaced") &&
                        Contains("see `trainctl status traced`"));
  CHECK(run.is_clean());
  REQUIRE(
      eventually(120, [&] { return trainctl::processes_marked(trainctl::kRunVariable, run.path).empty(); }));
}
