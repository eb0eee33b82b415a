// Goal: a run without master weights has the same bits on every mesh, with every rule, moments in fewer bits,
// averages and state on disk, and after a resume on another mesh; its checkpoint has the weights in bf16, and
// readers get them as f32; it takes 2 bytes for a weight where others take 6, as the plan
// says; its loss stays near theirs; a resume from the other kind
// of run is refused. Method: runs on thread ranks, as in moments_test.cpp.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "runtime/plan/plan.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using kernels::Moments;

namespace {

JobSpec job_without_masters(Family family, const std::string& dir) {
  JobSpec job = tiny_job(family, dir);
  job.compute = DType::bf16;
  job.optimizer.master_weights = MasterWeights::none;
  job.parallelism.lanes = 4;
  job.observability.state_digest_every_steps = 1;
  return job;
}

struct WeightsBench {
  const TemporaryFolder dir{"weights", "."};  // not in /tmp, which may be memory
  const std::string scratch = dir.path() + "/scratch";
  int runs = 0;
  WeightsBench() { std::filesystem::create_directory(scratch); }
  ThreadRun run(const JobSpec& job, int64_t steps, const std::string& resume_from = "") {
    return run_on_threads(
        job,
        {.dir = fmt::format("{}/{}", dir.path(), ++runs), .resume_from = resume_from, .max_steps = steps});
  }
};

}  // namespace

TEST_CASE("same bits on every mesh without master weights", "[bits][master_weights]") {
  WeightsBench bench;
  struct Kind {
    OptimizerType type;
    Moments moments;
    double ema;
    Family family;
    int tensor;
  };
  constexpr int64_t kSteps = 4;
  for (const Kind& kind : {Kind{OptimizerType::adamw, Moments::f32, 0, Family::llama, 1},
                           {OptimizerType::adamw, Moments::int8, 0.9, Family::llama, 2},
                           {OptimizerType::lion, Moments::bf16, 0, Family::gpt2, 1},
                           {OptimizerType::sgd, Moments::f32, 0.9, Family::gpt2, 2}}) {
    JobSpec base = job_without_masters(kind.family, bench.dir.path());
    base.optimizer.type = kind.type, base.optimizer.moments = kind.moments;
    base.optimizer.ema_decay = kind.ema;
    base.parallelism.tensor = kind.tensor;
    if (kind.type != OptimizerType::adamw) base.schedule.lr = 1e-3, base.schedule.min_lr = 1e-4;
    const ThreadRun plain = bench.run(base, kSteps);
    REQUIRE(plain.losses.size() == size_t(kSteps));
    int variant = 0;
    for (const TestMesh& mesh :
         {TestMesh{.data = 2, .zero = 0}, TestMesh{.data = 3, .pipeline = 1}, TestMesh{.data = 4, .zero = 2},
          TestMesh{.pipeline = 2, .zero = 0}, TestMesh{.data = 2, .pipeline = 2, .zero = 3}}) {
      JobSpec job = on_mesh(base, mesh);
      if (++variant % 2 == 0) {
        job.optimizer.offload = StateOffload::disk;
        job.optimizer.offload_directory = bench.scratch;
        job.parallelism.threads_per_rank = 2;
      }
      CAPTURE(word_of(kind.type), word_of(kind.moments), kind.ema, text_of(mesh));
      const ThreadRun run = bench.run(job, kSteps);
      CHECK(run.digests.size() == size_t(kSteps));
      check_equal_runs(run, plain);
    }
  }
}

TEST_CASE("a resume on another mesh has the same bits without master weights", "[resume][master_weights]") {
  WeightsBench bench;
  JobSpec base = job_without_masters(Family::llama, bench.dir.path());
  base.optimizer.ema_decay = 0.8;
  const ThreadRun whole = bench.run(base, 9);
  const ThreadRun first = bench.run(on_mesh(base, {.data = 2, .pipeline = 2, .zero = 3}), 4);
  const ThreadRun second = bench.run(on_mesh(base, {.data = 3, .pipeline = 2}), 6, first.checkpoint);
  const ThreadRun third = bench.run(on_mesh(base, {.zero = 0}), 9, second.checkpoint);
  CHECK(third.losses == std::vector<double>(whole.losses.begin() + 6, whole.losses.end()));
  CHECK(third.root_hash == whole.root_hash);
}

TEST_CASE("how weights are rounded does not follow the chunks of checkpoints", "[bits][master_weights]") {
  WeightsBench bench;
  JobSpec job = job_without_masters(Family::llama, bench.dir.path());
  job.optimizer.grad_clip = 0;  // the norm's last bits follow them
  const ThreadRun plain = bench.run(job, 4);
  job.checkpoint.chunk_mib /= 7;
  const ThreadRun other = bench.run(on_mesh(job, {.data = 2}), 4);
  CHECK(other.root_hash != plain.root_hash);
  CHECK(other.losses == plain.losses);
  CHECK(have_equal_digests(other, plain));
}

TEST_CASE("another seed rounds weights otherwise", "[master_weights]") {
  WeightsBench bench;
  JobSpec job = job_without_masters(Family::llama, bench.dir.path());
  const ThreadRun start = bench.run(job, 1), one = bench.run(job, 3, start.checkpoint);
  job.seed += 1;
  const ThreadRun other = bench.run(job, 3, start.checkpoint);
  CHECK(other.losses.front() == one.losses.front());
  CHECK(other.root_hash != one.root_hash);
}

TEST_CASE("500 steps without master weights end within 2 % of the loss with them", "[master_weights]") {
  WeightsBench bench;
  constexpr size_t kSteps = 500, kLast = 25;
  std::vector<double> last;
  for (const MasterWeights masters : {MasterWeights::f32, MasterWeights::none}) {
    JobSpec job = job_without_masters(Family::llama, bench.dir.path());
    job.optimizer.master_weights = masters;
    job.schedule.total_steps = int64_t(kSteps);
    const ThreadRun run = bench.run(job, 0);
    REQUIRE(run.losses.size() == kSteps);
    double mean = 0;
    for (size_t i = kSteps - kLast; i < kSteps; ++i) mean += run.losses[i] / double(kLast);
    last.push_back(mean);
    REQUIRE(mean < run.losses.front() - 1);
  }
  CAPTURE(last[0], last[1]);
  CHECK(std::abs(last[1] / last[0] - 1) < 0.02);
}

TEST_CASE("the plan counts 2 bytes in place of 6 for a weight without masters, as they are allocated",
          "[master_weights]") {
  WeightsBench bench;
  struct Bytes {
    int64_t weights, optimizer, planned, allocated;
  };
  const auto bytes = [&](MasterWeights masters, int zero) {
    JobSpec job = job_without_masters(Family::llama, bench.dir.path());
    job.optimizer.type = OptimizerType::sgd;
    job.optimizer.master_weights = masters;
    job.parallelism.zero_stage = zero;
    const JobPlan plan = make_plan(job, device_of_kind(job, DeviceKind::cpu));
    const ThreadRun ran = bench.run(job, 1);
    const parallel::ShardingBytes& of = plan.worst().sharding;
    return Bytes{int64_t(of.weights), int64_t(of.optimizer), int64_t(of.total()),
                 int64_t(*std::max_element(ran.allocated_bytes.begin(), ran.allocated_bytes.end()))};
  };
  const ParamTable table =
      parameter_table(job_without_masters(Family::llama, bench.dir.path()).model, OptimizerSpec{});
  int64_t all = 0;
  for (const Param& p : table.params) all += p.count();
  for (const int zero : {0, 1}) {
    const Bytes with = bytes(MasterWeights::f32, zero), without = bytes(MasterWeights::none, zero);
    CHECK(with.weights == without.weights);
    CHECK(with.optimizer == 8 * all);  // masters and a moment
    CHECK(without.optimizer == 4 * all);
    CHECK(with.planned - without.planned == 4 * all);
    CHECK(with.allocated - without.allocated == 4 * all);
  }
}

TEST_CASE("a checkpoint without master weights has them in bf16, and readers of it have these",
          "[master_weights]") {
  WeightsBench bench;
  const JobSpec job = job_without_masters(Family::llama, bench.dir.path());
  const ThreadRun run = bench.run(on_mesh(job, {.data = 2}), 3);
  auto checkpoint = ckpt::Checkpoint::open(real_file_system(), run.checkpoint);
  const ParamTable table = parameter_table(job.model, job.optimizer);
  int matrices = 0;
  for (const ckpt::Tensor& t : checkpoint->tensors()) {
    if (t.role != ckpt::Role::master) continue;
    const Param& p = table.params[size_t(table.find(t.name))];
    CHECK(t.dtype == (p.has_matrix_copy() ? DType::bf16 : DType::f32));
    matrices += p.has_matrix_copy();
    // As numbers of 4 bytes they are the same ones, however the box is cut.
    const int64_t cols = t.shape.size() > 1 ? t.shape[1] : 1;
    const parallel::Box whole{0, t.shape[0], 0, cols}, part{t.shape[0] / 3, t.shape[0], cols / 2, cols};
    std::vector<bf16> stored(size_t(whole.count()));
    std::vector<float> plain(size_t(whole.count())), floats(size_t(whole.count())),
        some(size_t(part.count()));
    checkpoint->read(t.name, t.role, whole,
                     t.dtype == DType::f32 ? static_cast<void*>(plain.data()) : stored.data());
    if (t.dtype == DType::bf16)
      std::transform(stored.begin(), stored.end(), plain.begin(), [](bf16 x) { return float(x); });
    const ckpt::BoxRead reads[] = {{.name = t.name, .box = whole, .out = floats.data(), .as_f32 = true},
                                   {.name = t.name, .box = part, .out = some.data(), .as_f32 = true}};
    checkpoint->read_all(reads, [](uint64_t) {});
    CHECK(floats == plain);
    for (int64_t i = 0; i < part.count(); ++i) {
      const int64_t row = part.row_begin + i / part.cols(), col = part.col_begin + i % part.cols();
      CHECK(some[size_t(i)] == plain[size_t(row * cols + col)]);
    }
  }
  CHECK(matrices > 10);
}

TEST_CASE("a run with master weights is not resumed without them, nor the other way",
          "[resume][master_weights]") {
  WeightsBench bench;
  JobSpec job = job_without_masters(Family::llama, bench.dir.path());
  const ThreadRun without = bench.run(job, 1);
  job.optimizer.master_weights = MasterWeights::f32;
  CHECK_THROWS_WITH(
      bench.run(job, 2, without.checkpoint),
      Catch::Contains("in bf16, this job in f32: optimizer.master_weights is fixed for the life of a run"));
  const ThreadRun with = bench.run(job, 1);
  job.optimizer.master_weights = MasterWeights::none;
  CHECK_THROWS_WITH(
      bench.run(job, 2, with.checkpoint),
      Catch::Contains("in f32, this job in bf16: optimizer.master_weights is fixed for the life of a run"));
}
