// Goal: once a run is under way a step takes no memory, copies by way of pinned memory alone, and launches
// nothing for vectors alone. Method: the emulated GPU counts; a run of five steps must count what a run of
// two counts, or three steps' worth more.
#include <catch2/catch.hpp>

#include "test/cuda_training/gpu_runs.h"
#include "test/support/emulated_gpu/emulated_gpu.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

emulated_gpu::Counts counts_of(const JobSpec& job, int64_t steps) {
  prepare_devices(1, 1);
  (void)run_on_gpu(job, "", steps);
  return emulated_gpu::counts(0);
}

}  // namespace

TEST_CASE("a step allocates nothing and copies through pinned memory alone", "[plan]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const TemporaryFolder dir;
    JobSpec job = tiny_job(family, dir.path());
    job.compute = DType::bf16;
    job.parallelism.pipeline = job.parallelism.data = 2;
    job.parallelism.lanes = 2;
    job.checkpoint.on_exit = false;
    const emulated_gpu::Counts two = counts_of(job, 2), three = counts_of(job, 3), five = counts_of(job, 5);
    CHECK(five.allocations == two.allocations);
    CHECK(five.peak_allocated_bytes == two.peak_allocated_bytes);
    CHECK(five.pageable_copies == two.pageable_copies);
    CHECK(three.kernels > two.kernels);
    CHECK(five.kernels - three.kernels == 2 * (three.kernels - two.kernels));
  }
}

TEST_CASE("another micro-batch converts no bias and copies, adds or clears no gradient of a vector by itself", "[plan]") {
  struct Launches {
    uint64_t copies, adds, memsets, kernels;
  };
  const auto launches_of = [](int64_t micro_batches) {
    const TemporaryFolder dir;
    JobSpec job = tiny_job(Family::gpt2, dir.path());
    job.compute = DType::bf16;
    job.parallelism.lanes = 1;
    job.batch.global_sequences = micro_batches;
    job.checkpoint.on_exit = false;
    const emulated_gpu::Counts counts = counts_of(job, 1);
    return Launches{emulated_gpu::launches_of("copy"), emulated_gpu::launches_of("add"), counts.memsets, counts.kernels};
  };
  const Launches four = launches_of(4), eight = launches_of(8);
  CHECK(eight.kernels > four.kernels);
  CHECK(eight.copies == four.copies + 4);   // of the head's input gradient, which waits for the backward half
  CHECK(eight.adds == four.adds);
  CHECK(eight.memsets == four.memsets);
}
