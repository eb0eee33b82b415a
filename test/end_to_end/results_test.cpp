// Goal: every result of --json about a run, and every line of a run's files, fits its schema.
// Method: the real program on real runs; each printed kind is held to runtime/observe/schemas, and each kind
// that only runs have must come.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "runtime/base/json.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/shown_runs.h"
#include "test/support/json_schema.h"
#include "test/support/task_files.h"

using trainctl::Json;
using namespace trainctl::test;

TEST_CASE("results of runs fit their schemas", "[terminal]") {
  std::set<std::string> seen;
  const auto check = [&](const std::string& kind, std::vector<std::string> words, int status = 0) {
    words.push_back("--json");
    const Outcome o = ran(words);
    INFO(fmt::format("{}", fmt::join(words, " ")) << "\n" << o.err);
    CHECK(o.status == status);
    for (const std::string& text : kind == "log" ? lines_of(o.out) : std::vector<std::string>{o.out})
      CHECK(result_error(text, kind) == "");
    seen.insert(kind);
    return o.out;
  };
  const std::string in = shown_runs().path();
  check("status", {"status", "hurt"});
  check("status", {"status", "hurt", "--watch"});
  // Tasks that a run scores, as `eval` scores its checkpoint.
  write_file(in + "/tasks.bin", random_tasks(23, 64, 3));
  const Json scored =
      Json::parse(check("status", {"launch", "job.json", "-s", "observability.run_id=quick", "--max-steps",
                                   "2", "-s", "eval.tasks=tasks.bin", "-s", "eval.tasks_every_steps=2"}));
  const Json measured = Json::parse(check("eval", {"eval", "quick", "--tasks", "tasks.bin"}));
  CHECK(scored["tasks_step"] == 2);
  for (const char* number : {"examples", "accuracy", "accuracy_of_sums"})
    CHECK(scored["tasks"][0][number] == measured["tasks"][0][number]);
  CHECK(ran({"status", "quick"}).out.find("tasks      step 2 · tasks.bin ") != std::string::npos);
  check("report", {"report", "quick"});
  check("diagnose", {"diagnose", "hurt"});
  check("diagnose", {"diagnose", "hurt", "--merge"});
  check("list", {"list"});
  check("data-spikes", {"data", "spikes", "hurt"});
  seen.insert("alert");  // loss_watch_test.cpp
  check("log", {"logs", "hurt"});
  check("compare", {"compare", "hurt", "narrow"});
  check("compare", {"compare", "hurt", "other"}, 20);
  check("verify", {"verify", "hurt", "--against", "narrow"});
  check("verify", {"verify", "hurt", "--against", "other"}, 20);
  check("config", {"config", "hurt"});
  check("config-diff", {"config", "job.json", "--diff", "other"}, 20);
  check("report", {"report", "hurt"});
  check("report", {"report", "hurt", "narrow"});
  check("checkpoint", {"inspect-ckpt", "hurt", "--stats"});
  check("checkpoint", {"inspect-ckpt", "hurt", "--verify"});
  check("checkpoint", {"inspect-ckpt", "hurt", "--diff", "other"}, 20);
  check("checkpoint-repair", {"inspect-ckpt", "hurt", "--repair", "--dry-run"});
  check("checkpoint-copy", {"inspect-ckpt", "hurt", "--copy-to", "copies"});
  check("export", {"export", "hurt", "--out", "hf", "--check-forward", "8"});
  check("import", {"import", "hf", "--out", "start"});
  check("status", {"launch", "job.json", "-s", "observability.run_id=bytes", "--max-steps", "1", "-s",
                   "model.vocab_size=257"});
  check("sample", {"sample", "bytes", "-n", "3", "--tokenizer", "bytes"});
  write_file(in + "/tasks.jsonl", R"({"ctx": "a", "endings": ["b", "c"], "label": 0})");
  check("eval", {"eval", "bytes", "--tasks", "tasks.jsonl", "--tokenizer", "bytes"});
  check("error", {"compare", "hurt", "nothing"}, 2);
  check("detached", {"launch", "job.json", "-s", "observability.run_id=d", "-s",
                     "schedule.total_steps=100000", "--detach"});
  REQUIRE(eventually(60, [&] {
    return Json::parse(ran({"status", "d", "--json"}).out).value("step", int64_t(0)) > 0;
  }));
  check("trace", {"trace", "d", "--steps", "2"});
  check("stop", {"stop", "d", "--no-wait"});
  REQUIRE(eventually(60, [&] {
    return Json::parse(ran({"status", "d", "--json"}).out).value("state", "") == "stopped";
  }));
  check("against", {"plan", "--against", "d"});
  check("measured", {"doctor", "--measure", "--quick", "-o", "cluster.json"});
  Child linked({"/usr/bin/env", "mpirun", "--oversubscribe", "--bind-to", "none", "-n", "3", trainctl_path(),
                "doctor", "--links", "--json"},
               in,
               // Another mpirun removes the folder of all sessions of this user at its end.
               {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "TMPDIR=" + in});
  const Outcome links = linked.wait(120);
  INFO(links.err);
  CHECK(links.status == 0);
  CHECK(result_error(links.out, "links") == "");
  CHECK(Json::parse(links.out)["links"].size() == 3);
  seen.insert("links");
  check("removed", {"rm", "d", "--yes"});
  check("removed", {"prune", "--dry-run"});
  std::filesystem::create_directory(in + "/bin");
  write_file(in + "/bin/sbatch", "#!/bin/sh\necho 17\n");
  std::filesystem::permissions(in + "/bin/sbatch", std::filesystem::perms::owner_all);
  const Outcome submitted =
      run_trainctl(in, {"launch", "job.json", "--submit", "-s", "launcher.slurm.nodes=1", "--json"}, 60,
                   {"PATH=" + in + "/bin:" + std::getenv("PATH")});
  INFO(submitted.err);
  CHECK(result_error(submitted.out, "submitted") == "");
  CHECK(Json::parse(submitted.out)["slurm"]["jobs"] == Json{"17"});
  // What `auto` comes to is decided here, since a resume, which Slurm starts, decides nothing.
  const Json written =
      Json::parse(read_file(Json::parse(submitted.out)["directory"].get<std::string>() + "/job.json"));
  CHECK(written["data"].contains("documents"));
  Child serve({"/bin/sh", "-c", "exec " + trainctl_path() + " status hurt --serve 127.0.0.1:0 --json >url"},
              in);
  REQUIRE(eventually(120, [&] {
    return std::filesystem::exists(in + "/url") && read_file(in + "/url").find('\n') != std::string::npos;
  }));
  CHECK(result_error(read_file(in + "/url"), "serve") == "");
  serve.signal(SIGTERM);
  CHECK(serve.wait(120).status == 0);
  write_file(in + "/experts.json", expert_spec("experts"));
  check("status", {"launch", "experts.json", "-s", "observability.run_id=experts", "--max-steps", "7"});
  check("report", {"report", "experts"});
  check("status", {"status", "experts"});
  const std::string of_experts = folder_of("experts");
  for (const auto& [kind, file] :
       {std::pair{"metrics-line", "metrics.jsonl"}, {"experts-line", "metrics.experts.jsonl"}}) {
    const auto lines = lines_of(read_file(of_experts + "/" + file));
    CHECK(lines.size() == (std::string(kind) == "experts-line" ? 2 : 7));
    for (const std::string& line : lines)
      CHECK(schema_errors(result_schema(kind), Json::parse(line)).empty());
  }
  seen.insert("experts-line");
  const std::string run = folder_of("hurt");
  for (const auto& [kind, file] : {std::pair{"metrics-line", "metrics.jsonl"},
                                   {"ranks-line", "metrics.ranks.jsonl"},
                                   {"event-line", "events.jsonl"}})
    for (const std::string& line : lines_of(read_file(run + "/" + file)))
      CHECK(schema_errors(result_schema(kind), Json::parse(line)).empty());
  for (const std::string& line : lines_of(read_file(folder_of("quick") + "/metrics.jsonl")))
    CHECK(schema_errors(result_schema("metrics-line"), Json::parse(line)).empty());
  for (const char* kind : {"submitted", "serve", "metrics-line", "ranks-line", "event-line"})
    seen.insert(kind);
  for (const std::string& kind : kinds_of_runs()) {
    INFO("nothing here prints " << kind);
    CHECK(seen.contains(kind));
  }
}
