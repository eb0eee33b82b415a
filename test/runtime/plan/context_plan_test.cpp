// Goal: a plan says what context parallelism takes, sends and saves. Method: one job with whole sequences,
// with their blocks on one rank, and on four; the bytes of both kinds of exchange against their formulas.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <optional>

#include "runtime/base/json.h"
#include "runtime/plan/report.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

TEST_CASE("a plan says what context ranks are, send and save in memory") {
  const auto report = [](int context, int blocks, DeviceKind kind = DeviceKind::cpu) {
    const ParseInput input{
        .text =
            R"({"version": 1, "name": "test", "model": {"preset": "llama-tiny"}, "batch": {"global_sequences": 8},
            "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint16"}]}, "device": "cpu",
            "schedule": {"total_steps": 10, "lr": 1e-3}, "parallelism": {"lanes": 2}})",
        .file = "job.json",
        .overrides = {fmt::format("parallelism.context={}", context),
                      fmt::format("parallelism.context_blocks={}", blocks)},
        .environment = {}};
    const ParsedJob parsed = parse_job(input);
    REQUIRE(parsed.ok());
    return make_report(input, parsed.job, device_of_kind(parsed.job, kind), std::nullopt);
  };
  const PlanReport whole = report(1, 1), alone = report(1, 4), shared = report(4, 4);
  CHECK_THAT(render_plan(shared), Catch::Contains("4 ranks = tensor 1 x context 4 x pipeline 1 x data 1") &&
                                      Catch::Contains("2 lanes of 4 context blocks") &&
                                      Catch::Contains("(stage 0, tensor 0, context ") &&
                                      Catch::Contains("KiB · context "));
  CHECK_THAT(render_plan(alone), Catch::Contains("gradients (f32, of 4 context blocks)"));
  CHECK_THAT(render_plan(whole), !Catch::Contains("context"));
  const PlanReport on_gpus = report(4, 4, DeviceKind::cuda);
  CHECK_THAT(render_plan(on_gpus),
             Catch::Contains("2 lanes of 4 context blocks") && !Catch::Contains("no launch on them"));
  CHECK(on_gpus.plan.worst().stage.context == shared.plan.worst().stage.context);
  const Json json = parse_json(plan_json(shared));
  CHECK(json["mesh"]["context"] == 4);
  CHECK(json["traffic_bytes"]["context"].get<double>() > 0);
  CHECK(json.contains("reduction"));
  CHECK_FALSE(parse_json(plan_json(alone))["mesh"].contains("context"));
  CHECK(shared.plan.worst().stage.activations < alone.plan.worst().stage.activations / 3);
  CHECK(alone.plan.worst().sharding.gradients == 4 * shared.plan.worst().sharding.gradients);
}

TEST_CASE("a plan counts what context ranks send as either kind") {
  constexpr double kRanks = 2;
  const auto report = [](const char* comm) {
    const ParseInput input{
        .text =
            R"({"version": 1, "name": "test", "model": {"preset": "llama-tiny"}, "batch": {"global_sequences": 8},
            "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint16"}]}, "device": "cpu",
            "schedule": {"total_steps": 10, "lr": 1e-3}, "parallelism": {"lanes": 2, "context": 2}})",
        .file = "job.json",
        .overrides = {fmt::format("parallelism.context_comm_type={}", comm)},
        .environment = {}};
    const ParsedJob parsed = parse_job(input);
    REQUIRE(parsed.ok());
    return make_report(input, parsed.job, device_of_kind(parsed.job, DeviceKind::cpu), std::nullopt);
  };
  const PlanReport gathers = report("all_gather"), exchanges = report("a2a");
  const JobSpec& job = gathers.job;
  REQUIRE(job.recompute == Recompute::none);
  const double queries = double(job.model.num_heads * job.model.head_dim()),
               keys = double(job.model.num_kv_heads * job.model.head_dim()),
               tokens = double(job.batch.global_sequences * job.data.seq_len * job.model.num_layers) / kRanks,
               size = double(size_of(job.compute));
  // Keys and values twice, and their gradients; queries, keys, values and output, and their gradients.
  CHECK(gathers.plan.traffic.context == tokens * size * (kRanks - 1) * 3 * 2 * keys);
  CHECK(exchanges.plan.traffic.context ==
        tokens * size * (kRanks - 1) / kRanks * 2 * (2 * queries + 2 * keys));
  CHECK_THAT(render_plan(gathers), Catch::Contains("context_comm_type = all_gather sends ") &&
                                       Catch::Contains("; a2a would send "));
  CHECK_THAT(render_plan(exchanges), Catch::Contains("context_comm_type = a2a sends ") &&
                                         Catch::Contains("; all_gather would send "));
}
