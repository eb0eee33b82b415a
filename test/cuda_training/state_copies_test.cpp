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
