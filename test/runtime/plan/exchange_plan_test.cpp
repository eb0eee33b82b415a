// Goal: the plan says how gradients and weights travel, and counts their bytes and the memory for them.
// Method: plans of gpt2-124m that differ in one setting (the dtype of gradients, the way they are exchanged,
// the width, whether weights stay after their forward pass) are compared with each other.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cmath>

#include "runtime/plan/report.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

ParseInput job_input(const std::vector<std::string>& settings) {
  return {.text = R"({"version": 1, "name": "test", "model": {"preset": "gpt2-124m"},
            "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint16"}]},
            "parallelism": {"bucket_mib": 25},
            "schedule": {"total_steps": 10, "lr": 1e-3}})",
          .file = "job.json",
          .overrides = settings,
          .environment = {}};
}

}  // namespace

TEST_CASE("by default each data-parallel rank owns a part of a bucket, as long as that is not too large") {
  using Settings = std::vector<std::string>;
  for (auto [mib, settings] :
       {std::pair<double, Settings>{64, {"parallelism.data=4"}},
        {128, {"parallelism.data=4", "parallelism.context=2", "parallelism.context_blocks=2"}},
        {128, {"parallelism.data=32"}},
        {80, {"parallelism.data=8", "checkpoint.chunk_mib=5"}},
        {200, {"parallelism.data=1", "checkpoint.chunk_mib=200"}},
        {25, {"parallelism.data=4", "model.preset=gpt2-tiny"}}}) {
    settings.push_back("parallelism.bucket_mib=auto");
    settings.push_back("batch.global_sequences=64");
    const ParsedJob parsed = parse_job(job_input(settings));
    REQUIRE(parsed.ok());
    CHECK(parsed.job.parallelism.bucket_mib == mib);
  }
}

TEST_CASE("the plan says how gradients travel, and counts their bytes and buffers") {
  const auto report_of = [](std::vector<std::string> settings) {
    settings.insert(settings.end(),
                    {"precision.compute=bf16", "batch.micro_sequences=1", "batch.global_sequences=48",
                     "parallelism.lanes=16", "model.tie_embeddings=false"});
    const ParseInput input = job_input(settings);
    const ParsedJob parsed = parse_job(input);
    REQUIRE(parsed.ok());
    return make_report(input, parsed.job, device_of_kind(parsed.job, DeviceKind::cpu), std::nullopt);
  };
  const PlanReport f32 = report_of({"parallelism.data=8"}),
                   bf16 = report_of({"parallelism.data=8", "parallelism.reduction_dtype=bf16"});
  // Gradients of 4 or 2 bytes, and weights of 2. (A tied embedding would send two gradients for one weight.)
  CHECK(bf16.plan.traffic.data / f32.plan.traffic.data == Approx(4.0 / 6).epsilon(0.01));
  const auto ring = [](const PlanReport& r) {
    for (const MemoryRegion& region : r.plan.regions)
      if (region.name == "buckets under way") return double(region.bytes);
    return 0.0;
  };
  CHECK(ring(bf16) < 0.6 * ring(f32));
  CHECK(bf16.plan.buckets.halving == f32.plan.buckets.halving);
  CHECK(f32.plan.buckets.halving > 4);
  CHECK(f32.plan.buckets.direct > 0);
  // One with few owners, or a small one.
  CHECK(f32.plan.buckets.largest_direct_bytes > 0);
  CHECK(f32.plan.buckets.largest_direct_bytes < 8 << 20);
  CHECK(bf16.plan.buckets.largest_direct_bytes == f32.plan.buckets.largest_direct_bytes / 2);
  CHECK_THAT(render_plan(bf16),
             Catch::Contains("gradients in bf16; ") && Catch::Contains("by recursive halving, "));
  CHECK_THAT(plan_json(bf16),
             Catch::Contains("\"direct_buckets\": " + std::to_string(bf16.plan.buckets.direct)) &&
                 Catch::Contains("\"direct_more_bytes\": "));
  CHECK(f32.plan.buckets.more_bytes > 0);
  CHECK(bf16.plan.buckets.more_bytes == f32.plan.buckets.more_bytes / 2);
  CHECK_THAT(render_plan(bf16), Catch::Contains(" more than halved)"));
  const PlanReport direct = report_of({"parallelism.data=8", "parallelism.reduction_algorithm=direct"}),
                   uneven = report_of({"parallelism.data=3"}), one = report_of({"parallelism.data=1"});
  CHECK(direct.plan.buckets.halving == 0);
  CHECK(direct.plan.buckets.direct == f32.plan.buckets.halving + f32.plan.buckets.direct);
  CHECK(uneven.plan.buckets.halving == 0);
  CHECK(uneven.plan.buckets.direct > 0);
  CHECK(uneven.plan.buckets.more_bytes == 0);  // they cannot be halved
  CHECK(one.plan.buckets.halving + one.plan.buckets.direct == 0);
}

TEST_CASE("buckets of a large model with few owners send hardly more than by halving") {
  fmt::print(
      "llama3-70b, tensor 8 x pipeline 4 x data 16: GB of gradients and weights that a rank sends in a step\n"
      "{:>5} {:>12} {:>9} {:>9} {:>9} {:>24}\n",
      "zero", "neighbours", "halving", "direct", "auto", "buckets halved, direct");
  for (const int of_node : {0, 8})  // all ranks on one node; a tensor group a node
    for (int zero = 0; zero <= 3; ++zero) {
      const auto plan_of = [&](const char* way) {
        const ParsedJob parsed =
            parse_job(job_input({"model.preset=llama3-70b", "precision.compute=bf16", "parallelism.tensor=8",
                                "parallelism.pipeline=4", "parallelism.data=16", "parallelism.lanes=16",
                                "batch.micro_sequences=1", "batch.global_sequences=512",
                                fmt::format("parallelism.zero_stage={}", zero),
                                fmt::format("parallelism.reduction_algorithm={}", way)}));
        REQUIRE(parsed.ok());
        DeviceModel device = device_of_kind(parsed.job, DeviceKind::cuda);
        device.ranks_on_node = of_node;
        return make_plan(parsed.job, device);
      };
      const JobPlan halving = plan_of("halving"), direct = plan_of("direct"), chosen = plan_of("auto");
      fmt::print("{:>5} {:>12} {:>9.3f} {:>9.3f} {:>9.3f} {:>18}, {}\n", zero, of_node == 0 ? 16 : 1,
                 halving.traffic.data / 1e9, direct.traffic.data / 1e9, chosen.traffic.data / 1e9,
                 chosen.buckets.halving, chosen.buckets.direct);
      CAPTURE(of_node, zero);
      CHECK(direct.traffic.data > 1.02 * halving.traffic.data);
      CHECK(chosen.traffic.data < 1.005 * halving.traffic.data);
      CHECK(chosen.buckets.halving > 8 * chosen.buckets.direct);
      CHECK(halving.buckets.more_bytes == 0);
      CHECK(direct.buckets.more_bytes > 100 * chosen.buckets.more_bytes / 5);
      CHECK(chosen.buckets.more_bytes > 0);
    }
}

TEST_CASE("weights that stay after their forward pass are sent once a step, and take memory") {
  const auto plan_of = [&](int zero, bool reshards, int64_t sequences) {
    const ParsedJob parsed = parse_job(job_input(
        {"precision.compute=bf16", "parallelism.data=8", "batch.micro_sequences=1",
         fmt::format("batch.global_sequences={}", sequences), fmt::format("parallelism.lanes={}", sequences),
         "model.tie_embeddings=false", fmt::format("parallelism.zero_stage={}", zero),
         fmt::format("parallelism.reshard_after_forward={}", reshards)}));
    REQUIRE(parsed.ok());
    return make_plan(parsed.job, DeviceKind::cuda);
  };
  const JobPlan two = plan_of(2, true, 32), kept = plan_of(3, false, 32), turns = plan_of(3, true, 32);
  // All weights of the rank, and its own share of them for the steps between.
  CHECK(kept.worst().sharding.weights > two.worst().sharding.weights);
  CHECK(double(kept.worst().sharding.weights) < 1.2 * double(two.worst().sharding.weights));
  CHECK(turns.worst().sharding.weights < two.worst().sharding.weights);
  // Of four lanes a rank: their gradients, and the weights once.
  CHECK(std::abs(kept.traffic.data / two.traffic.data - 1) < 0.02);
  CHECK(turns.traffic.data > 1.5 * kept.traffic.data);
}
