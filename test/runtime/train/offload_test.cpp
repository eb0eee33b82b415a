// Goal: a run whose optimizer's state is in files has the bits of one whose state is in memory: losses,
// norms, digests and checkpoints, on every mesh, for each rule that may be there, with copies in memory,
// and resumed from one into the other. It allocates less, by what the plan says. Method: runs of tiny
// models on thread ranks, whose parts of state are as small as chunks, so that each rank has dozens.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/plan/plan.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using kernels::Moments;

namespace {

constexpr int64_t kOffloadSteps = 4;

struct OffloadBench {
  const TemporaryFolder dir{"offload", "."};  // not in /tmp, which may be memory
  const std::string scratch = dir.path() + "/scratch";
  int runs = 0;
  OffloadBench() { std::filesystem::create_directory(scratch); }
  JobSpec on_disk(JobSpec job) const {
    job.optimizer.offload = StateOffload::disk;
    job.optimizer.offload_directory = scratch;
    return job;
  }
  ThreadRun run(const JobSpec& job, const std::string& resume_from = "", int64_t steps = kOffloadSteps) {
    ThreadRun result = run_on_threads(
        job,
        {.dir = fmt::format("{}/{}", dir.path(), ++runs), .resume_from = resume_from, .max_steps = steps});
    CHECK(std::filesystem::is_empty(scratch));
    return result;
  }
  JobSpec job(Family family) const {
    JobSpec job = tiny_job(family, dir.path());
    job.parallelism.lanes = 4;
    job.observability.state_digest_every_steps = 1;
    return job;
  }
};

}  // namespace

TEST_CASE("state on disk has the same bits on every mesh and with every rule", "[bits][offload]") {
  OffloadBench bench;
  struct Kind {
    OptimizerType type;
    Moments moments;
    double ema;
    DType compute;
  };
  for (const Kind& kind : {Kind{OptimizerType::adamw, Moments::f32, 0, DType::f32},
                           {OptimizerType::adamw, Moments::int8, 0.9, DType::bf16},
                           {OptimizerType::adamw, Moments::bf16, 0, DType::f32},
                           {OptimizerType::lion, Moments::int8, 0, DType::f32},
                           {OptimizerType::sgd, Moments::f32, 0.9, DType::f32}}) {
    JobSpec base = bench.job(kind.type == OptimizerType::adamw ? Family::llama : Family::gpt2);
    base.optimizer.type = kind.type, base.optimizer.moments = kind.moments,
    base.optimizer.ema_decay = kind.ema;
    base.compute = kind.compute;
    if (kind.type != OptimizerType::adamw) base.schedule.lr = 1e-3, base.schedule.min_lr = 1e-4;
    const ThreadRun plain = bench.run(base);
    REQUIRE(plain.losses.size() == size_t(kOffloadSteps));
    for (const TestMesh& mesh :
         {TestMesh{}, TestMesh{.data = 2, .zero = 0}, TestMesh{.data = 3, .pipeline = 2},
          TestMesh{.data = 4, .zero = 2}, TestMesh{.data = 2, .pipeline = 2, .zero = 3}}) {
      CAPTURE(word_of(kind.type), word_of(kind.moments), kind.ema, text_of(mesh));
      const ThreadRun run = bench.run(bench.on_disk(on_mesh(base, mesh)));
      CHECK(run.digests.size() == size_t(kOffloadSteps));
      check_equal_runs(run, plain);
    }
  }
}

TEST_CASE("state on disk has the same bits with tensor ranks, and with experts whose biases stay in memory",
          "[bits][offload]") {
  OffloadBench bench;
  JobSpec tensor = bench.job(Family::llama);
  tensor.parallelism.tensor = 2;
  JobSpec experts = bench.job(Family::llama);
  describe_balanced_experts(experts.model);
  experts.model.moe.num_experts = 8;
  for (const JobSpec& base : {tensor, experts}) {
    const ThreadRun plain = bench.run(base);
    for (const TestMesh& mesh : {TestMesh{.data = 2}, TestMesh{.data = 2, .pipeline = 2, .zero = 3}}) {
      CAPTURE(base.model.moe.num_experts, text_of(mesh));
      check_equal_runs(bench.run(bench.on_disk(on_mesh(base, mesh))), plain);
    }
    if (base.model.moe.num_experts == 0) continue;
    check_equal_runs(bench.run(bench.on_disk(on_mesh(base, {.expert = 2, .data = 4}))), plain);
  }
}

TEST_CASE("a run goes on from disk in memory and back, on other meshes", "[resume][offload]") {
  OffloadBench bench;
  JobSpec base = bench.job(Family::gpt2);
  base.optimizer.ema_decay = 0.8;
  const ThreadRun whole = bench.run(base, "", 8);
  const JobSpec four = on_mesh(base, {.data = 2, .pipeline = 2, .zero = 3}),
                three = on_mesh(base, {.data = 3});
  const ThreadRun first = bench.run(bench.on_disk(four), "", 2);
  const ThreadRun second = bench.run(three, first.checkpoint, 4);
  const ThreadRun third = bench.run(bench.on_disk(base), second.checkpoint, 6);
  const ThreadRun last = bench.run(bench.on_disk(three), third.checkpoint, 8);
  CHECK(last.losses == std::vector<double>(whole.losses.begin() + 6, whole.losses.end()));
  CHECK(last.digests.at(8) == whole.digests.at(8));
  CHECK(last.root_hash == whole.root_hash);
}

TEST_CASE("averages of a run that had none begin on disk as in memory", "[resume][offload]") {
  OffloadBench bench;
  JobSpec base = bench.job(Family::gpt2);
  const ThreadRun first = bench.run(base, "", 2);
  base.optimizer.ema_decay = 0.8;
  const ThreadRun plain = bench.run(base, first.checkpoint, 4);
  check_equal_runs(bench.run(bench.on_disk(on_mesh(base, {.data = 2})), first.checkpoint, 4), plain);
}

TEST_CASE("copies in memory and checkpoints behind the training are made from disk", "[offload]") {
  OffloadBench bench;
  JobSpec base = on_mesh(bench.job(Family::llama), {.data = 2});
  const ThreadRun plain = bench.run(base);
  JobSpec job = bench.on_disk(base);
  job.checkpoint.memory = MemoryCopies::on;
  job.checkpoint.memory_when = EverySteps::given;
  job.checkpoint.memory_every_steps = 1;
  job.checkpoint.every_steps = 2;
  std::vector<std::string> failed;
  const std::string copies = bench.dir.path() + "/copies";
  std::filesystem::create_directory(copies);
  const ThreadRun run =
      run_on_threads(job, {.dir = bench.dir.path() + "/behind",
                           .max_steps = kOffloadSteps,
                           .memory_folder = copies,
                           .on_event = [&](EventKind kind, const std::string& text) {
                             if (kind == EventKind::save_failed || kind == EventKind::memory_off)
                               failed.push_back(text);
                           }});
  CHECK(failed.empty());
  CHECK(!std::filesystem::is_empty(copies));
  check_equal_runs(run, plain);
}

TEST_CASE("the plan says what state on disk saves, and a rank allocates that much less", "[offload]") {
  OffloadBench bench;
  for (const int zero : {0, 1, 3}) {
    const JobSpec job = on_mesh(bench.job(Family::llama), {.data = 2, .zero = zero});
    const auto sharding = [](const JobSpec& of) {
      return make_plan(of, device_of_kind(of, DeviceKind::cpu)).worst().sharding;
    };
    const auto with = sharding(bench.on_disk(job)), without = sharding(job);
    CHECK(with.state_file == without.optimizer);
    CHECK(with.optimizer > 0);
    CHECK(with.optimizer * 5 < without.optimizer);
    CHECK(with.total() - with.optimizer == without.total() - without.optimizer);
    CHECK(with.saved == without.saved);
    const JobPlan plan = make_plan(bench.on_disk(job), device_of_kind(job, DeviceKind::cpu));
    size_t regions = 0;
    for (const MemoryRegion& region : plan.regions) regions += region.pinned_host ? 0 : region.bytes;
    CHECK(regions == plan.worst().total());
    const ThreadRun memory = bench.run(job, "", 1), disk = bench.run(bench.on_disk(job), "", 1);
    for (size_t rank = 0; rank < memory.allocated_bytes.size(); ++rank)
      CHECK(memory.allocated_bytes[rank] > disk.allocated_bytes[rank] + without.optimizer / 2);
    CHECK(*std::max_element(memory.allocated_bytes.begin(), memory.allocated_bytes.end()) ==
          *std::max_element(disk.allocated_bytes.begin(), disk.allocated_bytes.end()) + without.optimizer);
  }
}
