// Goal: which device a rank takes, and what a job is told that asks for GPUs that are not there or too small.
// Method: the pure decisions by hand, and this machine's own answer for `cpu`.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "runtime/supervise/preflight/preflight.h"
#include "runtime/machine/rank_device.h"

using namespace trainctl;

namespace {

JobSpec job_of(int ranks, int ranks_per_gpu) {
  JobSpec job;
  job.parallelism.data = ranks;
  job.launcher.ranks_per_gpu = ranks_per_gpu;
  return job;
}

}  // namespace

TEST_CASE("GPUs that are missing are counted in one sentence") {
  CHECK(missing_gpus(job_of(4, 1), 4, "").is_none());
  CHECK(missing_gpus(job_of(8, 8), 1, "").is_none());
  CHECK(missing_gpus(job_of(9, 8), 2, "").is_none());
  CHECK(missing_gpus(job_of(16, 1), 8, "", 8).is_none());  // of two nodes
  CHECK(missing_gpus(job_of(16, 1), 4, "", 8).exists());
  CHECK(missing_gpus(job_of(16, 1), 1, "", 0).is_none());  // the supervisor alone
  CHECK(missing_gpus(job_of(8, 1), 3, "").text() ==
        "8 ranks at launcher.ranks_per_gpu = 1 need 8 GPUs and this machine has 3; make parallelism smaller, or raise "
        "launcher.ranks_per_gpu to 3 (ranks that share a GPU work one after another)");
  CHECK(missing_gpus(job_of(1, 1), 0, "no NVIDIA driver is loaded here").text() ==
        "device = \"cuda\", but no NVIDIA driver is loaded here");
}

TEST_CASE("neighbouring ranks share a GPU, and those that share one do not ask for NCCL") {
  for (const auto& [local, share, gpu] : {std::tuple{0, 1, 0}, {3, 1, 3}, {0, 4, 0}, {3, 4, 0}, {4, 4, 1}}) {
    CAPTURE(local, share);
    CHECK(gpu_of_rank(job_of(8, share), DeviceKind::cuda, local) == gpu);
    CHECK(gpu_of_rank(job_of(8, share), DeviceKind::cpu, local) == -1);
  }
  JobSpec job = job_of(8, 1);
  CHECK(uses_nccl(job));
  job.parallelism.transport = Transport::host;
  CHECK_FALSE(uses_nccl(job));
  CHECK_FALSE(uses_nccl(job_of(8, 2)));
}

TEST_CASE("a rank that does not see its GPU learns that ranks of a machine must see all") {
  CHECK(unseen_gpu(0, 0, 1).is_none());
  CHECK(unseen_gpu(3, 3, 8).is_none());
  CHECK(unseen_gpu(3, 3, 0).is_none());  // another error says why there is none
  CHECK(unseen_gpu(3, 3, 1).text().starts_with(
      "the rank with local rank 3 uses GPU 3 of its machine and sees 1 GPU(s): "));
  CHECK(gpus_of_ranks(job_of(8, 1), DeviceKind::cpu, 8).empty());
}

TEST_CASE("pipelines over NCCL need a queue for each stream of a rank") {
  JobSpec job = job_of(1, 1);
  job.parallelism.pipeline = 4;
  const int streams = streams_of_rank(job.parallelism, false);
  CHECK(streams == 8);  // compute and three others, two edges with a stream each way
  CHECK(streams_of_rank(job.parallelism, true) == 9);
  CHECK(queue_problem(job, "").is_none());
  CHECK(queue_problem(job, "32").is_none());
  CHECK(queue_problem(job, "9").is_none());
  CHECK(queue_problem(job, "1").text() ==
        fmt::format(
            "CUDA_DEVICE_MAX_CONNECTIONS = 1 gives a GPU so many queues for the {} streams of a rank: a "
            "pipeline message that waits for its peer would hold up the computation that the peer waits "
            "for; unset the variable, or set it to 32",
            streams_of_rank(job.parallelism, job.model.tie_embeddings)));
  job.parallelism.pipeline = 1;
  CHECK(queue_problem(job, "1").is_none());
  job.parallelism.pipeline = 2;
  job.parallelism.transport = Transport::host;
  CHECK(queue_problem(job, "1").is_none());
  // The widest mesh: all groups, a V of stages, weights gathered apart. NCCL has two streams more for each
  // group.
  ParallelSpec p;
  p.tensor = p.context = p.data = p.expert = p.pipeline = 2;
  p.zero_stage = 3;
  p.virtual_stages = 2;
  p.schedule = parallel::Schedule::zb_v;
  CHECK(streams_of_rank(p, true) == 4 + 2 + 5 + 3 + 4);
}

TEST_CASE("a device that is asked for by name is taken at its word") {
  JobSpec job = job_of(1, 1);
  job.device = DeviceChoice::cpu;
  CHECK(device_kind(job) == DeviceKind::cpu);
  CHECK(make_rank_backend(job, DeviceKind::cpu, 0)->is_host());
  job.device = DeviceChoice::cuda;
  CHECK(device_kind(job) == DeviceKind::cuda);
}

TEST_CASE("a GPU too small for the plan is refused with its three largest terms") {
  constexpr size_t kGiB = size_t(1) << 30;
  JobPlan plan;
  plan.device = DeviceKind::cuda;
  RankMemory m;
  m.sharding.weights = 2 * kGiB;
  m.sharding.optimizer = 12 * kGiB;
  m.sharding.gradients = 4 * kGiB;
  m.stage.activations = 40 * kGiB;
  m.workspace = kGiB;
  plan.stages = {m};
  JobSpec job = job_of(4, 1);
  job.compute = DType::bf16;
  const MemoryNeed need = gpu_memory_need(job, job.checkpoint.memory, plan);
  CHECK(need.total == 59 * kGiB);
  CHECK(gpu_memory_refusal(job, need, "NVIDIA A100-SXM4-80GB", 79 * kGiB).is_none());
  CHECK(gpu_memory_refusal(job, need, "NVIDIA A100-SXM4-40GB", 39 * kGiB).text() ==
        "a rank would need 59.0 GiB of GPU memory and NVIDIA A100-SXM4-40GB has 39.0 GiB free (most of it: activations 40.0 GiB, "
        "optimizer state 12.0 GiB, gradients 4.0 GiB); memory.activation_recompute = full, "
        "parallelism.zero_stage = 3, a smaller parallelism.data or a smaller model would help, and `trainctl plan` shows what each rank takes");
  const MemoryNeed shared = gpu_memory_need(job_of(4, 4), job_of(4, 4).checkpoint.memory, plan);
  CHECK(shared.total == 4 * 59 * kGiB);
}
