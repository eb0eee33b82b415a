// Goal: a run that is cut off and resumed on another mesh ends with the bits of the undisturbed run.
// Method: seeded random: stop after a random step on a random mesh, resume the checkpoint on another (dp, pp, schedule, ZeRO
// stage, recomputation), twice in a row; compare losses and root hash. Change of tp: within rounding. A checkpoint of another
// model, and a damaged one, are refused by name.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <mutex>
#include <random>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "test/support/forwarding_file_system.h"
#include "test/support/seed.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

void choose_mesh(JobSpec& job, std::mt19937& random) {
  const int dps[] = {1, 2, 3, 4}, pps[] = {1, 2, 4};
  do {
    job.parallelism.data = dps[random() % 4];
    job.parallelism.pipeline = pps[random() % 3];
  } while (job.parallelism.data * job.parallelism.pipeline > 8);
  const Schedule schedules[] = {Schedule::one_f_one_b, Schedule::gpipe, Schedule::zb_h1};
  job.parallelism.schedule = schedules[random() % 3];
  job.parallelism.virtual_stages = 1;
  if (job.parallelism.pipeline == 2 && random() % 3 == 0) {
    job.parallelism.schedule = Schedule::interleaved;
    job.parallelism.virtual_stages = 2;
  }
  if (job.parallelism.pipeline == 2 && random() % 3 == 0) {
    job.parallelism.schedule = Schedule::zb_v;
    job.parallelism.virtual_stages = 2;
  }
  job.parallelism.zero_stage = int(random() % (job.parallelism.data == 3 ? 2 : 4));
  job.recompute = Recompute(random() % 3);
}

/// The real file system; counts how often each file is opened or looked for.
class WatchedFileSystem final : public ForwardingFileSystem {
 public:
  WatchedFileSystem() : ForwardingFileSystem(real_file_system()) {}
  std::map<std::string, int> looks;

  std::unique_ptr<File> open_read(const std::string& path) override {
    return note(path), ForwardingFileSystem::open_read(path);
  }
  std::vector<std::string> list(const std::string& path) override {
    return note(path), ForwardingFileSystem::list(path);
  }
  bool exists(const std::string& path) override { return note(path), ForwardingFileSystem::exists(path); }

 private:
  void note(const std::string& path) {
    const std::lock_guard lock(mutex_);
    ++looks[path];
  }
  std::mutex mutex_;
};

}  // namespace

TEST_CASE("a resume on any mesh continues with the same bits", "[resume]") {
  for (const auto& [family, compute] : {std::pair{Family::gpt2, DType::f32}, std::pair{Family::llama, DType::bf16}}) {
    const TemporaryFolder dir;
    JobSpec base = tiny_job(family, dir.path());
    base.compute = compute;
    base.parallelism.lanes = 4;
    const ThreadRun whole = run_on_threads(base, {.dir = dir.path() + "/whole"});
    for (const uint64_t seed : test_seeds(6)) {
      std::mt19937 random(seed);
      INFO("TRAINCTL_TEST_SEED=" << seed << ", " << name_of(compute));
      const std::string at = dir.path() + "/" + std::to_string(seed);
      std::string from;
      std::vector<double> losses;
      int64_t step = 0;
      while (step < 20) {
        JobSpec job = base;
        choose_mesh(job, random);
        step += 1 + int64_t(random() % 12);
        const ThreadRun part = run_on_threads(job, {.dir = at, .resume_from = from, .max_steps = step});
        losses.insert(losses.end(), part.losses.begin(), part.losses.end());
        from = part.checkpoint;
      }
      CHECK(losses == whole.losses);
      CHECK(ckpt::Checkpoint::open(real_file_system(), from)->root_hash() == whole.root_hash);
    }
  }
}

TEST_CASE("of a checkpoint each rank opens the shards that hold its part", "[resume]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  job.parallelism.lanes = 2;
  job.parallelism.data = 2;
  job.parallelism.pipeline = 4;
  const ThreadRun saved = run_on_threads(job, {.dir = dir.path() + "/run", .max_steps = 2});
  const auto files = ckpt::Checkpoint::open(real_file_system(), saved.checkpoint)->files();
  REQUIRE(files.size() == 8);
  // How often ranks of this mesh look at each shard, at the manifest and at other names of the checkpoint.
  const auto looks_of = [&](int pipeline, int data) {
    WatchedFileSystem fs;
    job.parallelism.pipeline = pipeline;
    job.parallelism.data = data;
    run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(pipeline) + std::to_string(data),
                         .resume_from = saved.checkpoint,
                         .max_steps = 3,
                         .checkpoint_files = &fs});
    std::map<std::string, int> looks;
    for (const auto& [path, count] : fs.looks)
      if (path.starts_with(saved.checkpoint)) looks[path.substr(saved.checkpoint.size())] = count;
    return looks;
  };
  for (const auto& [pipeline, data, most] :
       {std::tuple{4, 2, 1}, {1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {1, 2, 2}}) {
    INFO("pipeline " << pipeline << ", data " << data);
    const std::map<std::string, int> looks = looks_of(pipeline, data);
    for (const ckpt::ShardReceipt& file : files) {
      const auto at = looks.find("/" + file.file);
      CHECK((at != looks.end() && at->second <= most));
    }
    CHECK(looks.at("/manifest.json") == pipeline * data);
    CHECK(looks.at("/COMMIT") == pipeline * data);
    CHECK(looks.size() == files.size() + 2);
  }
}

TEST_CASE("a resume on another tensor width continues within rounding", "[resume]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  const ThreadRun whole = run_on_threads(job, {.dir = dir.path() + "/whole"});
  const ThreadRun first = run_on_threads(job, {.dir = dir.path() + "/part", .max_steps = 10});
  job.parallelism.tensor = 2;
  const ThreadRun second = run_on_threads(job, {.dir = dir.path() + "/part", .resume_from = first.checkpoint});
  REQUIRE(second.losses.size() == 10);
  for (size_t i = 0; i < 10; ++i)
    CHECK(std::abs(second.losses[i] - whole.losses[10 + i]) < tolerance::kLossF32);
}

TEST_CASE("a checkpoint of another model is refused by name", "[resume]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  const ThreadRun run = run_on_threads(job, {.dir = dir.path(), .max_steps = 1});
  JobSpec other = job;
  other.model.ffn_size = 64;
  CHECK_THROWS_WITH(run_on_threads(other, {.dir = dir.path() + "/b", .resume_from = run.checkpoint}),
                    Catch::Contains("mlp.gate_proj.weight` has shape [96, 32], this model needs [64, 32]"));
  CHECK_THROWS_WITH(run_on_threads(tiny_job(Family::gpt2, dir.path()), {.dir = dir.path() + "/c", .resume_from = run.checkpoint}),
                    Catch::Contains("it is a checkpoint of another model"));
}

TEST_CASE("checkpoints name what computed them, and unlike devices make no run", "[resume]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.data = job.parallelism.lanes = 2;
  const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/one", .max_steps = 1});
  CHECK(ckpt::Checkpoint::open(real_file_system(), run.checkpoint)->state().numerics == kernels::cpu_numerics());
  ThreadRunOptions mixed{.dir = dir.path() + "/two", .max_steps = 1};
  mixed.make_backend = [](int rank) { return rank == 0 ? kernels::make_cpu_backend(1) : kernels::make_reference_backend(); };
  CHECK_THROWS_WITH(run_on_threads(job, mixed), Catch::Contains("rank 1 computes with reference, rank 0 with cpu "));
}

TEST_CASE("validation loss does not depend on the mesh", "[resume]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.data.val = job.data.train;
  job.eval = {.every_steps = 5, .max_sequences = 24};
  job.parallelism.lanes = 2;
  const ThreadRun one = run_on_threads(job, {.dir = dir.path() + "/1"});
  REQUIRE(one.val_losses.size() == 4);
  CHECK(one.val_losses.back() < one.val_losses.front());
  job.parallelism.data = 2;
  job.parallelism.pipeline = 2;
  job.parallelism.virtual_stages = 2;
  job.parallelism.schedule = Schedule::interleaved;
  CHECK(run_on_threads(job, {.dir = dir.path() + "/2"}).val_losses == one.val_losses);
}

TEST_CASE("validation reads as much with any lanes, whatever the share of a rank", "[resume]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  job.data.val = job.data.train;
  job.eval = {.every_steps = 2, .max_sequences = 5};
  job.parallelism.lanes = 8;
  const ThreadRun one = run_on_threads(job, {.dir = dir.path() + "/1", .max_steps = 4});
  REQUIRE(one.val_losses.size() == 2);
  for (const int data : {2, 4, 8})
    for (const int zero : {1, 2, 3}) {
      INFO("data " << data << ", ZeRO-" << zero);
      job.parallelism.data = data;
      job.parallelism.zero_stage = zero;
      const std::string at = dir.path() + "/" + std::to_string(10 * data + zero);
      CHECK(run_on_threads(job, {.dir = at, .max_steps = 4}).val_losses == one.val_losses);
    }
}
