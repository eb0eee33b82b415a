// Goal: a run is compared with its prediction by kind of instruction, and what it decides of a cluster file
// is corrected so that the file predicts the run; steps are taken from a run's lines as they were measured.
// Method: made-up measurements: the steps that a slower device or link is predicted to take, compared with
// the known cluster; lines of metrics with known medians.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cmath>

#include "runtime/observe/report/measured_step.h"
#include "runtime/plan/against.h"
#include "runtime/plan/device_model.h"
#include "runtime/plan/plan.h"
#include "runtime/predict/cluster.h"
#include "runtime/spec/parse.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using predict::ClusterModel;

namespace {

JobSpec against_job(std::vector<std::string> settings) {
  settings.push_back("device=cpu");
  const ParsedJob parsed = parse_job({.text = R"({"version": 1, "name": "against",
      "model": {"family": "llama", "hidden_size": 256, "num_layers": 4, "num_heads": 4, "num_kv_heads": 4,
                "ffn_size": 704, "vocab_size": 2048, "max_seq_len": 128, "tie_embeddings": false},
      "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint32"}]},
      "batch": {"global_sequences": 8, "micro_sequences": 2}, "precision": {"compute": "f32"},
      "schedule": {"total_steps": 10, "lr": 1e-3}})",
                                      .file = "job.json",
                                      .overrides = std::move(settings),
                                      .environment = {}});
  REQUIRE(parsed.ok());
  return parsed.job;
}

struct Against {
  explicit Against(std::vector<std::string> settings)
      : job(against_job(std::move(settings))),
        device(device_of_kind(job, DeviceKind::cpu)),
        plan(make_plan(job, device)) {}
  const JobSpec job;
  const DeviceModel device;
  const JobPlan plan;

  StepTime time(const ClusterModel& cluster) const { return predict_step(job, plan, device, cluster); }
  /// As if a run had taken what is predicted for the cluster.
  MeasuredStep measured(const ClusterModel& cluster) const {
    const StepTime t = time(cluster);
    const double waits = t.parts.sum() - t.parts.work.sum() - t.parts.optimizer;
    return {.steps = 5,
            .first = 3,
            .last = 7,
            .step_s = t.step_s,
            .forward_s = t.forward_s,
            .backward_s = t.backward_input_s + t.backward_weight_s,
            .waiting_s = waits,
            .optimizer_s = t.parts.optimizer,
            .uneven_s = t.parts.spread};
  }
  CorrectedCluster correct(const ClusterModel& cluster, const MeasuredStep& step) const {
    return correct_cluster(cluster, step, [&](const ClusterModel& c) { return time(c); },
                           {.with_pipeline = job.parallelism.pipeline > 1, .source = "corrected by a test"});
  }
};

double before_over_after(const CorrectedCluster& corrected, const std::string& field) {
  for (const Correction& one : corrected.corrections)
    if (one.field == field) return one.after / one.before;
  return NAN;
}

}  // namespace

TEST_CASE("a run whose products are slower than predicted is said to be so") {
  const ClusterModel known = predict::known_cluster("cpu-core");
  ClusterModel slow = known;
  slow.device.product_share *= 0.8;
  for (const std::vector<std::string>& mesh :
       {std::vector<std::string>{}, {"parallelism.pipeline=2"}, {"parallelism.tensor=2"}}) {
    const Against of(mesh);
    const MeasuredStep measured = of.measured(slow);
    const Comparison comparison = compare_step(of.time(known), measured);
    CHECK(comparison.step.measured_s > 1.05 * comparison.step.predicted_s);
    double difference = 0;
    for (const ComparedKind& kind : comparison.kinds) difference += kind.difference_s();
    CHECK(difference == Approx(comparison.step.difference_s()));
    CHECK_THAT(comparison.verdict, Catch::Contains("longer than predicted; most of all backward took"));
    const CorrectedCluster corrected = of.correct(known, measured);
    CHECK(before_over_after(corrected, "device.product_share") == Approx(0.8).epsilon(0.01));
    CHECK(of.time(corrected.cluster).step_s == Approx(measured.step_s).epsilon(0.01));
    CHECK_THAT(corrected.cluster.device_source, Catch::EndsWith("; corrected by a test"));
    CHECK(corrected.cluster.fabric_source == known.fabric_source);
    // It is a legal file, also behind its text.
    const ClusterModel read =
        predict::parse_cluster(predict::cluster_text(corrected.cluster), "corrected.json");
    CHECK(of.time(read).step_s == Approx(measured.step_s).epsilon(0.01));
  }
}

TEST_CASE("faster products and slower memory than a file can say are put into its peaks") {
  const ClusterModel known = predict::known_cluster("cpu-core");
  ClusterModel other = known;
  other.device.peak_f32_flops_per_s *= 1.5, other.device.peak_bf16_flops_per_s *= 1.5;
  other.device.memory_bytes_per_s *= 2;
  const Against of({});
  const MeasuredStep measured = of.measured(other);
  const CorrectedCluster corrected = of.correct(known, measured);
  CHECK(corrected.cluster.device.product_share == 1);
  CHECK(corrected.cluster.device.memory_share == 1);
  CHECK(before_over_after(corrected, "device.memory_gb_per_s") > 1.5);
  CHECK(of.time(corrected.cluster).step_s == Approx(measured.step_s).epsilon(0.01));
  CHECK_NOTHROW(predict::parse_cluster(predict::cluster_text(corrected.cluster), "corrected.json"));
}

TEST_CASE("waits decide the link where nothing else is waited for") {
  const ClusterModel known = predict::known_cluster("cpu-core");
  ClusterModel slow = known;
  slow.node.bytes_per_s /= 4;
  const Against cut({"parallelism.tensor=2"});
  const CorrectedCluster corrected = cut.correct(known, cut.measured(slow));
  CHECK(before_over_after(corrected, "node.link_gb_per_s") == Approx(0.25).epsilon(0.02));
  CHECK_THAT(corrected.cluster.node_source, Catch::EndsWith("; corrected by a test"));
  const Against staged({"parallelism.pipeline=2"});
  const CorrectedCluster left = staged.correct(known, staged.measured(slow));
  CHECK(std::isnan(before_over_after(left, "node.link_gb_per_s")));
  CHECK(left.cluster.node_source == known.node_source);
}

TEST_CASE("ranks of one machine exchange through its memory, also where they are more than its cores") {
  const ClusterModel known = predict::known_cluster("cpu-core");
  REQUIRE(known.devices_of_node == 1);
  const Against of({"parallelism.tensor=4"});
  ClusterModel other = known;
  other.fabric.bytes_per_s /= 100;
  CHECK(of.time(other).step_s == of.time(known).step_s);
  other.node.bytes_per_s /= 100;
  CHECK(of.time(other).parts.tensor > 10 * of.time(known).parts.tensor);
  // Of two nodes.
  DeviceModel apart = of.device;
  apart.ranks_on_node = 2;
  CHECK(predict_step(of.job, of.plan, apart, known).parts.tensor > of.time(known).parts.tensor);
}

TEST_CASE("ranks that take turns on a core decide nothing") {
  const ClusterModel known = predict::known_cluster("cpu-core");
  const Against of({"parallelism.tensor=2"});
  MeasuredStep measured = of.measured(known);
  measured.forward_s /= 2, measured.optimizer_s *= 3;
  const CorrectedCluster corrected = correct_cluster(
      known, measured, [&](const ClusterModel& c) { return of.time(c); }, {.shares_devices = true});
  CHECK(corrected.corrections.empty());
  CHECK(predict::cluster_text(corrected.cluster) == predict::cluster_text(known));
  REQUIRE(corrected.undecided.size() == 1);
  CHECK_THAT(corrected.undecided[0], Catch::Contains("took turns"));
}

TEST_CASE("a step that is predicted well is said to be so, and corrects nothing") {
  const ClusterModel known = predict::known_cluster("cpu-core");
  const Against of({"parallelism.tensor=2"});
  const MeasuredStep measured = of.measured(known);
  CHECK_THAT(compare_step(of.time(known), measured).verdict,
             Catch::Contains("no kind of instruction is off by 1 %"));
  for (const Correction& one : of.correct(known, measured).corrections) {
    CAPTURE(one.field);
    CHECK(one.after == Approx(one.before).epsilon(test::tolerance::kClusterDigits));
  }
}

TEST_CASE("a measured step is the median of the lines that have times") {
  std::vector<StepLine> lines;
  for (int64_t step = 1; step <= 9; ++step) {
    StepLine line{.attempt = step < 3 ? 1u : 2u, .step = step, .skipped = step == 8};
    if (step != 6) {  // without times
      line.step_s = double(step);
      line.phases = Phases{.forward_s = 0.1 * double(step),
                           .backward_s = 0.2 * double(step),
                           .communication_s = 0.3 * double(step),
                           .optimizer_s = 0.4 * double(step),
                           .data_s = 0};
      line.ranks = RankSpread{.count = 2, .compute_s = Spread<double>{.min = 1, .median = 2, .max = 2.5}};
    }
    lines.push_back(line);
  }
  const MeasuredStep second = report::measured_step(lines, 2);
  // Of 3 to 9 without the first two, 6 and 8.
  CHECK(second.steps == 3);
  CHECK((second.first == 5 && second.last == 9));
  CHECK(second.step_s == 7);
  CHECK(second.forward_s == Approx(0.7));
  CHECK(second.waiting_s == Approx(2.1));
  CHECK(second.uneven_s == Approx(0.5));
  CHECK(report::measured_step(lines, 0).first == 3);
  // Where there are no others the first steps count.
  CHECK(report::measured_step(lines, 1).steps == 2);
  CHECK(report::measured_step(lines, 7).steps == 0);
  CHECK(report::measured_step({}, 0).steps == 0);
}
