// Goal: with moments in bf16 and int8, and with averages of weights, a run has the same bits on every mesh
// and after a resume on another one, its loss stays near that of f32, and its state is smaller by what the
// plan says; what a checkpoint does not have is refused by name. Method: runs on thread ranks, as in
// rules_test.cpp.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "ckpt/view.h"
#include "runtime/base/file_system.h"
#include "runtime/plan/plan.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using kernels::Moments;

namespace {

JobSpec job_with_moments(Moments moments, Family family, const std::string& dir) {
  JobSpec job = tiny_job(family, dir);
  job.optimizer.moments = moments;
  job.parallelism.lanes = 4;
  return job;
}

void check_bits_of_moments(const JobSpec& base, const std::string& dir) {
  const ThreadRun plain = run_on_threads(base, {.dir = dir + "/plain", .max_steps = 6});
  REQUIRE(plain.losses.size() == 6);
  REQUIRE(plain.losses.back() < plain.losses.front() - 0.01);
  int variant = 0;
  for (const int dp : {1, 2, 3, 4})
    for (const int pp : {1, 2})
      for (const int zero : {0, 1, 2, 3}) {
        if (base.parallelism.tensor * dp * pp > 8) continue;
        JobSpec job = base;
        job.parallelism.data = dp;
        job.parallelism.pipeline = pp;
        job.parallelism.zero_stage = zero;
        if (++variant % 4 == 0) job.parallelism.threads_per_rank = 2;
        CAPTURE(word_of(base.optimizer.moments), word_of(base.optimizer.type), dp, pp, zero);
        const ThreadRun run =
            run_on_threads(job, {.dir = dir + "/" + std::to_string(variant), .max_steps = 6});
        CHECK(run.losses == plain.losses);
        CHECK(run.grad_norms == plain.grad_norms);
        CHECK(run.root_hash == plain.root_hash);
      }
}

std::vector<float> values_of(ckpt::Checkpoint& checkpoint, const std::string& name, ckpt::Role role) {
  for (const ckpt::Tensor& t : checkpoint.tensors()) {
    if (t.name != name || t.role != role) continue;
    const int64_t cols = t.shape.size() > 1 ? t.shape[1] : 1;
    std::vector<float> values(size_t(t.shape[0] * cols));
    checkpoint.read(name, role, {0, t.shape[0], 0, cols}, values.data());
    return values;
  }
  return {};
}

}  // namespace

TEST_CASE("same bits on every mesh with moments in bf16", "[bits][moments]") {
  const TemporaryFolder dir;
  JobSpec job = job_with_moments(Moments::bf16, Family::gpt2, dir.path());
  check_bits_of_moments(job, dir.path());
}
TEST_CASE("same bits on every mesh with moments in int8", "[bits][moments]") {
  const TemporaryFolder dir;
  JobSpec job = job_with_moments(Moments::int8, Family::llama, dir.path());
  job.compute = DType::bf16;
  job.parallelism.tensor = 2;
  check_bits_of_moments(job, dir.path());
}
TEST_CASE("same bits on every mesh with averages, and with int8 beside muon and in lion", "[bits][moments]") {
  for (const OptimizerType type : {OptimizerType::muon, OptimizerType::lion}) {
    const TemporaryFolder dir;
    JobSpec job = job_with_moments(Moments::int8, Family::gpt2, dir.path());
    job.optimizer.type = type;
    job.optimizer.ema_decay = 0.9;
    if (type == OptimizerType::lion) job.schedule.lr = 1e-3, job.schedule.min_lr = 1e-4;
    check_bits_of_moments(job, dir.path());
  }
}

TEST_CASE("a resume on another mesh has the same bits with moments in fewer bits", "[resume][moments]") {
  for (const Moments moments : {Moments::bf16, Moments::int8}) {
    CAPTURE(word_of(moments));
    const TemporaryFolder dir;
    JobSpec base = job_with_moments(moments, Family::gpt2, dir.path());
    base.optimizer.ema_decay = 0.8;
    const ThreadRun whole = run_on_threads(base, {.dir = dir.path() + "/whole", .max_steps = 9});
    JobSpec job = base;
    job.parallelism.data = 2;
    job.parallelism.pipeline = 2;
    job.parallelism.zero_stage = 3;
    const ThreadRun first = run_on_threads(job, {.dir = dir.path() + "/cut", .max_steps = 4});
    job.parallelism.data = 3;
    job.parallelism.zero_stage = 1;
    const ThreadRun second =
        run_on_threads(job, {.dir = dir.path() + "/cut", .resume_from = first.checkpoint, .max_steps = 6});
    job.parallelism.data = 1;
    job.parallelism.zero_stage = 0;
    const ThreadRun third =
        run_on_threads(job, {.dir = dir.path() + "/cut", .resume_from = second.checkpoint, .max_steps = 9});
    CHECK(third.losses == std::vector<double>(whole.losses.begin() + 6, whole.losses.end()));
    CHECK(third.root_hash == whole.root_hash);
  }
}

TEST_CASE("300 steps with moments in fewer bits end within 1 % of the loss with f32", "[moments]") {
  const TemporaryFolder dir;
  std::vector<double> last;
  for (const Moments moments : {Moments::f32, Moments::bf16, Moments::int8}) {
    JobSpec job = job_with_moments(moments, Family::llama, dir.path());
    job.schedule.total_steps = 300;
    job.optimizer.beta2 = 0.99;
    const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/" + std::string(word_of(moments))});
    REQUIRE(run.losses.size() == 300);
    double mean = 0;
    for (size_t i = 280; i < 300; ++i) mean += run.losses[i] / 20;
    last.push_back(mean);
    REQUIRE(mean < run.losses.front() - 1);
  }
  CAPTURE(last[0], last[1], last[2]);
  CHECK(std::abs(last[1] / last[0] - 1) < 0.005);
  CHECK(std::abs(last[2] / last[0] - 1) < 0.01);
}

TEST_CASE("the plan counts moments in fewer bits and averages as they are allocated", "[moments]") {
  const TemporaryFolder dir;
  JobSpec job = job_with_moments(Moments::f32, Family::llama, dir.path());
  job.parallelism.data = 2;
  const auto run = [&](Moments moments, double decay) {
    job.optimizer.moments = moments;
    job.optimizer.ema_decay = decay;
    const JobPlan plan = make_plan(job, device_of_kind(job, DeviceKind::cpu));
    const std::string at = fmt::format("{}/{}-{}", dir.path(), word_of(moments), decay);
    const ThreadRun ran = run_on_threads(job, {.dir = at, .max_steps = 1});
    return std::pair(int64_t(plan.worst().sharding.optimizer),
                     *std::max_element(ran.allocated_bytes.begin(), ran.allocated_bytes.end()));
  };
  const auto f32 = run(Moments::f32, 0), small = run(Moments::bf16, 0), int8 = run(Moments::int8, 0),
             averaged = run(Moments::f32, 0.5);
  for (const auto& [planned, allocated] : {small, int8, averaged})
    CHECK(planned - f32.first == int64_t(allocated) - int64_t(f32.second));
  CHECK(small.first * 3 == f32.first * 2);  // 4 + 2 + 2 bytes of 12
  CHECK(int8.first < f32.first * 0.56);     // 4 + 1 + 1 and the scales, of chunks of 525 values at most
  CHECK(averaged.first * 3 == f32.first * 4);
}

TEST_CASE("moments of another format are refused by name", "[resume][moments]") {
  const TemporaryFolder dir;
  JobSpec job = job_with_moments(Moments::bf16, Family::llama, dir.path());
  const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/a", .max_steps = 1});
  job.optimizer.moments = Moments::f32;
  CHECK_THROWS_WITH(run_on_threads(job, {.dir = dir.path() + "/b", .resume_from = run.checkpoint}),
                    Catch::Contains("in bf16, this job in f32: optimizer.moments is fixed"));
  job.optimizer.moments = Moments::int8;
  const ThreadRun small = run_on_threads(job, {.dir = dir.path() + "/c", .max_steps = 1});
  job.checkpoint.chunk_mib = 0.001;
  CHECK_THROWS_WITH(run_on_threads(job, {.dir = dir.path() + "/d", .resume_from = small.checkpoint}),
                    Catch::Contains("keep the run's checkpoint.chunk_mib"));
}

TEST_CASE("averages follow the weights, and begin as they are where a checkpoint has none", "[moments]") {
  const TemporaryFolder dir;
  const auto fs = []() -> FileSystem& { return real_file_system(); };
  JobSpec job = job_with_moments(Moments::f32, Family::llama, dir.path());
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  // The weights after 0, 1, 2 and 3 updates by the run without averages, which must not change them.
  std::vector<std::vector<float>> weights;
  std::string one_step;
  for (const int steps : {1, 2, 3}) {
    const ThreadRun run =
        run_on_threads(job, {.dir = dir.path() + "/w" + std::to_string(steps), .max_steps = steps});
    weights.push_back(values_of(*ckpt::Checkpoint::open(fs(), run.checkpoint), name, ckpt::Role::master));
    if (steps == 1) one_step = run.checkpoint;
  }
  CHECK_THROWS_WITH(ckpt::averages_of(ckpt::Checkpoint::open(fs(), one_step)),
                    Catch::Contains("has no averages of the weights"));
  job.optimizer.ema_decay = 0.75;
  const ThreadRun run =
      run_on_threads(job, {.dir = dir.path() + "/ema", .resume_from = one_step, .max_steps = 3});
  auto checkpoint = ckpt::Checkpoint::open(fs(), run.checkpoint);
  CHECK(values_of(*checkpoint, name, ckpt::Role::master) == weights[2]);
  const std::vector<float> averages = values_of(*checkpoint, name, ckpt::Role::ema);
  REQUIRE(averages.size() == weights[0].size());
  bool moved = false;
  for (size_t i = 0; i < averages.size(); ++i) {
    const float after_two = 0.25f * weights[1][i] + 0.75f * weights[0][i];
    CHECK(averages[i] == 0.25f * weights[2][i] + 0.75f * after_two);
    moved |= averages[i] != weights[2][i];
  }
  CHECK(moved);
  const auto view = ckpt::averages_of(std::move(checkpoint));
  CHECK(values_of(*view, name, ckpt::Role::master) == averages);
}
