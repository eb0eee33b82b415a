// Goal: what is measured of a device predicts the ops that it was measured by, and a measured step runs the
// ops that a plan counts. Method: the counted ops of small steps, each with the time that a made-up device
// takes for it, are fitted; the ops of a timed step are compared with the tally of the same step.
#include <catch2/catch.hpp>

#include <cmath>

#include "kernels/ops.h"
#include "runtime/plan/device_model.h"
#include "runtime/plan/measure_device.h"
#include "runtime/predict/cluster.h"
#include "runtime/predict/collective_time.h"
#include "runtime/predict/op_time.h"
#include "runtime/spec/parse.h"
#include "test/support/tolerances.h"

using namespace trainctl;

namespace {

JobSpec small_job(const std::string& precision, int hidden, int sequence) {
  const ParsedJob parsed =
      parse_job({.text = fmt::format(R"({{"version": 1, "name": "small", "device": "cpu",
          "model": {{"family": "llama", "hidden_size": {}, "num_layers": 1, "num_heads": {}, 
                     "num_kv_heads": {}, "ffn_size": {}, "vocab_size": 512, "max_seq_len": {}, "tie_embeddings": false}},
          "data": {{"train": [{{"path": "/none.bin", "format": "raw", "dtype": "uint32"}}]}},
          "batch": {{"global_sequences": 2, "micro_sequences": 1}}, "precision": {{"compute": "{}"}},
          "parallelism": {{"threads_per_rank": 1}}, "schedule": {{"total_steps": 1, "lr": 1e-3}}}})",
                                     hidden, hidden / 32, hidden / 32, 3 * hidden, sequence, precision),
                 .file = "small.json",
                 .overrides = {},
                 .environment = {}});
  REQUIRE(parsed.ok());
  return parsed.job;
}

kernels::WorkTally ops_of_step(const JobSpec& job) {
  const DeviceModel device = device_of_kind(job, DeviceKind::cpu);
  const ModelTables tables = model_tables(job);
  return tally_step({job, device, tables}, {}, false).work;
}

/// The ops of a step as the device would take them.
TimedOps made_up(const predict::DeviceSpeed& device, const std::string& precision, int hidden, int sequence) {
  const JobSpec job = small_job(precision, hidden, sequence);
  TimedOps ops{.f32 = precision == "f32", .head_dim = 32, .ops = {}};
  for (const auto& [shape, count] : ops_of_step(job).ops) {
    const double calls = double(count.calls);
    const kernels::OpCount one{1, count.flops / calls, count.attention_flops / calls, count.bytes / calls};
    ops.ops.push_back(
        {shape, one, predict::op_seconds(device, shape, one, {.f32 = ops.f32, .head_dim = 32}).sum(), calls});
  }
  return ops;
}

}  // namespace

TEST_CASE("a device is fitted from the times of its ops") {
  const predict::DeviceSpeed known = predict::known_cluster("cpu-core").device;
  predict::DeviceSpeed truth = known;
  truth.peak_f32_flops_per_s = 60e9, truth.peak_bf16_flops_per_s = 200e9;
  truth.product_share = 0.8, truth.depth_cost = 31;
  truth.attention = {{32, 40e9, 30e9, 25e9, 20e9}};
  truth.attention_half_length = 60;
  truth.ops = {{std::string(kernels::GatedForward::kName), 2e9, 1.5e9, 3e-6},
               {std::string(kernels::AdamW::kName), 12e9, 11e9, 0}};
  std::vector<TimedOps> steps;
  for (const char* precision : {"f32", "bf16"})
    for (const auto& [hidden, sequence] : {std::pair{128, 64}, {256, 128}, {512, 512}})
      steps.push_back(made_up(truth, precision, hidden, sequence));
  const FitErrors before = fit_errors(known, steps);
  CHECK(std::abs(before.of_op) > 0.2);
  predict::DeviceSpeed start = known;
  start.peak_f32_flops_per_s = truth.peak_f32_flops_per_s;
  start.peak_bf16_flops_per_s = truth.peak_bf16_flops_per_s;
  const predict::DeviceSpeed fitted = fit_device(start, steps);
  const FitErrors after = fit_errors(fitted, steps);
  CHECK(std::abs(after.total) < 0.02);
  CHECK(after.of_op < 0.03);
  CHECK(fitted.product_share == Approx(0.8).epsilon(0.03));
  CHECK(fitted.depth_cost == Approx(31).epsilon(0.2));
  REQUIRE(fitted.attention.size() == 1);
  CHECK(fitted.attention[0].backward_f32_flops_per_s == Approx(20e9).epsilon(0.1));
  const predict::OpRate* const gated = fitted.rate_of(kernels::GatedForward::kName);
  REQUIRE(gated);
  CHECK(gated->f32_bytes_per_s == Approx(2e9).epsilon(0.05));
  CHECK(gated->bf16_bytes_per_s == Approx(1.5e9).epsilon(0.05));
  // All of it is a legal file.
  predict::ClusterModel cluster = predict::known_cluster("cpu-core");
  cluster.device = fitted;
  const predict::DeviceSpeed read =
      predict::parse_cluster(predict::cluster_text(cluster), "mine.json").device;
  CHECK(fit_errors(read, steps).of_op == Approx(after.of_op).margin(test::tolerance::kClusterDigits));
}

TEST_CASE("a timed step runs the ops that its plan counts") {
  const JobSpec job = small_job("f32", 64, 32);
  const DeviceModel device = device_of_kind(job, DeviceKind::cpu);
  const ModelTables tables = model_tables(job);
  const TimedSteps timed = time_steps({job, device, tables}, kernels::make_cpu_backend(1), 3);
  const kernels::WorkTally once = ops_of_step(job);
  REQUIRE(timed.work.ops.size() == once.ops.size());
  for (const auto& [shape, count] : once.ops) {
    CAPTURE(shape.op, shape.m, shape.n, shape.k);
    const auto found = timed.work.ops.find(shape);
    REQUIRE(found != timed.work.ops.end());
    CHECK(found->second.calls == 3 * count.calls);
    CHECK(found->second.flops == 3 * count.flops);
    CHECK(found->second.bytes == 3 * count.bytes);
    CHECK(timed.seconds.at(shape).size() == 3 * count.calls);
  }
  const TimedOps ops = TimedOps::of(timed, true, 32);
  double flops = 0;
  for (const TimedOp& op : ops.ops) flops += op.calls * op.one.flops;
  CHECK(flops == Approx(3 * once.flops()));
}

TEST_CASE("a link is fitted from exchanges of several sizes") {
  using namespace predict;
  CHECK_FALSE(fit_link(timed_exchanges("mpirun was not found\nexchange 5\n")));
  std::string lines = "a warning of another program\n";
  for (const double bytes : {1e3, 4e3, 1.6e4, 6.4e4, 1e6, 4e6})
    lines += fmt::format("exchange {} {:.9f}\n", bytes, 20e-6 + bytes / 3e9);
  const auto link = fit_link(timed_exchanges(lines));
  REQUIRE(link);
  CHECK(link->latency_s == Approx(20e-6).epsilon(0.03));
  CHECK(link->bytes_per_s == Approx(3e9).epsilon(0.03));
}
