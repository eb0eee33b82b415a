// Goal: quantile balancing gives experts equally many tokens, by the formula, with the same bits on every
// mesh. Method: biases from histograms against the exact quantile of sorted margins, in double; routers whose
// tokens all want one expert, with and without; tiny models on thread ranks over meshes, micro-batches, a
// resume and a skipped step; what a plan counts against what is allocated.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "ckpt/checkpoint.h"
#include "kernels/backend.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/train/quantile_balance.h"
#include "test/support/described_models.h"
#include "test/support/selection_biases.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using kernels::kMarginBins;
using parallel::Schedule;

namespace {

constexpr int64_t kQuantileSteps = 4;

JobSpec by_quantile(const TemporaryFolder& dir, DType compute = DType::f32) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe_quantile_experts(job.model);
  job.compute = compute;
  job.parallelism.lanes = 8;
  job.batch.global_sequences = 16;  // 2 micro-batches a lane
  return job;
}

struct QuantileRuns {
  const TemporaryFolder& dir;
  int runs = 0;
  ThreadRun run(const JobSpec& job, const std::string& resume_from = "", int64_t steps = kQuantileSteps) {
    return run_on_threads(
        job,
        {.dir = dir.path() + "/" + std::to_string(++runs), .resume_from = resume_from, .max_steps = steps});
  }
};

/// Tokens whose scores differ by expert: those of the last one are largest.
struct UnevenTokens {
  int64_t tokens = 4000, experts = 8, k = 2;
  std::vector<double> scores;  // [tokens, experts]
  explicit UnevenTokens(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < tokens * experts; ++i)
      scores.push_back(1 / (1 + std::exp(-0.5 * normal(random) - 0.5 * double(i % experts) + 2)));
  }
  double value(int64_t m, int64_t e, const std::vector<float>& bias) const {
    return scores[size_t(m * experts + e)] + double(bias[size_t(e)]);
  }
  std::vector<double> margins(int64_t m, const std::vector<float>& bias) const {
    std::vector<double> values;
    for (int64_t e = 0; e < experts; ++e) values.push_back(value(m, e, bias));
    std::sort(values.begin(), values.end(), std::greater<>());
    std::vector<double> all;
    for (int64_t e = 0; e < experts; ++e) all.push_back(values[size_t(k)] - scores[size_t(m * experts + e)]);
    return all;
  }
  /// The rule with the quantile of the sorted margins themselves.
  std::vector<double> exact(const std::vector<float>& bias) const {
    std::vector<std::vector<double>> of_expert{size_t(experts)};
    for (int64_t m = 0; m < tokens; ++m)
      for (int64_t e = 0; e < experts; ++e) of_expert[size_t(e)].push_back(margins(m, bias)[size_t(e)]);
    std::vector<double> next;
    for (std::vector<double>& column : of_expert) {
      std::sort(column.begin(), column.end());
      next.push_back(column[size_t(tokens * k / experts)]);
    }
    const double mean = std::accumulate(next.begin(), next.end(), 0.0) / double(experts);
    for (double& b : next) b -= mean;
    return next;
  }
  std::vector<float> by_histogram(const std::vector<float>& bias) const {
    const auto [least, most] = std::minmax_element(bias.begin(), bias.end());
    const double low = double(*least) - 1, high = double(*most) + 1;
    std::vector<int32_t> counts(size_t(experts * kMarginBins));
    for (int64_t m = 0; m < tokens; ++m) {
      const std::vector<double> of_token = margins(m, bias);
      for (int64_t e = 0; e < experts; ++e)
        ++counts[size_t(e * kMarginBins +
                        kernels::margin_bin(of_token[size_t(e)], low, double(kMarginBins) / (high - low)))];
    }
    return quantile_biases(counts, double(k) / double(experts), *least, *most);
  }
  std::vector<int64_t> load(const std::vector<float>& bias) const {
    std::vector<int64_t> slots(static_cast<size_t>(experts));
    for (int64_t m = 0; m < tokens; ++m) {
      std::vector<std::pair<double, int64_t>> order;
      for (int64_t e = 0; e < experts; ++e) order.emplace_back(-value(m, e, bias), e);
      std::sort(order.begin(), order.end());
      for (int64_t j = 0; j < k; ++j) ++slots[size_t(order[size_t(j)].second)];
    }
    return slots;
  }
};

}  // namespace

TEST_CASE("quantiles: the bias is that of the sorted margins, within a bin") {
  const UnevenTokens tokens(5);
  std::vector<float> bias(8);
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    const auto [least, most] = std::minmax_element(bias.begin(), bias.end());
    const double width = (double(*most) - double(*least) + 2) / double(kMarginBins);
    const std::vector<double> exact = tokens.exact(bias);
    const std::vector<float> next = tokens.by_histogram(bias);
    for (size_t e = 0; e < 8; ++e) CHECK(std::abs(double(next[e]) - exact[e]) <= 2 * width);
    CHECK(std::abs(std::accumulate(next.begin(), next.end(), 0.0)) < tolerance::kQuantileBias);
    bias = next;
  }
  const std::vector<int64_t> before = tokens.load(std::vector<float>(8)), after = tokens.load(bias);
  CHECK(*std::max_element(before.begin(), before.end()) > 3000);  // 1000 would be even
  CHECK(*std::min_element(before.begin(), before.end()) < 50);
  for (const int64_t slots : after) CHECK((slots > 880 && slots < 1100));
}

TEST_CASE("quantiles: a histogram's by hand, and none of no tokens") {
  std::vector<int32_t> counts(size_t(2 * kMarginBins));
  CHECK(quantile_biases(counts, 0.5, 0, 0).empty());
  // Bins of [-1, 1] are 0.002 wide. Half of 8 tokens: the end of the first bin; two of the four in the last.
  counts[0] = 4, counts[kMarginBins - 1] = 4;
  counts[size_t(kMarginBins) + 10] = 2, counts[size_t(2 * kMarginBins) - 1] = 4,
                               counts[size_t(kMarginBins) + 11] = 2;
  const double first = -1 + 0.002, second = -1 + 12 * 0.002, mean = (first + second) / 2;
  const std::vector<float> found = quantile_biases(counts, 0.5, 0, 0);
  REQUIRE(found.size() == 2);
  CHECK(found[0] == Approx(first - mean).margin(tolerance::kQuantileBias));
  CHECK(found[1] == Approx(second - mean).margin(tolerance::kQuantileBias));
  // A share that ends within a bin: a quarter of what is in it.
  const std::vector<float> part = quantile_biases(counts, 0.125, 0, 0);
  CHECK(part[0] - part[1] == Approx(0.25 * 0.002 - (10 + 0.5) * 0.002).margin(tolerance::kQuantileBias));
}

TEST_CASE("quantiles: the same bits on every mesh", "[bits]") {
  const TemporaryFolder dir;
  QuantileRuns runs{dir};
  for (const DType compute : {DType::f32, DType::bf16}) {
    const JobSpec job = by_quantile(dir, compute);
    const ThreadRun alone = runs.run(job);
    REQUIRE(alone.losses.size() == size_t(kQuantileSteps));
    const std::vector<float> biases = biases_in(job, alone.checkpoint);
    CHECK(std::count(biases.begin(), biases.end(), 0.0f) < 2);
    for (const TestMesh& mesh : {TestMesh{.expert = 2, .data = 2, .zero = 0},
                                 {.expert = 4, .data = 4, .zero = 1, .recompute = Recompute::full},
                                 {.data = 3, .zero = 1},
                                 {.data = 3, .zero = 3},
                                 {.expert = 2, .data = 4, .zero = 3, .recompute = Recompute::selective},
                                 {.data = 2, .pipeline = 2, .zero = 2, .schedule = Schedule::zb_h1},
                                 {.expert = 2, .data = 2, .pipeline = 2, .schedule = Schedule::zb_v}}) {
      CAPTURE(text_of(mesh), int(compute));
      check_equal_runs(runs.run(on_mesh(job, mesh)), alone);
    }
  }
}

TEST_CASE("quantiles: the same bits with tensor and context ranks, and modules", "[bits]") {
  const TemporaryFolder dir;
  QuantileRuns runs{dir};
  JobSpec job = by_quantile(dir);
  job.parallelism.lanes = 4;
  job.parallelism.context_blocks = 2;
  job.model.mtp = {.num_layers = 1, .loss_weight = 0.3};
  job.parallelism.sequence_parallel = false;  // with which tensor ranks have one block each
  for (const int tensor : {1, 2}) {
    job.parallelism.tensor = tensor;
    const ThreadRun alone = runs.run(job);
    for (const TestMesh& mesh :
         {TestMesh{.context = 2, .zero = 1}, {.expert = 2, .context = 2, .data = 2, .zero = 3}}) {
      CAPTURE(text_of(mesh), tensor);
      check_equal_runs(runs.run(on_mesh(job, mesh)), alone);
    }
  }
}

TEST_CASE("quantiles: a run goes on with the same bits on another mesh", "[bits]") {
  const TemporaryFolder dir;
  QuantileRuns runs{dir};
  const JobSpec job = by_quantile(dir);
  const ThreadRun alone = runs.run(job);
  const ThreadRun begun = runs.run(on_mesh(job, {.expert = 4, .data = 4, .zero = 3}), "", 2);
  const ThreadRun rest =
      runs.run(on_mesh(job, {.expert = 2, .data = 2, .pipeline = 2, .zero = 1}), begun.checkpoint);
  CHECK(rest.root_hash == alone.root_hash);
}

TEST_CASE("quantiles: micro-batches of other sizes count the same margins") {
  constexpr double kTwoBins = 4.0 / double(kMarginBins);  // products of other sizes round apart
  const TemporaryFolder dir;
  QuantileRuns runs{dir};
  const JobSpec job = by_quantile(dir);
  JobSpec larger = job;
  larger.batch.micro_sequences = 2;
  const std::vector<float> expected = biases_in(job, runs.run(job, "", 1).checkpoint),
                           found = biases_in(larger, runs.run(larger, "", 1).checkpoint);
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) CHECK(std::abs(found[i] - expected[i]) < kTwoBins);
}

TEST_CASE("quantiles: without them few experts have most tokens, and with them none has many more") {
  const TemporaryFolder dir;
  const auto last_line = [&](BiasUpdate update) {
    JobSpec job = by_quantile(dir);
    job.model.moe.bias_update = update;  // `sign` with a rate of 0
    job.model.moe.top_k = 1;
    job.schedule.lr = job.schedule.min_lr = 0.3;
    job.schedule.warmup_steps = 0;
    job.observability.rank_metrics_every_steps = 1;
    std::vector<std::string> lines;
    run_on_threads(job, {.dir = dir / std::string(word_of(update)), .max_steps = 20, .expert_lines = &lines});
    return parse_json(lines.back());
  };
  const Json with = last_line(BiasUpdate::quantile), without = last_line(BiasUpdate::sign);
  const auto most = [](const Json& line) {
    const auto of_layers = line["most"].get<std::vector<double>>();
    return std::accumulate(of_layers.begin(), of_layers.end(), 0.0) / double(of_layers.size());
  };
  CAPTURE(with.dump(), without.dump());
  CHECK(most(without) > 3);
  CHECK(most(with) < 2.5);
}

TEST_CASE("quantiles: a skipped step moves no bias") {
  const TemporaryFolder dir;
  QuantileRuns runs{dir};
  JobSpec job = by_quantile(dir);
  job.schedule.warmup_steps = 0;
  job.schedule.lr = job.schedule.min_lr = 3e38;
  job.optimizer.lr_scale.embedding = 4;  // so that the first step makes them infinite
  job.fault_tolerance.skip_bad_steps = 10;
  const ThreadRun first = runs.run(job, "", 1), skipped = runs.run(job, "", 4);
  REQUIRE(std::isnan(skipped.losses.at(1)));
  CHECK(biases_in(job, skipped.checkpoint) == biases_in(job, first.checkpoint));
}

TEST_CASE("quantiles: checkpoints have what those of a rate have, and the plan has the histograms") {
  const TemporaryFolder dir;
  QuantileRuns runs{dir};
  JobSpec job = by_quantile(dir), by_rate = job;
  by_rate.model.moe.bias_update = BiasUpdate::sign;
  by_rate.model.moe.bias_update_rate = 1e-3;
  const auto tensors = [](const ThreadRun& run) {
    const auto opened = ckpt::Checkpoint::open(real_file_system(), run.checkpoint);
    std::vector<std::string> names;
    for (const ckpt::Tensor& tensor : opened->tensors()) names.push_back(tensor.name);
    return names;
  };
  CHECK(tensors(runs.run(job, "", 1)) == tensors(runs.run(by_rate, "", 1)));
  const auto histograms = [](const JobSpec& j) {
    const RankPlan plan = make_rank_plan({j, device_of_kind(j, DeviceKind::cuda), model_tables(j)},
                                         parallel::position_of(j.mesh(), 0));
    for (const MemoryRegion& region : plan.regions)
      if (region.name == "histograms of quantile balancing") return region.bytes;
    return size_t{0};
  };
  const size_t layers = size_t(job.model.num_layers - job.model.moe.first_dense_layers);
  CHECK(histograms(job) == layers * (8 * size_t(kMarginBins) * 4 + 64));  // and the range, on 64 bytes
  CHECK(histograms(by_rate) == 0);
}
