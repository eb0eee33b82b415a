// Goal: a run with experts records every token's choice once, whatever ranks share: as many slots as tokens
// times top_k, the same line on every mesh; the biases are those of the checkpoint; waits for experts and
// context are part of the waits. Method: a tiny model on thread ranks, over meshes; its lines against arithmetic
// and against one rank's.
#include <catch2/catch.hpp>
#include <numeric>

#include "runtime/base/json.h"
#include "test/support/described_models.h"
#include "test/support/selection_biases.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr int64_t kEvery = 2, kWatchedSteps = 5;

JobSpec watched_job(const TemporaryFolder& dir) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe_grouped_experts(job.model);
  job.model.moe.num_experts = 8;
  job.model.moe.first_dense_layers = 1;
  job.model.moe.bias_update_rate = 1e-3;
  job.parallelism.lanes = 4;
  job.parallelism.context_blocks = 2;
  job.batch.global_sequences = 8;
  job.observability.rank_metrics_every_steps = kEvery;
  return job;
}

struct Watched {
  std::vector<std::string> lines;
  ThreadRun run;
};
Watched watched(const JobSpec& job, const std::string& dir) {
  Watched w;
  w.run = run_on_threads(job, {.dir = dir, .max_steps = kWatchedSteps, .expert_lines = &w.lines});
  return w;
}

}  // namespace

TEST_CASE("experts: every token is counted once on every mesh, and the biases are the checkpoint's",
          "[experts]") {
  const TemporaryFolder dir;
  const JobSpec base = watched_job(dir);
  const Watched alone = watched(base, dir / "alone");
  REQUIRE(alone.lines.size() == 3);  // steps 2, 4 and the last
  const Json last = parse_json(alone.lines.back());
  CHECK(last["step"] == 5);
  CHECK(last["steps"] == 1);
  CHECK(parse_json(alone.lines[1])["steps"] == 2);
  CHECK(last["layers"] == Json({1, 2, 3}));
  CHECK(last["load"].size() == 3);
  for (size_t l = 0; l < 3; ++l) {
    // Loads are multiples of the mean: with the digits that are written, their mean is 1.
    const auto loads = last["load"][l].get<std::vector<double>>();
    CHECK(std::accumulate(loads.begin(), loads.end(), 0.0) / 8 == Approx(1).margin(0.01));
    CHECK(*std::max_element(loads.begin(), loads.end()) ==
          Approx(last["most"][l].get<double>()).epsilon(0.01));
  }
  const auto biases = biases_by_layer(base, alone.run.checkpoint);
  REQUIRE(biases.size() == 3);
  for (size_t l = 0; l < 3; ++l)
    for (size_t e = 0; e < biases[l].size(); ++e)
      CHECK(last["bias"][l][e].get<double>() == Approx(biases[l][e]).epsilon(0.01));

  int number = 0;
  const auto on = [&](auto change) {
    JobSpec job = base;
    change(job.parallelism);
    const Watched other = watched(job, dir / std::to_string(++number));
    CHECK(other.lines == alone.lines);
    return other.run;
  };
  const ThreadRun shared =
      on([](ParallelSpec& p) { p.data = 2, p.context = 2, p.expert = 4, p.zero_stage = 3; });
  on([](ParallelSpec& p) { p.pipeline = 2, p.data = 2; });
  on([](ParallelSpec& p) { p.data = 2, p.expert = 2; });
  // What the report and the status say of it, and the waits.
  const Json line = parse_json(shared.lines.back());
  CHECK(line["experts"]["step"] == 5);
  CHECK(line["experts"]["experts"] == 8);
  CHECK(line["experts"]["most"].get<double>() >= 1);
  const Json phases = line["phases"];
  for (const char* part : {"experts_s", "context_s"}) {
    CHECK(phases[part].get<double>() > 0);
    CHECK(phases[part].get<double>() <= phases["communication_s"].get<double>());
  }
  const Json alone_phases = parse_json(alone.run.lines.back())["phases"];
  CHECK_FALSE(alone_phases.contains("experts_s"));
  CHECK_FALSE(alone_phases.contains("context_s"));
}

TEST_CASE("experts: modules of multi-token prediction are the last layers of the map", "[experts]") {
  const TemporaryFolder dir;
  JobSpec job = watched_job(dir);
  job.model.mtp = {.num_layers = 2};
  const Watched with = watched(job, dir / "with");
  const Json last = parse_json(with.lines.back());
  CHECK(last["layers"] == Json({1, 2, 3, 4, 5}));
  REQUIRE(last["load"].size() == 5);
  for (const Json& of_layer : last["load"]) {
    const auto loads = of_layer.get<std::vector<double>>();
    CHECK(std::accumulate(loads.begin(), loads.end(), 0.0) / 8 == Approx(1).margin(0.01));
  }
  CHECK(last["bias"].size() == 5);
  CHECK(last["bias"][4] != Json(std::vector<double>(8)));
  job.parallelism.data = job.parallelism.expert = 4;
  job.parallelism.zero_stage = 2;
  CHECK(watched(job, dir / "shared").lines == with.lines);
  job.parallelism.data = job.parallelism.expert = 2;
  job.parallelism.pipeline = 2;
  CHECK(watched(job, dir / "stages").lines == with.lines);
}

TEST_CASE("experts: ranks of a tensor group count a token once", "[experts]") {
  const TemporaryFolder dir;
  JobSpec job = watched_job(dir);
  job.parallelism.context_blocks = 1;
  job.parallelism.tensor = 2;
  const Watched two = watched(job, dir / "two");
  JobSpec wider = job;
  wider.parallelism.data = 2;
  wider.parallelism.expert = 2;
  CHECK(watched(wider, dir / "four").lines == two.lines);
  // No record, no sums: where none is asked for.
  job.observability.rank_metrics_every_steps = 0;
  CHECK(watched(job, dir / "none").lines.empty());
}
