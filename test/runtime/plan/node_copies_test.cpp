// Goal: the plan counts what a node holds in /dev/shm: two slots for each of its ranks, and as much again for
// the ranks of the node whose partner it is; each rank's second copies are on exactly one other node.
// Method: plans made by hand with stages of different size, on nodes of equal and of different numbers of
// ranks; then the slots that a real plan gives, as text and as JSON.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <numeric>

#include "runtime/base/json.h"
#include "runtime/base/units.h"
#include "runtime/plan/node_copies.h"
#include "runtime/plan/report.h"

using namespace trainctl;

namespace {

constexpr size_t kMib = size_t(1) << 20;

/// Two stages; a rank of the first has slots of 10 MiB, one of the second slots of 6 MiB.
struct Planned {
  explicit Planned(int tensor, int data) {
    job.parallelism = {.world_size = 2 * tensor * data, .tensor = tensor, .pipeline = 2, .data = data};
    plan.stages.resize(2);
    plan.stages[0].copies = 10 * kMib;
    plan.stages[1].copies = 6 * kMib;
  }
  JobSpec job;
  JobPlan plan;
};

}  // namespace

TEST_CASE("a node holds its own copies and those of one other node") {
  Planned p(2, 2);  // ranks 0-3 of the first stage, 4-7 of the second
  const auto nodes = copies_of_nodes(p.job.checkpoint, p.job.mesh(), p.plan, {4, 4});
  REQUIRE(nodes.size() == 2);
  CHECK((nodes[0].own == 40 * kMib && nodes[0].second == 24 * kMib));
  CHECK((nodes[1].own == 24 * kMib && nodes[1].second == 40 * kMib));
  CHECK((nodes[0].own_ranks == 4 && nodes[0].second_ranks == 4));
  CHECK((nodes[0].own_of_rank() == 10 * kMib && nodes[0].second_of_rank() == 6 * kMib));
  CHECK(most_copies(nodes).total() == 64 * kMib);
}

TEST_CASE("all second copies are somewhere, on nodes of any size") {
  for (const std::vector<int>& sizes : {std::vector{8}, {4, 4}, {2, 4, 2}, {6, 2}, {2, 2, 2, 2}, {4, 2, 2}}) {
    CAPTURE(sizes);
    Planned p(2, 2);
    const auto nodes = copies_of_nodes(p.job.checkpoint, p.job.mesh(), p.plan, sizes);
    uint64_t own = 0, second = 0;
    int second_ranks = 0;
    for (const NodeCopies& node : nodes) {
      own += node.own;
      second += node.second;
      second_ranks += node.second_ranks;
    }
    CHECK(own == 64 * kMib);
    // One node has no other.
    CHECK(second == (sizes.size() > 1 ? own : 0));
    CHECK(second_ranks == (sizes.size() > 1 ? 8 : 0));
  }
}

TEST_CASE("without second copies a node holds its own alone") {
  Planned p(2, 2);
  p.job.checkpoint.partner = PartnerCopies::off;
  CHECK(most_copies(copies_of_nodes(p.job.checkpoint, p.job.mesh(), p.plan, {4, 4})).total() == 40 * kMib);
  p.job.checkpoint.partner = PartnerCopies::automatic;
  p.job.checkpoint.memory = MemoryCopies::off;
  for (RankMemory& stage : p.plan.stages) stage.copies = 0;
  CHECK(most_copies(copies_of_nodes(p.job.checkpoint, p.job.mesh(), p.plan, {4, 4})).total() == 0);
}

TEST_CASE("the report says in one line what a node holds for another one") {
  const ParseInput input{
      .text = R"({"version": 1, "name": "test", "device": "cuda", "model": {"preset": "gpt2-124m"},
      "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint16"}]},
      "batch": {"global_sequences": 16}, "parallelism": {"data": 8},
      "schedule": {"total_steps": 100, "lr": 1e-3}})",
      .file = "job.json",
      .overrides = {},
      .environment = {}};
  const ParsedJob parsed = parse_job(input);
  REQUIRE(parsed.ok());
  PlanReport report =
      make_report(input, parsed.job, device_named("h100", parsed.job, DeviceKind::cuda), std::nullopt);
  CHECK_THAT(render_plan(report), !Catch::Contains("second copies"));
  CHECK_FALSE(parse_json(plan_json(report)).contains("node_copies"));
  report.copies = most_copies(copies_of_nodes(report.job.checkpoint, report.job.mesh(), report.plan, {4, 4}));
  const size_t rank = report.plan.worst().copies;
  CHECK(report.copies->second == 4 * rank);
  const std::string size = memory_text(double(rank));
  CHECK_THAT(render_plan(report),
             Catch::Contains("second copies for another node: 4 x " + size) &&
                 Catch::Contains(fmt::format("{} of /dev/shm", memory_text(8 * double(rank)))));
  const auto json = parse_json(plan_json(report))["node_copies"];
  CHECK(json["own_ranks"] == 4);
  CHECK(json["own_bytes"] == 4 * rank);
  CHECK(json["second_ranks"] == 4);
  CHECK(json["second_bytes"] == 4 * rank);
  CHECK(json["bytes"] == 8 * rank);
  // One node alone: no second copies.
  report.copies = most_copies(copies_of_nodes(report.job.checkpoint, report.job.mesh(), report.plan, {8}));
  CHECK_THAT(render_plan(report), !Catch::Contains("second copies"));
  CHECK(parse_json(plan_json(report))["node_copies"]["second_bytes"] == 0);
}
