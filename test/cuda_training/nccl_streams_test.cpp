// Goal: ranks joined by NCCL train to the same bits where a GPU has few hardware queues, and their weights
// are gathered during the reductions of gradients, not behind them. Method: the emulated GPU, whose streams
// share queues in the order of their making, as on a GPU; it names streams that hold each other up. The
// emulated NCCL notes on which stream each exchange of which communicator was given.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "runtime/machine/rank_device.h"
#include "test/cuda_training/nccl_runs.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

constexpr int64_t kSteps = 1;

JobSpec pipeline_job(const std::string& dir, int virtual_stages) {
  JobSpec job = base_job(Family::llama, dir, DType::f32, 1);
  job.model.num_layers = 8;
  job.parallelism.pipeline = 4;
  job.parallelism.schedule = virtual_stages > 1 ? Schedule::interleaved : Schedule::one_f_one_b;
  job.parallelism.virtual_stages = virtual_stages;
  return job;
}

ThreadRun run_alone(JobSpec job, const std::string& dir) {
  job.parallelism.pipeline = job.parallelism.virtual_stages = 1;
  job.parallelism.schedule = Schedule::one_f_one_b;
  prepare_devices(1, 1);
  return run_on_gpu(job, dir, kSteps);
}

ThreadRun run_with_queues(const JobSpec& job, const std::string& dir, int queues, uint64_t seed,
                          int64_t limit_ms = 30'000) {
  emulated_gpu::Options options;
  options.devices.resize(size_t(job.mesh().world_size()));
  options.stream_mode = seed % 2 ? emulated_gpu::StreamMode::lazy : emulated_gpu::StreamMode::random;
  options.seed = seed;
  options.queues = queues;
  options.queue_limit_ms = limit_ms;
  emulated_gpu::reset(options);
  emulated_gpu::reset_nccl({.seed = seed});
  return run_on_threads(job, on_nccl(dir, kSteps));
}

}  // namespace

TEST_CASE("NCCL: a pipeline rank has a queue for each of its streams, where there are as many", "[nccl]") {
  const TemporaryFolder dir;
  const JobSpec base = pipeline_job(dir.path(), 2);
  const int streams = streams_of_rank(base.parallelism, base.model.tie_embeddings);
  REQUIRE(streams <= 8);
  const ThreadRun plain = run_alone(base, dir.path() + "/plain");
  for (const auto& [queues, early] : {std::pair{8, true}, {16, true}, {32, true}, {8, false}}) {
    CAPTURE(early, queues);
    JobSpec job = base;
    job.parallelism.early_receives = early;
    check_equal_runs(run_with_queues(job, dir.path() + "/run", queues, uint64_t(queues / 8)), plain);
    CHECK(emulated_gpu::held_streams() == std::vector<std::string>());
    for (int device = 0; device < 4; ++device) {
      std::set<int> taken;
      int used = 0;
      for (const emulated_gpu::StreamFacts& stream : emulated_gpu::stream_facts())
        if (stream.device == device && stream.given > 0) ++used, taken.insert(stream.queue);
      CAPTURE(device, used, taken);
      CHECK(used <= streams);
      CHECK(int(taken.size()) == used);
    }
  }
}

TEST_CASE("NCCL: with too few queues pipeline messages hold each other up, and bits stay", "[nccl]") {
  const TemporaryFolder dir;
  const JobSpec job = pipeline_job(dir.path(), 1);
  const ThreadRun plain = run_alone(job, dir.path() + "/plain");
  check_equal_runs(run_with_queues(job, dir.path() + "/run", 1, 1, 500), plain);
  const std::vector<std::string> held = emulated_gpu::held_streams();
  REQUIRE(!held.empty());
  CHECK(std::any_of(held.begin(), held.end(),
                    [](const std::string& text) { return text.ends_with("with an NCCL group of 1"); }));
  CHECK(queue_problem(job, "1").exists());  // no rank begins like that
}

TEST_CASE("NCCL: weights are gathered on a stream of their own, before reductions", "[nccl]") {
  const TemporaryFolder dir;
  JobSpec job = base_job(Family::gpt2, dir.path(), DType::f32, 1);
  job.parallelism.data = 2;
  for (const int zero : {2, 3}) {
    CAPTURE(zero);
    job.parallelism.zero_stage = zero;
    (void)run_with_nccl(job, dir.path() + "/run" + std::to_string(zero), kSteps, 1);
    // Of rank 0's device: which streams each communicator had, and with which priority.
    std::map<uint64_t, std::set<int>> streams;
    std::multiset<int> priorities;
    for (const emulated_gpu::NcclLaunch& launch : emulated_gpu::nccl_launches())
      if (launch.device == 0) streams[launch.communicator].insert(launch.stream);
    for (const auto& [communicator, of] : streams) {
      REQUIRE(of.size() == 1);
      for (const emulated_gpu::StreamFacts& stream : emulated_gpu::stream_facts())
        if (stream.number == *of.begin()) priorities.insert(stream.priority);
    }
    // Where weights are gathered in the backward pass, no gather has a reduction before it on its stream.
    CHECK(priorities == (zero == 3 ? std::multiset<int>{-2, -1} : std::multiset<int>{-1}));
  }
}
