// Goal: a rank's state passes between its device and its files through a bounded amount of pinned memory,
// with the bits it had. Method: runs on the emulated GPU whose state is many times larger than their staging
// memory: fresh, imported, saved, resumed. The same runs with staging memory for the whole state are the
// measure; the emulated GPU counts pinned memory and copies past it.
#include <catch2/catch.hpp>

#include "runtime/model/params.h"
#include "runtime/plan/plan.h"
#include "test/cuda_training/gpu_runs.h"
#include "test/support/emulated_gpu/emulated_gpu.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr size_t kLittle = 16 << 10;

struct Measured {
  ThreadRun run;
  size_t peak_pinned_bytes = 0;
  uint64_t pageable_copies = 0;
};

Measured run_with(const JobSpec& job, const std::string& dir, int64_t steps, size_t most_staging_bytes, const std::string& resume_from = "",
                  uint64_t seed = 1) {
  prepare_devices(1, seed);
  ThreadRunOptions options = on_one_gpu(dir);
  options.max_steps = steps;
  options.resume_from = resume_from;
  options.most_staging_bytes = most_staging_bytes;
  Measured m;
  m.run = run_on_threads(job, options);
  m.peak_pinned_bytes = emulated_gpu::peak_pinned_bytes();
  m.pageable_copies = emulated_gpu::counts(0).pageable_copies;
  return m;
}

}  // namespace

TEST_CASE("a state much larger than its staging memory is saved and loaded with the same bits", "[checkpoint]") {
  const TemporaryFolder dir;
  const JobSpec job = tiny_job(Family::gpt2, dir.path());
  const size_t state_bytes = 12 * size_t(parameter_table(job.model, job.optimizer).total_count());
  REQUIRE(state_bytes > 20 * kLittle);
  CHECK(make_plan(job, DeviceKind::cuda).worst().pinned_host == staging_bytes(state_bytes));
  const Measured whole = run_with(job, dir.path() + "/whole", 1, kStagingBytes);
  JobSpec not_saved = job;
  not_saved.checkpoint.on_exit = false;
  const Measured unsaved = run_with(not_saved, dir.path() + "/unsaved", 1, kStagingBytes);
  for (const uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    const Measured little = run_with(job, dir.path() + "/little" + std::to_string(seed), 1, kLittle, "", seed);
    CHECK(little.run.losses == whole.run.losses);
    CHECK(little.run.root_hash == whole.run.root_hash);
    // Staging memory is all that the two differ in, and its size is the planned one; a save takes nothing
    // more.
    CHECK(whole.peak_pinned_bytes - little.peak_pinned_bytes == staging_bytes(state_bytes) - kLittle);
    CHECK(little.pageable_copies == unsaved.pageable_copies);
    const Measured resumed = run_with(job, dir.path() + "/again" + std::to_string(seed), 2, kLittle, little.run.checkpoint, seed);
    const Measured resumed_whole =
        run_with(job, dir.path() + "/again-whole" + std::to_string(seed), 2, kStagingBytes, whole.run.checkpoint, seed);
    CHECK(resumed.run.root_hash == resumed_whole.run.root_hash);
    CHECK(resumed.pageable_copies == unsaved.pageable_copies);
  }
}

TEST_CASE("imported weights pass through little staging memory with the same bits", "[checkpoint]") {
  for (const char* name : {"gpt2-tiny", "llama-tiny"}) {
    const TemporaryFolder dir;
    const JobSpec job = golden_job(name);
    const Measured whole = run_with(job, dir.path() + "/whole", 1, kStagingBytes);
    const Measured little = run_with(job, dir.path() + "/little", 1, kLittle);
    CHECK(little.run.losses == whole.run.losses);
    CHECK(little.run.root_hash == whole.run.root_hash);
    CHECK(little.peak_pinned_bytes < whole.peak_pinned_bytes);
  }
}

TEST_CASE("state on the host has the same bits on every mesh, and leaves the GPU what the plan says",
          "[checkpoint]") {
  const TemporaryFolder dir;
  for (const OptimizerType type : {OptimizerType::adamw, OptimizerType::lion}) {
    JobSpec base = tiny_job(type == OptimizerType::adamw ? Family::llama : Family::gpt2, dir.path());
    base.compute = DType::bf16;
    base.parallelism.lanes = 2;
    base.optimizer.type = type;
    base.optimizer.ema_decay = 0.9;
    base.optimizer.moments = type == OptimizerType::adamw ? kernels::Moments::int8 : kernels::Moments::bf16;
    base.observability.state_digest_every_steps = 1;
    const std::string at = dir.path() + "/" + std::string(word_of(type));
    const Measured plain = run_with(base, at + "/plain", 2, kLittle);
    REQUIRE(plain.run.digests.size() == 2);
    for (const int zero : {0, 1, 3}) {
      CAPTURE(word_of(type), zero);
      JobSpec mesh = base;
      mesh.parallelism.data = zero == 1 ? 1 : 2;
      mesh.parallelism.zero_stage = zero;
      JobSpec on_host = mesh;
      on_host.optimizer.offload = StateOffload::host;
      const std::string of = at + std::to_string(zero);
      const Measured there = run_with(mesh, of + "/device", 2, kLittle);
      const Measured here = run_with(on_host, of + "/host", 2, kLittle, "", uint64_t(zero) + 2);
      CHECK(here.run.losses == plain.run.losses);
      CHECK(here.run.digests == plain.run.digests);
      CHECK(here.run.root_hash == plain.run.root_hash);
      const RankMemory with = make_plan(on_host, DeviceKind::cuda).worst(),
                       without = make_plan(mesh, DeviceKind::cuda).worst();
      CHECK(with.sharding.state_host > 0);
      CHECK(with.sharding.optimizer + with.sharding.state_host == without.sharding.optimizer);
      CHECK(with.pinned_host - without.pinned_host == with.sharding.state_host);
      for (size_t rank = 0; rank < here.run.allocated_bytes.size(); ++rank)
        CHECK(here.run.allocated_bytes[rank] + with.sharding.state_host >= there.run.allocated_bytes[rank]);
      CHECK(*std::max_element(here.run.allocated_bytes.begin(), here.run.allocated_bytes.end()) ==
            with.total() - with.nccl);
      CHECK(here.peak_pinned_bytes - there.peak_pinned_bytes >= with.sharding.state_host);
      // From one into the other, through checkpoints.
      const Measured first = run_with(on_host, of + "/first", 1, kLittle);
      CHECK(run_with(mesh, of + "/second", 2, kLittle, first.run.checkpoint).run.root_hash ==
            plain.run.root_hash);
      const Measured other = run_with(mesh, of + "/third", 1, kLittle);
      CHECK(run_with(on_host, of + "/fourth", 2, kLittle, other.run.checkpoint).run.root_hash ==
            plain.run.root_hash);
    }
  }
}
