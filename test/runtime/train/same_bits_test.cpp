// Goal: the loss curve and the final parameters have the same bits on every mesh that tensor parallelism leaves alone.
// Method: 10 or 20 steps of a tiny model with 4 lanes on thread ranks over every (dp, pp, virtual stages, schedule, ZeRO stage) of at
// most 8 ranks, with recomputation on and off, other bucket sizes and two threads a rank; losses, gradient norms and root hash are
// compared exactly with one plain rank. The MPI side of the same claim is in test/end_to_end.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/file_system.h"
#include "test/support/merged_schedule.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::kMergedSchedule;
using parallel::Schedule;

namespace {

constexpr int kFfnWithGaps = 1024;   // floats that take a multiple of 4096 bytes: see Arena::take_alone

struct Mesh {
  int dp, pp, virtual_stages;
  Schedule schedule;
};

std::vector<Mesh> meshes(int tp) {
  std::vector<Mesh> all;
  for (const int dp : {1, 2, 3, 4})
    for (const int pp : {1, 2, 3, 4}) {
      if (tp * dp * pp > 8) continue;
      for (const Schedule s : {Schedule::one_f_one_b, Schedule::gpipe, Schedule::zb_h1, kMergedSchedule})
        all.push_back({dp, pp, 1, s});
      for (const Schedule s : {Schedule::interleaved, kMergedSchedule})
        if (pp == 2) all.push_back({dp, pp, 2, s});
      if (pp == 2) all.push_back({dp, pp, 2, Schedule::zb_v});
    }
  return all;
}

JobSpec job_on(const JobSpec& base, const Mesh& m) {
  JobSpec job = base;
  job.parallelism.data = m.dp;
  job.parallelism.pipeline = m.pp;
  job.parallelism.virtual_stages = m.virtual_stages;
  job.parallelism.schedule = m.schedule;
  return job;
}

void check_all_meshes(Family family, DType compute, int tp, bool sequence_parallel, int64_t steps = 10) {
  const TemporaryFolder dir;
  JobSpec base = tiny_job(family, dir.path());
  base.compute = compute;
  base.parallelism.tensor = tp;
  base.parallelism.sequence_parallel = sequence_parallel;
  base.parallelism.lanes = 4;
  base.batch.global_sequences = 16;   // 4 micro-batches a lane
  base.schedule.total_steps = steps;
  const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain"});
  REQUIRE(plain.losses.size() == size_t(steps));
  REQUIRE(plain.losses.back() < plain.losses.front() - 0.01 * double(steps));
  int variant = 0;
  for (const Mesh& m : meshes(tp))
    for (const int zero : {0, 1, 2, 3}) {
      JobSpec job = job_on(base, m);
      job.parallelism.zero_stage = zero;
      ++variant;
      if (variant % 3 == 0) job.recompute = Recompute::full;
      if (variant % 3 == 1) job.recompute = Recompute::selective;
      if (variant % 4 == 0) job.parallelism.threads_per_rank = 2;
      if (variant % 5 == 0) job.parallelism.bucket_mib = 25;
      job.parallelism.early_receives = variant % 7 > 1;
      CAPTURE(m.dp, m.pp, m.virtual_stages, parallel::name_of(m.schedule), zero, variant, name_of(compute), tp);
      const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(variant)});
      CHECK(run.losses == plain.losses);
      CHECK(run.grad_norms == plain.grad_norms);
      CHECK(have_equal_digests(run, plain));
      CHECK(run.root_hash == plain.root_hash);
    }
}

}  // namespace

TEST_CASE("same bits on every mesh: gpt2 f32", "[bits][every_mesh][all]") {
  check_all_meshes(Family::gpt2, DType::f32, 1, true, 20);
}
TEST_CASE("same bits on every mesh: llama bf16", "[bits][every_mesh][all]") {
  check_all_meshes(Family::llama, DType::bf16, 1, true);
}
TEST_CASE("same bits on every mesh: llama f32, tp 2, sequence parallel", "[bits][every_mesh][all]") {
  check_all_meshes(Family::llama, DType::f32, 2, true);
}
TEST_CASE("same bits on every mesh: gpt2 bf16, tp 2, plain tensor parallel", "[bits][every_mesh][all]") {
  check_all_meshes(Family::gpt2, DType::bf16, 2, false);
}

TEST_CASE("same bits at every data-parallel width", "[bits]") {
  ThreadRun in_f32;
  for (const auto& [family, compute, reduction] : {std::tuple{Family::gpt2, DType::f32, DType::f32},
                                                   {Family::llama, DType::bf16, DType::f32},
                                                   {Family::llama, DType::bf16, DType::bf16}}) {
    const TemporaryFolder dir;
    JobSpec base = tiny_job(family, dir.path());
    base.compute = compute;
    base.parallelism.reduction_dtype = reduction;
    base.parallelism.lanes = 8;
    base.batch.global_sequences = 16;   // 2 micro-batches a lane
    base.data.val = base.data.train;
    base.eval = {.every_steps = 5, .max_sequences = 16};
    const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = 6});
    if (reduction == DType::bf16) {
      CHECK(plain.losses[0] == in_f32.losses[0]);  // before the first sum
      CHECK(plain.grad_norms[0] != in_f32.grad_norms[0]);
      CHECK(std::abs(plain.losses.back() - in_f32.losses.back()) < tolerance::kLossBf16);
    }
    in_f32 = plain;
    int variant = 0;
    for (int dp = 2; dp <= 8; ++dp)
      for (const int pp : {1, 2})
        for (const int zero : {0, 1, 2, 3}) {
          if (pp * dp > 8) continue;
          JobSpec job = base;
          job.parallelism.data = dp;
          job.parallelism.pipeline = pp;
          job.parallelism.zero_stage = zero;
          job.parallelism.schedule = variant % 2 ? Schedule::zb_h1 : Schedule::one_f_one_b;
          if (variant % 3 == 0) job.parallelism.bucket_mib = 25;
          job.parallelism.early_receives = variant % 5 > 1;
          CAPTURE(dp, pp, zero, variant, name_of(compute), name_of(reduction));
          const ThreadRun run =
              run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(++variant), .max_steps = 6});
          CHECK(run.losses == plain.losses);
          CHECK(run.grad_norms == plain.grad_norms);
          CHECK(run.val_losses == plain.val_losses);
          CHECK(have_equal_digests(run, plain));
          CHECK(run.root_hash == plain.root_hash);
        }
  }
}

TEST_CASE("same bits where gradients, or weights too, are held by two parts at a time", "[bits]") {
  for (const auto& [family, tp] : {std::pair{Family::gpt2, 1}, std::pair{Family::llama, 2}}) {
    const TemporaryFolder dir;
    JobSpec base = tiny_job(family, dir.path());
    base.parallelism.tensor = tp;
    base.parallelism.lanes = 16;
    base.batch.global_sequences = 16;   // a lane is one micro-batch
    const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = 6});
    int variant = 0;
    for (const Mesh& m : meshes(tp)) {
      if (m.dp == 1) continue;
      for (const double bucket_mib : {0.004, 25.0}) {
        JobSpec job = job_on(base, m);
        job.parallelism.bucket_mib = bucket_mib;
        job.parallelism.zero_stage = (bucket_mib < 1) != (m.pp % 2 == 0) ? 2 : 3;
        job.recompute = variant % 2 ? Recompute::full : Recompute::none;
        job.parallelism.reshard_after_forward = job.parallelism.zero_stage < 3 || variant / 2 % 2 == 0;
        CAPTURE(m.dp, m.pp, m.virtual_stages, parallel::name_of(m.schedule), variant, tp, bucket_mib);
        const ThreadRun run =
            run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(++variant), .max_steps = 6});
        CHECK(run.losses == plain.losses);
        CHECK(run.grad_norms == plain.grad_norms);
        CHECK(have_equal_digests(run, plain));
        CHECK(run.root_hash == plain.root_hash);
      }
    }
    CHECK(variant > 8);
  }
}

TEST_CASE("same bits where the rows of a layer's tensors have gaps between them", "[bits]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const TemporaryFolder dir;
    JobSpec base = tiny_job(family, dir.path());
    base.model.ffn_size = kFfnWithGaps;
    base.parallelism.lanes = 4;
    const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = 6});
    int variant = 0;
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
      for (const Mesh& m : {Mesh{2, 1, 1, Schedule::one_f_one_b}, Mesh{1, 2, 1, Schedule::zb_h1},
                            Mesh{2, 2, 2, Schedule::interleaved}}) {
        JobSpec job = job_on(base, m);
        job.recompute = recompute;
        job.parallelism.zero_stage = variant % 4;
        CAPTURE(m.dp, m.pp, parallel::name_of(m.schedule), variant, int(family));
        const ThreadRun run =
            run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(++variant), .max_steps = 6});
        CHECK(run.losses == plain.losses);
        CHECK(run.grad_norms == plain.grad_norms);
        CHECK(have_equal_digests(run, plain));
        CHECK(run.root_hash == plain.root_hash);
      }
  }
}

TEST_CASE("tensor parallel widths agree within rounding", "[bits]") {
  // Of the wide one, rows have gaps in one rank's memory and none in a quarter's.
  for (const auto& [family, ffn] :
       {std::pair{Family::gpt2, 128}, std::pair{Family::llama, 96}, std::pair{Family::gpt2, kFfnWithGaps},
        std::pair{Family::llama, kFfnWithGaps}}) {
    const TemporaryFolder dir;
    JobSpec job = tiny_job(family, dir.path());
    job.model.ffn_size = ffn;
    const ThreadRun one = run_on_threads(job, {.dir = dir.path() + "/1"});
    for (const int tp : {2, 4})
      for (const bool sequence_parallel : {true, false}) {
        if (job.model.num_kv_heads % tp != 0) continue;
        CAPTURE(tp, sequence_parallel);
        job.parallelism.tensor = tp;
        job.parallelism.sequence_parallel = sequence_parallel;
        const ThreadRun cut = run_on_threads(job, {.dir = dir.path() + "/cut"});
        real_file_system().remove_tree(dir.path() + "/cut");
        REQUIRE(cut.losses.size() == one.losses.size());
        for (size_t i = 0; i < one.losses.size(); ++i)
          CHECK(std::abs(cut.losses[i] - one.losses[i]) < tolerance::kLossF32);
      }
  }
}
