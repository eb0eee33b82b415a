// Goal: a run with any rule of updates has the same bits on every mesh and after a resume on another one;
// across tensor widths it stays within a bound; a checkpoint of another rule is refused by name. Method: runs
// on thread ranks, as in same_bits_test.cpp and resume_test.cpp.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/file_system.h"
#include "runtime/model/params.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

JobSpec job_with_rule(OptimizerType type, Family family, const std::string& dir) {
  JobSpec job = tiny_job(family, dir);
  job.optimizer.type = type;
  job.parallelism.lanes = 4;
  if (type == OptimizerType::lion) job.schedule.lr = 1e-3, job.schedule.min_lr = 1e-4;
  if (type == OptimizerType::sgd) job.schedule.lr = 3e-2, job.schedule.min_lr = 3e-3;
  return job;
}

void check_bits_of_rule(OptimizerType type, Family family, DType compute, int tensor) {
  const TemporaryFolder dir;
  JobSpec base = job_with_rule(type, family, dir.path());
  base.compute = compute;
  base.parallelism.tensor = tensor;
  const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = 8});
  REQUIRE(plain.losses.size() == 8);
  REQUIRE(plain.losses.back() < plain.losses.front() - 0.01);
  int variant = 0;
  for (const int dp : {1, 2, 3, 4})
    for (const int pp : {1, 2})
      for (const int zero : {0, 1, 2, 3}) {
        if (tensor * dp * pp > 8) continue;
        JobSpec job = base;
        job.parallelism.data = dp;
        job.parallelism.pipeline = pp;
        job.parallelism.zero_stage = zero;
        if (pp == 2 && variant % 2 == 0) {
          job.parallelism.virtual_stages = 2;
          job.parallelism.schedule = Schedule::interleaved;
        }
        job.recompute = Recompute(variant % 3);
        if (variant % 4 == 0) job.parallelism.threads_per_rank = 2;
        ++variant;
        CAPTURE(word_of(type), dp, pp, zero, variant, name_of(compute), tensor);
        const std::string at = dir.path() + "/" + std::to_string(variant);
        const ThreadRun run = run_on_threads(job, {.dir = at, .max_steps = 8});
        CHECK(run.losses == plain.losses);
        CHECK(run.grad_norms == plain.grad_norms);
        CHECK(run.root_hash == plain.root_hash);
      }
}

}  // namespace

TEST_CASE("same bits on every mesh with muon", "[bits][rules]") {
  check_bits_of_rule(OptimizerType::muon, Family::gpt2, DType::f32, 1);
  check_bits_of_rule(OptimizerType::muon, Family::llama, DType::bf16, 2);
}
TEST_CASE("same bits on every mesh with lion and sgd", "[bits][rules]") {
  check_bits_of_rule(OptimizerType::lion, Family::llama, DType::bf16, 1);
  check_bits_of_rule(OptimizerType::sgd, Family::gpt2, DType::f32, 1);
}

TEST_CASE("heads as matrices of their own: queries, keys and values alone, and the same bits on meshes",
          "[bits][rules]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const TemporaryFolder dir;
    JobSpec job = job_with_rule(OptimizerType::muon, family, dir.path());
    const ThreadRun together = run_on_threads(job, {.dir = dir.path() + "/together", .max_steps = 4});
    job.optimizer.muon.split_heads = true;
    const ParamTable table = parameter_table(job.model, job.optimizer);
    int split = 0;
    for (const Param& p : table.params) {
      if (p.layout.head_rows == 0) continue;
      ++split;
      CHECK(p.layout.head_rows == 8);
      const auto is = [&](const char* part) { return p.layout.name.find(part) != std::string::npos; };
      CHECK((is("c_attn") || is("q_proj") || is("k_proj") || is("v_proj")));
    }
    CHECK(split == (family == Family::gpt2 ? 4 : 12));
    const ThreadRun plain = run_on_threads(job, {.dir = dir.path() + "/plain", .max_steps = 4});
    CHECK(plain.root_hash != together.root_hash);
    for (const auto& [dp, pp, zero] : {std::tuple{2, 1, 1}, {4, 2, 2}, {2, 2, 3}}) {
      job.parallelism.data = dp, job.parallelism.pipeline = pp, job.parallelism.zero_stage = zero;
      const ThreadRun run =
          run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(dp * 10 + zero), .max_steps = 4});
      CHECK(run.losses == plain.losses);
      CHECK(run.root_hash == plain.root_hash);
    }
  }
}

TEST_CASE("a resume on another mesh has the same bits with every rule", "[resume][rules]") {
  for (const OptimizerType type : {OptimizerType::muon, OptimizerType::lion, OptimizerType::sgd}) {
    CAPTURE(word_of(type));
    const TemporaryFolder dir;
    const JobSpec base = job_with_rule(type, Family::gpt2, dir.path());
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

TEST_CASE("muon on another tensor width stays within a bound", "[rules]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const TemporaryFolder dir;
    JobSpec job = job_with_rule(OptimizerType::muon, family, dir.path());
    const ThreadRun one = run_on_threads(job, {.dir = dir.path() + "/1"});
    job.parallelism.tensor = 2;
    const ThreadRun two = run_on_threads(job, {.dir = dir.path() + "/2"});
    REQUIRE(one.losses.size() == two.losses.size());
    double worst = 0;
    for (size_t i = 0; i < one.losses.size(); ++i)
      worst = std::max(worst, std::abs(one.losses[i] - two.losses[i]));
    CAPTURE(int(family), worst);
    CHECK(worst < tolerance::kLossMuonTensor);
    CHECK(one.root_hash != two.root_hash);
  }
}

TEST_CASE("a checkpoint of another rule is refused by name", "[resume][rules]") {
  const TemporaryFolder dir;
  JobSpec job = job_with_rule(OptimizerType::lion, Family::llama, dir.path());
  const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/a", .max_steps = 1});
  job.optimizer.type = OptimizerType::adamw;
  CHECK_THROWS_WITH(run_on_threads(job, {.dir = dir.path() + "/b", .resume_from = run.checkpoint}),
                    Catch::Contains("another optimizer.type computed it; use that type"));
}
