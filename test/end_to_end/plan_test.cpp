// Goal: the plan tells the truth about memory.
// Method: a 30 M parameter model, two steps, on one rank and on TP2 x DP2: the largest resident size of each run's ranks is within a
// tenth of what `plan` printed for the worst rank.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/thread_run.h"

using namespace trainctl::test;

TEST_CASE("peak memory is within a tenth of the plan", "[mesh]") {
  const TempDir dir;
  const std::string tokens = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/gpt2-tiny/tokens.bin";
  write_file(dir.path() + "/job.json", R"({"version": 1, "name": "memory", "model": {"preset": "gpt2-30m"},
    "data": {"train": [{"path": ")" + tokens + R"(", "format": "raw", "dtype": "uint16"}], "seq_len": 64},
    "batch": {"global_sequences": 8, "micro_sequences": 4}, "schedule": {"total_steps": 2},
    "checkpoint": {"on_exit": false}})");
  for (const std::vector<std::string>& mesh :
       {std::vector<std::string>{"-s", "observability.run_id=one"},
        std::vector<std::string>{"-s", "observability.run_id=four", "-s", "parallelism.world_size=4", "-s", "parallelism.tensor=2"}}) {
    std::vector<std::string> launch = {"launch", "job.json"}, plan = {"plan", "job.json", "--json"};
    launch.insert(launch.end(), mesh.begin(), mesh.end());
    plan.insert(plan.end(), mesh.begin(), mesh.end());
    const Outcome planned = run_trainctl(dir.path(), plan), run = run_trainctl(dir.path(), launch);
    INFO(planned.err << run.err);
    REQUIRE(planned.status == 0);
    REQUIRE(run.status == 0);
    double want = 0, got = 0;
    const auto plan_json = nlohmann::json::parse(planned.out);
    for (const auto& stage : plan_json["memory"]) want = std::max(want, stage["total"].get<double>());
    std::string line;
    for (std::ifstream metrics(dir.path() + "/runs/" + mesh[1].substr(mesh[1].find('=') + 1) + "/metrics.jsonl"); std::getline(metrics, line);) {
      const auto metrics_json = nlohmann::json::parse(line);
      for (const auto& peak : metrics_json["ranks"]["peak_memory_bytes"]) got = std::max(got, peak.get<double>());
    }
    CAPTURE(mesh, want, got);
    CHECK(std::abs(got / want - 1) < 0.1);
  }
}
