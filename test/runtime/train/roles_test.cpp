// Goal: what a parameter's role decides (how it begins, its learning rate, its decay) is the same on every
// mesh and after a resume, is what its formulas say, and changes no bit where it says what there was before.
// Method: runs on thread ranks, as in same_bits_test.cpp; with factors of 0 a run keeps its initial weights,
// which are read from its checkpoint.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/philox.h"
#include "runtime/model/params.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

constexpr int64_t kRoleSteps = 6;

JobSpec job_with_roles(const TemporaryFolder& dir, Family family, OptimizerType type) {
  JobSpec job = tiny_job(family, dir.path());
  job.model.init.type = InitKind::truncated_normal;
  job.model.init.cut = 1.5;
  job.model.init.embedding_std = 0.05;
  job.model.init.zero_output = {ZeroOutput::sublayers};
  if (!job.model.tie_embeddings) job.model.init.zero_output.push_back(ZeroOutput::head);
  job.model.mup = {.base_hidden_size = 16, .base_head_dim = 4};
  job.optimizer.type = type;
  job.optimizer.lr_scale = {.embedding = 0.5, .head = 0.25, .matrix = 2, .vector = 0.75};
  job.optimizer.weight_decay_scale = {.embedding = 0, .head = 3, .matrix = 2, .vector = 0.5};
  job.optimizer.decay_exclude = {DecayKind::bias};
  job.parallelism.lanes = 4;
  if (type == OptimizerType::sgd) job.schedule.lr = 3e-2;
  return job;
}

void check_roles_on_meshes(Family family, OptimizerType type, int tensor, DType compute) {
  const TemporaryFolder dir;
  JobSpec base = job_with_roles(dir, family, type);
  base.parallelism.tensor = tensor;
  base.compute = compute;
  const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = kRoleSteps});
  REQUIRE(plain.losses.size() == size_t(kRoleSteps));
  CHECK(plain.losses.back() != plain.losses.front());
  int variant = 0;
  for (const auto& [dp, pp] : {std::pair{2, 1}, {1, 2}, {2, 2}, {4, 1}, {3, 1}})
    for (const int zero : {0, 1, 2, 3}) {
      if (tensor * dp * pp > 8 || (zero >= 2 && dp == 3)) continue;
      JobSpec job = base;
      job.parallelism.data = dp;
      job.parallelism.pipeline = pp;
      job.parallelism.zero_stage = zero;
      job.parallelism.schedule = pp > 1 && variant % 2 ? Schedule::zb_h1 : Schedule::one_f_one_b;
      CAPTURE(word_of(family), word_of(type), tensor, dp, pp, zero);
      const ThreadRun run =
          run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(++variant), .max_steps = kRoleSteps});
      CHECK(run.losses == plain.losses);
      CHECK(run.grad_norms == plain.grad_norms);
      CHECK(run.root_hash == plain.root_hash);
    }
}

/// Of a checkpoint, the weights of a parameter.
std::vector<float> weights_of(ckpt::Checkpoint& checkpoint, const Param& p) {
  std::vector<float> values(static_cast<size_t>(p.count()));
  checkpoint.read(p.layout.name, ckpt::Role::master, {0, p.layout.rows, 0, p.layout.cols}, values.data());
  return values;
}

/// The weights of each parameter behind `steps` steps.
std::vector<std::vector<float>> weights_after(const JobSpec& job, const std::string& dir, int64_t steps) {
  const ThreadRun run = run_on_threads(job, {.dir = dir, .max_steps = steps});
  const auto checkpoint = ckpt::Checkpoint::open(real_file_system(), run.checkpoint);
  std::vector<std::vector<float>> weights;
  for (const Param& p : parameter_table(job.model, job.optimizer).params)
    weights.push_back(weights_of(*checkpoint, p));
  return weights;
}

std::vector<std::vector<float>> initial_weights(JobSpec job, const std::string& dir) {
  job.optimizer.lr_scale = {0, 0, 0, 0};
  return weights_after(job, dir, 1);
}

}  // namespace

TEST_CASE("roles: the same bits on every mesh", "[bits][roles]") {
  check_roles_on_meshes(Family::llama, OptimizerType::adamw, 1, DType::f32);
  check_roles_on_meshes(Family::gpt2, OptimizerType::muon, 2, DType::bf16);
  check_roles_on_meshes(Family::llama, OptimizerType::lion, 2, DType::f32);
  check_roles_on_meshes(Family::gpt2, OptimizerType::sgd, 1, DType::f32);
}

TEST_CASE("roles: two tensor ranks compute what one computes, from the same weights", "[bits][roles]") {
  const TemporaryFolder dir;
  JobSpec job = job_with_roles(dir, Family::llama, OptimizerType::adamw);
  const ThreadRun one = run_on_threads(job, {.dir = dir.path() + "/1", .max_steps = kRoleSteps});
  const auto weights = initial_weights(job, dir.path() + "/initial1");
  job.parallelism.tensor = 2;
  CHECK(initial_weights(job, dir.path() + "/initial2") == weights);
  const ThreadRun two = run_on_threads(job, {.dir = dir.path() + "/2", .max_steps = kRoleSteps});
  for (size_t step = 0; step < one.losses.size(); ++step)
    CHECK(two.losses[step] == Approx(one.losses[step]).epsilon(tolerance::kLossOfWidths));
}

TEST_CASE("roles: a run goes on with the same bits on another mesh", "[bits][roles]") {
  const TemporaryFolder dir;
  const JobSpec base = job_with_roles(dir, Family::gpt2, OptimizerType::muon);
  const ThreadRun whole = run_on_threads(base, {.dir = dir.path() + "/whole", .max_steps = kRoleSteps});
  JobSpec job = base;
  job.parallelism.data = 2;
  job.parallelism.zero_stage = 3;
  const ThreadRun begun = run_on_threads(job, {.dir = dir.path() + "/begun", .max_steps = 3});
  job = base;
  job.parallelism.pipeline = 2;
  const ThreadRun rest = run_on_threads(
      job, {.dir = dir.path() + "/rest", .resume_from = begun.checkpoint, .max_steps = kRoleSteps});
  CHECK(rest.root_hash == whole.root_hash);
}

TEST_CASE("muP at its base width changes no bit", "[bits][roles]") {
  for (const OptimizerType type : {OptimizerType::adamw, OptimizerType::muon, OptimizerType::sgd}) {
    const TemporaryFolder dir;
    JobSpec job = tiny_job(Family::gpt2, dir.path());
    job.optimizer.type = type;
    const ThreadRun without = run_on_threads(job, {.dir = dir.path() + "/without", .max_steps = 4});
    job.model.mup = {.base_hidden_size = 32};
    CHECK(run_on_threads(job, {.dir = dir.path() + "/base", .max_steps = 4}).root_hash == without.root_hash);
    job.model.mup.base_head_dim = 8;
    CHECK(run_on_threads(job, {.dir = dir.path() + "/heads", .max_steps = 4}).root_hash == without.root_hash);
    job.model.mup.base_hidden_size = 16;
    CHECK(run_on_threads(job, {.dir = dir.path() + "/wider", .max_steps = 4}).root_hash != without.root_hash);
  }
}

TEST_CASE("initial weights are what their formula says", "[roles]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  job.model.init = {.std = 0.04, .type = InitKind::truncated_normal, .cut = 1.25, .embedding_std = 0.3};
  job.model.mup = {.base_hidden_size = 8};  // matrices: std * sqrt(8 / 32)
  const auto weights = initial_weights(job, dir.path() + "/run");
  const ParamTable table = parameter_table(job.model, job.optimizer);
  size_t again = 0;
  for (size_t i = 0; i < table.params.size(); ++i) {
    const Param& p = table.params[i];
    CAPTURE(p.layout.name);
    const bool out = p.layout.name.find("o_proj") != std::string::npos ||
                     p.layout.name.find("down_proj") != std::string::npos;
    const double std = p.role == ParamRole::embedding ? 0.3
                       : p.role == ParamRole::head    ? 0.04
                       : p.role == ParamRole::matrix  ? (out ? 0.02 / std::sqrt(8.0) : 0.02)
                                                      : 0;
    for (size_t at = 0; at < weights[i].size(); ++at) {
      double z = 0;
      for (uint64_t k = 0;; ++k) {
        z = double(Philox(job.seed, RandomPurpose::kInit, xxh3(p.layout.name) + k).normal(at));
        if (std::abs(z) <= 1.25) break;
        ++again;
      }
      const double expected = std == 0 ? 1.0 : std * z;  // norms begin as 1
      REQUIRE(double(weights[i][at]) == Approx(expected).epsilon(tolerance::kInitialWeight));
    }
  }
  CHECK(again > 0);
}

TEST_CASE("zeros, embeddings of their own and unscaled outputs begin where they are asked for", "[roles]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  const auto plain = initial_weights(job, dir.path() + "/plain");
  const ParamTable table = parameter_table(job.model, job.optimizer);
  const auto is_out = [&](size_t i) {
    const std::string& name = table.params[i].layout.name;
    return name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
  };
  const auto max_ratio = [](const std::vector<float>& a, const std::vector<float>& b) {
    double least = std::numeric_limits<double>::infinity(), most = -least;
    for (size_t i = 0; i < a.size(); ++i)
      least = std::min(least, double(a[i]) / double(b[i])),
      most = std::max(most, double(a[i]) / double(b[i]));
    return std::pair{least, most};
  };
  job.model.init.residual_scale = false;
  const auto unscaled = initial_weights(job, dir.path() + "/unscaled");
  job.model.init.residual_scale = true;
  job.model.init.embedding_std = 0.2;
  job.model.init.zero_output = {ZeroOutput::sublayers, ZeroOutput::head};
  const auto other = initial_weights(job, dir.path() + "/other");
  for (size_t i = 0; i < table.params.size(); ++i) {
    CAPTURE(table.params[i].layout.name);
    const ParamRole role = table.params[i].role;
    if (is_out(i)) {
      const auto [least, most] = max_ratio(unscaled[i], plain[i]);
      CHECK(least == Approx(std::sqrt(8.0)).epsilon(tolerance::kInitialWeight));
      CHECK(most == Approx(std::sqrt(8.0)).epsilon(tolerance::kInitialWeight));
    } else {
      CHECK(unscaled[i] == plain[i]);
    }
    if (is_out(i) || role == ParamRole::head) {
      CHECK(std::all_of(other[i].begin(), other[i].end(), [](float w) { return w == 0; }));
    } else if (role == ParamRole::embedding) {
      const auto [least, most] = max_ratio(other[i], plain[i]);
      CHECK(least == Approx(10.0).epsilon(tolerance::kInitialWeight));
      CHECK(most == Approx(10.0).epsilon(tolerance::kInitialWeight));
    } else {
      CHECK(other[i] == plain[i]);
    }
  }
}

TEST_CASE("a step moves each role by its own learning rate and decay", "[roles]") {
  for (const OptimizerType type :
       {OptimizerType::adamw, OptimizerType::muon, OptimizerType::lion, OptimizerType::sgd}) {
    const TemporaryFolder dir;
    JobSpec job = tiny_job(Family::llama, dir.path());
    job.optimizer.type = type;
    job.optimizer.decay_exclude = {};
    job.optimizer.weight_decay = 0;
    job.schedule.warmup_steps = 0;
    job.schedule.lr = 0.25;
    const auto before = initial_weights(job, dir.path() + "/initial");
    const auto whole = weights_after(job, dir.path() + "/whole", 1);
    job.optimizer.lr_scale = {.embedding = 0.5, .head = 0.25, .matrix = 0, .vector = 2};
    const auto scaled = weights_after(job, dir.path() + "/scaled", 1);
    // Decay alone is what remains of a step with decay, without one without.
    job.optimizer.weight_decay = 0.5;
    job.optimizer.weight_decay_scale = {.embedding = 2, .head = 1, .matrix = 1, .vector = 0};
    const auto decayed = weights_after(job, dir.path() + "/decayed", 1);
    const ParamTable table = parameter_table(job.model, job.optimizer);
    for (size_t i = 0; i < table.params.size(); ++i) {
      CAPTURE(word_of(type), table.params[i].layout.name);
      const ParamRole role = table.params[i].role;
      const bool vector =
          role != ParamRole::embedding && role != ParamRole::head && role != ParamRole::matrix;
      const double lr = role == ParamRole::embedding ? 0.5 : role == ParamRole::head ? 0.25 : vector ? 2 : 0;
      const double decay = role == ParamRole::embedding ? 2 : vector ? 0 : 1;
      double largest = 0;
      for (size_t at = 0; at < before[i].size(); ++at) {
        const double step = double(whole[i][at]) - double(before[i][at]);
        const double own = double(scaled[i][at]) - double(before[i][at]);
        largest = std::max(largest, std::abs(step));
        REQUIRE(own == Approx(lr * step).margin(tolerance::kInitialWeight));
        const double remains = double(scaled[i][at]) - double(decayed[i][at]);
        REQUIRE(remains ==
                Approx(0.25 * lr * 0.5 * decay * double(before[i][at])).margin(tolerance::kInitialWeight));
      }
      CHECK(largest > 0.0);
    }
  }
}
