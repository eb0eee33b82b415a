// Goal: with more tensor ranks than KV heads a run computes what one rank computes, has the same bits on
// every mesh of that width, takes the memory that its plan says, and goes on from its checkpoints at any
// width. Method: tiny models of 4 heads with norms of heads (as Qwen3, with biases, sinks, windows and a
// gate) and of projections (as OLMo 2), of 2 KV heads on 4 tensor ranks and of one (as Gemma 3) on 2 and 4:
// losses and the gradients of step 0 against one rank; thread ranks over dp, pp, schedules, ZeRO stages,
// recomputation, rules and moments; checkpoints compared by their chunks. The families themselves:
// golden_blocks_test.cpp.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "runtime/model/params.h"
#include "runtime/plan/plan.h"
#include "test/support/described_models.h"
#include "test/support/golden.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

void describe_plain(ModelSpec& m) { m.position.scaling = {.type = RopeScaling::linear, .factor = 2}; }
void describe_projections(ModelSpec& m) {
  m.layer.norm_place = NormPlace::post;
  m.layer.qk_norm = QkNorm::projection;
  m.layer.qkv_bias = true;
}

struct Shared {
  void (*describe)(ModelSpec&);
  int64_t kv_heads;
  int tensor;
};
const Shared kShared[] = {{describe_everything, 2, 4},  {describe_everything, 1, 2},
                          {describe_projections, 2, 4}, {describe_projections, 1, 4},
                          {describe_plain, 1, 2},       {describe_plain, 2, 4},
                          {describe_experts, 2, 4}};

JobSpec shared_job(const TemporaryFolder& dir, const Shared& shared, DType compute = DType::f32) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  shared.describe(job.model);
  job.model.num_kv_heads = shared.kv_heads;
  job.compute = compute;
  job.parallelism.tensor = job.parallelism.widest_tensor = shared.tensor;
  job.parallelism.lanes = 4;
  job.batch.global_sequences = 8;  // 2 micro-batches a lane
  return job;
}

constexpr int64_t kSharedSteps = 5;

/// The chunks of a checkpoint, as "tensor role [rows, columns)".
std::set<std::string> chunks_of(const std::string& checkpoint) {
  std::set<std::string> chunks;
  const auto opened = ckpt::Checkpoint::open(real_file_system(), checkpoint);
  for (const ckpt::ShardReceipt& file : opened->files())
    for (const ckpt::ShardReceipt::Entry& e : file.entries)
      chunks.insert(fmt::format("{} {} {}:{},{}:{}", e.tensor, ckpt::name_of(e.role), e.box.row_begin,
                                e.box.row_end, e.box.col_begin, e.box.col_end));
  return chunks;
}

/// The largest relative (Frobenius) difference of the tensors of a role.
double difference_of(const std::string& a, const std::string& b, ckpt::Role role) {
  const auto first = ckpt::Checkpoint::open(real_file_system(), a),
             second = ckpt::Checkpoint::open(real_file_system(), b);
  double worst = 0;
  for (const ckpt::Tensor& t : first->tensors()) {
    if (t.role != role) continue;
    const parallel::Box box{0, t.shape[0], 0, t.shape.size() == 2 ? t.shape[1] : 1};
    std::vector<float> x(static_cast<size_t>(box.count())), y(x.size());
    first->read(t.name, role, box, x.data());
    second->read(t.name, role, box, y.data());
    double apart = 0, size = 0;
    for (size_t i = 0; i < x.size(); ++i)
      apart += std::pow(double(x[i]) - double(y[i]), 2), size += double(x[i]) * double(x[i]);
    worst = std::max(worst, std::sqrt(apart / size));
  }
  return worst;
}

}  // namespace

TEST_CASE("more tensor ranks than KV heads compute what one rank computes", "[shared_heads]") {
  for (const Shared& shared : kShared)
    for (const bool sequence_parallel : {true, false}) {
      const TemporaryFolder dir;
      JobSpec job = shared_job(dir, shared);
      job.parallelism.sequence_parallel = sequence_parallel;
      const auto run = [&](const std::string& name) {
        return run_on_threads(job, {.dir = dir.path() + "/" + name,
                                    .gradients_dir = dir.path() + "/gradients of " + name,
                                    .max_steps = kSharedSteps});
      };
      const ThreadRun wide = run("wide");
      job.parallelism.tensor = 1;
      const ThreadRun one = run("one");
      CAPTURE(shared.kv_heads, shared.tensor, sequence_parallel, &shared - kShared);
      REQUIRE(wide.losses.size() == one.losses.size());
      for (size_t i = 0; i < one.losses.size(); ++i) {
        CHECK(wide.losses[i] == Approx(one.losses[i]).epsilon(tolerance::kLossOfWidths));
        CHECK(wide.grad_norms[i] == Approx(one.grad_norms[i]).epsilon(tolerance::kGradNorm));
      }
      CHECK(wide.grad_norms[0] == Approx(one.grad_norms[0]).epsilon(tolerance::kBlockGradient));
      CHECK(difference_of(ckpt::step_directory(dir.path() + "/gradients of one", 0),
                          ckpt::step_directory(dir.path() + "/gradients of wide", 0),
                          ckpt::Role::gradient) < tolerance::kBlockGradient);
    }
}

TEST_CASE("more tensor ranks than KV heads: the same bits on every mesh of one width",
          "[shared_heads][bits]") {
  for (const auto& [shared, compute] : {std::pair{kShared[0], DType::bf16},
                                        {kShared[1], DType::f32},
                                        {kShared[2], DType::f32},
                                        {kShared[3], DType::bf16}}) {
    const TemporaryFolder dir;
    const JobSpec base = shared_job(dir, shared, compute);
    const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = kSharedSteps});
    REQUIRE(plain.losses.size() == size_t(kSharedSteps));
    int variant = 0;
    for (const auto& [dp, pp] : {std::pair{2, 1}, {1, 2}, {2, 2}, {4, 1}, {3, 1}})
      for (const int zero : {0, 1, 2, 3}) {
        if (shared.tensor * dp * pp > 8 || (zero >= 2 && dp == 3)) continue;
        JobSpec job = base;
        job.parallelism.data = dp;
        job.parallelism.pipeline = pp;
        job.parallelism.zero_stage = zero;
        job.parallelism.schedule = pp > 1 && variant % 2 ? Schedule::zb_h1 : Schedule::one_f_one_b;
        if (variant % 3 == 0) job.recompute = Recompute::full;
        if (variant % 3 == 1) job.recompute = Recompute::selective;
        CAPTURE(shared.kv_heads, shared.tensor, dp, pp, zero, variant, name_of(compute));
        const ThreadRun run = run_on_threads(
            job, {.dir = dir.path() + "/" + std::to_string(++variant), .max_steps = kSharedSteps});
        CHECK(run.losses == plain.losses);
        CHECK(run.grad_norms == plain.grad_norms);
        CHECK(run.root_hash == plain.root_hash);
      }
    CHECK(variant >= 8);
  }
}

TEST_CASE("more tensor ranks than KV heads with each rule, moments and averages", "[shared_heads][bits]") {
  const struct {
    OptimizerType type;
    kernels::Moments moments;
    bool split_heads;
    double loss;  ///< tolerance of losses, relative
  } kRules[] = {{OptimizerType::muon, kernels::Moments::f32, true, tolerance::kLossMuonTensor},
                {OptimizerType::muon, kernels::Moments::int8, false, tolerance::kLossMuonTensor},
                // Where a gradient is near zero, its sign decides the update.
                {OptimizerType::lion, kernels::Moments::bf16, false, tolerance::kLossMuonTensor},
                {OptimizerType::sgd, kernels::Moments::f32, false, tolerance::kLossOfWidths},
                {OptimizerType::adamw, kernels::Moments::int8, false, tolerance::kLossFewSteps}};
  for (const auto& rule : kRules) {
    const TemporaryFolder dir;
    JobSpec job = shared_job(dir, {describe_projections, 2, 4});
    job.optimizer.type = rule.type;
    job.optimizer.moments = rule.moments;
    job.optimizer.muon.split_heads = rule.split_heads;
    job.optimizer.ema_decay = 0.5;
    CAPTURE(word_of(rule.type), word_of(rule.moments));
    const ThreadRun plain = run_on_threads(job, {.dir = dir.path() + "/plain", .max_steps = kSharedSteps});
    job.parallelism.data = 2;
    for (const int zero : {1, 3}) {
      job.parallelism.zero_stage = zero;
      const std::string at = dir.path() + "/" + std::to_string(zero);
      const ThreadRun run = run_on_threads(job, {.dir = at, .max_steps = kSharedSteps});
      CHECK(run.losses == plain.losses);
      CHECK(run.root_hash == plain.root_hash);
    }
    job.parallelism.tensor = 1;
    const ThreadRun one = run_on_threads(job, {.dir = dir.path() + "/one", .max_steps = kSharedSteps});
    for (size_t i = 0; i < one.losses.size(); ++i)
      CHECK(plain.losses[i] == Approx(one.losses[i]).epsilon(rule.loss));
    CHECK(chunks_of(plain.checkpoint) == chunks_of(one.checkpoint));
  }
}

TEST_CASE("checkpoints of more tensor ranks than KV heads load at any width", "[shared_heads][resume]") {
  for (const kernels::Moments moments : {kernels::Moments::f32, kernels::Moments::int8}) {
    const TemporaryFolder dir;
    JobSpec job = shared_job(dir, kShared[0]);
    job.optimizer.moments = moments;
    const ThreadRun whole = run_on_threads(job, {.dir = dir.path() + "/whole", .max_steps = 6});
    std::string from = run_on_threads(job, {.dir = dir.path() + "/4", .max_steps = 2}).checkpoint;
    const std::set<std::string> chunks = chunks_of(from);
    for (const auto& [tensor, steps] : {std::pair{1, 4}, {2, 6}}) {
      job.parallelism.tensor = tensor;
      job.parallelism.data = tensor;
      CAPTURE(tensor, word_of(moments));
      const ThreadRun part = run_on_threads(
          job, {.dir = dir.path() + "/" + std::to_string(tensor), .resume_from = from, .max_steps = steps});
      REQUIRE(part.losses.size() == 2);
      for (size_t i = 0; i < 2; ++i)
        CHECK(part.losses[i] ==
              Approx(whole.losses[size_t(steps) - 2 + i]).epsilon(tolerance::kLossFewSteps));
      from = part.checkpoint;
      CHECK(chunks_of(from) == chunks);
    }
    // A step that moves nothing: what one width saves, another has and saves again.
    job.schedule.lr = job.schedule.min_lr = 0;
    job.parallelism.tensor = 4;
    const std::string same =
        run_on_threads(job, {.dir = dir.path() + "/same", .resume_from = from, .max_steps = 7}).checkpoint;
    CHECK(difference_of(from, same, ckpt::Role::master) == 0);
    // Without the run's widest size, blocks of moments would be others.
    job.parallelism.tensor = 1;
    job.parallelism.widest_tensor = 0;
    const ThreadRunOptions other{.dir = dir.path() + "/other", .resume_from = same, .max_steps = 8};
    if (moments == kernels::Moments::int8)
      CHECK_THROWS_WITH(run_on_threads(job, other), Catch::Contains("parallelism.widest_tensor"));
    else
      CHECK(difference_of(same, run_on_threads(job, other).checkpoint, ckpt::Role::master) == 0);
  }
}

TEST_CASE("chunks of a job within its KV heads stay, whatever is allowed beyond them", "[shared_heads]") {
  const TemporaryFolder dir;
  const JobSpec job = shared_job(dir, {describe_plain, 2, 2});
  const auto legal = [&](int widest) {
    return parameter_table(job.model, job.optimizer, widest).legal_tensor;
  };
  CHECK(legal(0) == std::vector<int>{1, 2});
  CHECK(legal(2) == std::vector<int>{1, 2});
  CHECK(legal(3) == std::vector<int>{1, 2});
  CHECK(legal(4) == std::vector<int>{1, 2, 4});
  CHECK(legal(1024) == std::vector<int>{1, 2, 4});  // 4 heads
}

TEST_CASE("more tensor ranks than KV heads take the memory that the plan says", "[shared_heads]") {
  // Of jobs with the same parameters: what else a rank holds is planned and not a backend's.
  for (const Shared& shared : kShared) {
    const TemporaryFolder dir;
    const JobSpec base = shared_job(dir, shared);
    const ThreadRun base_run = run_on_threads(base, {.dir = dir.path() + "/base", .max_steps = 1});
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      JobSpec job = base;
      job.recompute = recompute;
      const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/run", .max_steps = 1});
      real_file_system().remove_tree(dir.path() + "/run");
      CAPTURE(shared.kv_heads, shared.tensor, int(recompute), &shared - kShared);
      for (size_t rank = 0; rank < run.allocated_bytes.size(); ++rank) {
        const auto planned = [&](const JobSpec& j) {
          const parallel::MeshPosition at = parallel::position_of(j.mesh(), int(rank));
          return int64_t(rank_memory(j, DeviceKind::cpu, at).total());
        };
        CHECK(int64_t(run.allocated_bytes[rank]) - int64_t(base_run.allocated_bytes[rank]) ==
              planned(job) - planned(base));
        CHECK(planned(job) < planned(base));
      }
    }
  }
}
