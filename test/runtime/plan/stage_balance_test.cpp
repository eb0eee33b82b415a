// Goal: where ranks of a stage are slow, its layers move to others, if that helps and no rank needs more memory.
// Method: tables of jobs; every cut of a small model as the measure of what is best.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "runtime/model/stage_layers.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/stage_balance.h"

using namespace trainctl;

namespace {

ParsedJob balanced_job(std::vector<std::string> overrides) {
  ParsedJob job = parse_job({.text = R"({"version": 1,
  "model": {"family": "llama", "hidden_size": 64, "num_layers": 12, "num_heads": 4, "num_kv_heads": 2,
            "ffn_size": 96, "vocab_size": 128, "max_seq_len": 32},
  "data": {"train": [{"path": "a.idx"}], "seq_len": 32},
  "batch": {"global_sequences": 32, "micro_sequences": 1},
  "parallelism": {"pipeline": 3, "data": 2},
  "schedule": {"total_steps": 10, "lr": 1e-3}})",
                             .file = "balance.json",
                             .overrides = std::move(overrides)});
  REQUIRE(job.ok());
  return job;
}

/// The time of the slowest stage.
double slowest(const ParsedJob& job, const std::vector<int64_t>& layers,
               const std::vector<double>& slowness) {
  const PartFlops costs = part_flops(model_plan(job.job.model, job.job.compute), job.job.data.seq_len);
  const std::vector<double> of = stage_costs(layers, job.job.parallelism.stage_order(), costs, slowness);
  return *std::max_element(of.begin(), of.end());
}

/// The least time of the slowest stage over all cuts of 12 layers into three stages.
double best(const ParsedJob& job, const std::vector<double>& slowness) {
  double least = 1e300;
  for (int64_t a = 0; a <= 12; ++a)
    for (int64_t b = 1; a + b <= 12; ++b) least = std::min(least, slowest(job, {a, b, 12 - a - b}, slowness));
  return least;
}

constexpr uint64_t kNoLimit = uint64_t(1) << 50;

uint64_t most_bytes(const JobSpec& job) { return make_plan(job, DeviceKind::cpu).worst().total(); }

}  // namespace

TEST_CASE("a balanced cut of slow stages is the best of all cuts") {
  const ParsedJob job = balanced_job({});
  const parallel::VirtualStages order = job.job.parallelism.stage_order();
  const PartFlops costs = part_flops(model_plan(job.job.model, job.job.compute), job.job.data.seq_len);
  for (const std::vector<double>& slowness : std::vector<std::vector<double>>{
           {}, {1, 1, 1}, {1.5, 1, 1}, {1, 1.5, 1}, {1, 1, 3}, {1.1, 1.2, 1}, {2, 1, 2}, {1, 20, 1}}) {
    CAPTURE(slowness);
    const std::vector<int64_t> layers = balanced_layers(costs, order, slowness);
    CHECK(std::accumulate(layers.begin(), layers.end(), int64_t{0}) == 12);
    CHECK(slowest(job, layers, slowness) == best(job, slowness));
    PartFlops unlike = costs;  // by the other way to cut
    unlike.layers[0] *= 1.0000001;
    const std::vector<int64_t> of_unlike = balanced_layers(unlike, order, slowness);
    CHECK(slowest(job, of_unlike, slowness) <= best(job, slowness) * 1.00001);
  }
  CHECK(balanced_layers(costs, order, {1, 1, 1}) == balanced_layers(costs, order));
}

TEST_CASE("layers leave the stage of slow ranks, where no rank needs more memory for it") {
  const ParsedJob job = balanced_job({});
  const auto own = stage_layers(model_plan(job.job.model, job.job.compute), job.job.parallelism, 32);
  // Ranks 2 and 3 are the middle stages of the two replicas, rank 0 a first one.
  const parallel::MeshShape mesh = job.job.mesh();
  REQUIRE(parallel::position_of(mesh, 2).pp == 1);
  REQUIRE(parallel::position_of(mesh, 0).pp == 0);
  const auto first = balance_for(job, {.ranks = {0}, .share = 1}, kNoLimit);
  REQUIRE(first);
  CHECK(first->layers[0] < own[0]);
  CHECK(first->faster == Approx(1 - best(job, {2, 1, 1}) / slowest(job, own, {2, 1, 1})));
  CHECK(balance_for(job, {.ranks = {2, 3}, .share = 1}, kNoLimit)->layers ==
        balance_for(job, {.ranks = {3}, .share = 1}, kNoLimit)->layers);
  size_t larger = 0;
  for (const int rank : {0, 2, 4}) {
    CAPTURE(rank);
    const SlowShare slow{{rank}, 1};
    const auto balance = balance_for(job, slow, kNoLimit);
    REQUIRE(balance);
    JobSpec moved = job.job;
    moved.parallelism.stage_layers = balance->layers;
    const uint64_t needs = most_bytes(moved), had = most_bytes(job.job);
    CHECK(balance_for(job, slow, needs));
    CHECK(balance_for(job, slow, needs - 1).has_value() == (needs <= had));
    CHECK(balance_for(job, slow, 0).has_value() == (needs <= had));
    larger += needs > had;
  }
  CHECK(larger > 0);
}

TEST_CASE("layers stay where nothing is gained") {
  const ParsedJob job = balanced_job({});
  CHECK_FALSE(balance_for(job, {.ranks = {0}, .share = 0.02}, kNoLimit));  // a layer is a quarter of a stage
  CHECK_FALSE(balance_for(job, {.ranks = {0, 2, 4}, .share = 0.5}, kNoLimit));
  CHECK_FALSE(balance_for(job, {.ranks = {}, .share = 0.5}, kNoLimit));
  CHECK_FALSE(balance_for(job, {.ranks = {77}, .share = 0.5}, kNoLimit));
  CHECK_FALSE(balance_for(job, {.ranks = {0}, .share = 0}, kNoLimit));
  CHECK_FALSE(balance_for(balanced_job({"parallelism.pipeline=1"}), {.ranks = {0}, .share = 1}, kNoLimit));
}
