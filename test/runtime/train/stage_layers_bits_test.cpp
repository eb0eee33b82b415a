// Goal: neither the cut of the layers nor the number of layers that backward computes again changes a bit,
// and the memory that they take is what the plan says.
// Method: runs of a tiny model on thread ranks over uneven cuts, also with a first and a last stage without
// layers, for every schedule and recomputation; each is compared exactly with one plain rank, in losses,
// gradient norms and root hash. What a run allocates more or less than the plain one is compared with the
// plan of each rank. A run is resumed three times on other cuts.
#include <catch2/catch.hpp>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "runtime/model/stage_layers.h"
#include "runtime/plan/plan.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

struct Cut {
  int stages, virtual_stages;
  std::vector<int64_t> layers;
  Schedule schedule = Schedule::one_f_one_b;
};

const std::vector<Cut> kCuts = {
    {2, 1, {1, 3}},
    {2, 1, {3, 1}, Schedule::zb_h1},
    {2, 1, {0, 4}},
    {2, 1, {4, 0}, Schedule::gpipe},
    {2, 1, {0, 4}, Schedule::zb_h1},
    {2, 1, {4, 0}, Schedule::zb_h1},
    {3, 1, {0, 4, 0}},
    {3, 1, {2, 1, 1}},
    {4, 1, {0, 1, 3, 0}, Schedule::zb_h1},
    {2, 2, {0, 3, 1, 0}, Schedule::interleaved},
    {2, 2, {1, 1, 2, 0}, Schedule::interleaved},
    {2, 3, {0, 1, 1, 1, 1, 0}, Schedule::interleaved},
    {2, 2, {0, 2, 2, 0}, Schedule::zb_v},
    {2, 2, {1, 2, 1, 0}, Schedule::zb_v},
    {3, 2, {0, 1, 1, 1, 1, 0}, Schedule::zb_v},
};

void set_cut(JobSpec& job, const Cut& cut) {
  job.parallelism.pipeline = cut.stages;
  job.parallelism.virtual_stages = cut.virtual_stages;
  job.parallelism.stage_layers = cut.layers;
  job.parallelism.schedule = cut.schedule;
}

void set_recompute(JobSpec& job, int64_t layers) {
  job.recompute = Recompute::first_layers;
  job.recompute_layers = layers;
}

/// What the backend of each rank should hold beyond what it holds for `base`, by the plans of both.
void check_memory(const JobSpec& job, const ThreadRun& run, const JobSpec& base, const ThreadRun& base_run) {
  for (size_t rank = 0; rank < run.allocated_bytes.size(); ++rank) {
    const auto planned = [&](const JobSpec& j) {
      return int64_t(rank_memory(j, DeviceKind::cpu, parallel::position_of(j.mesh(), int(rank))).total());
    };
    CAPTURE(rank);
    CHECK(int64_t(run.allocated_bytes[rank]) - int64_t(base_run.allocated_bytes[rank]) ==
          planned(job) - planned(base));
  }
}

void check_all_layers(Family family, DType compute, int tensor, bool sequence_parallel) {
  const TemporaryFolder dir;
  JobSpec base = tiny_job(family, dir.path());
  base.compute = compute;
  base.parallelism.tensor = tensor;
  base.parallelism.sequence_parallel = sequence_parallel;
  base.parallelism.lanes = 2;
  const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = 6});
  REQUIRE(plain.losses.size() == 6);
  REQUIRE(plain.losses.front() != plain.losses.back());
  int variant = 0;
  for (const Cut& cut : kCuts) {
    JobSpec job = base;
    set_cut(job, cut);
    ++variant;
    job.parallelism.zero_stage = variant % 2;
    if (variant % 3 == 0 && tensor == 1) job.parallelism.data = 2;
    if (variant % 4 == 1) set_recompute(job, 1 + variant % 3);
    if (variant % 4 == 2) job.recompute = Recompute::selective;
    if (variant % 4 == 3) job.recompute = Recompute::full;
    CAPTURE(word_of(family), cut.layers, parallel::name_of(cut.schedule), variant, tensor);
    const ThreadRun run =
        run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(variant), .max_steps = 6});
    CHECK(run.losses == plain.losses);
    CHECK(run.grad_norms == plain.grad_norms);
    CHECK(run.root_hash == plain.root_hash);
  }
}

}  // namespace

TEST_CASE("same bits on every cut of the layers: gpt2 f32, tied", "[bits]") {
  check_all_layers(Family::gpt2, DType::f32, 1, true);
}
TEST_CASE("same bits on every cut of the layers: llama bf16", "[bits]") {
  check_all_layers(Family::llama, DType::bf16, 1, true);
}
TEST_CASE("same bits on every cut of the layers: llama f32, tp 2, sequence parallel", "[bits]") {
  check_all_layers(Family::llama, DType::f32, 2, true);
}

TEST_CASE("any number of layers computed again gives the same bits, in the memory of the plan", "[bits]") {
  for (const auto& [family, compute] :
       {std::pair{Family::gpt2, DType::bf16}, std::pair{Family::llama, DType::f32}})
    for (const Cut& cut : {Cut{1, 1, {4}}, Cut{2, 1, {3, 1}, Schedule::zb_h1}, Cut{2, 1, {4, 0}},
                           Cut{2, 2, {1, 2, 1, 0}, Schedule::interleaved}}) {
      const TemporaryFolder dir;
      JobSpec none = tiny_job(family, dir.path());
      none.compute = compute;
      set_cut(none, cut);
      CAPTURE(word_of(family), cut.layers);
      const auto run = [&](const JobSpec& job, const std::string& name) {
        return run_on_threads(job, {.dir = dir.path() + "/" + name, .max_steps = 4});
      };
      const ThreadRun kept = run(none, "none");
      JobSpec full = none;
      full.recompute = Recompute::full;
      const ThreadRun again = run(full, "full");
      CHECK(again.root_hash == kept.root_hash);
      std::vector<size_t> last;
      for (int64_t layers = 0; layers <= 5; ++layers) {
        JobSpec job = none;
        set_recompute(job, layers);
        CAPTURE(layers);
        const ThreadRun some = run(job, std::to_string(layers));
        CHECK(some.losses == kept.losses);
        CHECK(some.grad_norms == kept.grad_norms);
        CHECK(some.root_hash == kept.root_hash);
        check_memory(job, some, none, kept);
        if (layers == 0) CHECK(some.allocated_bytes == kept.allocated_bytes);
        if (layers >= 4) CHECK(some.allocated_bytes == again.allocated_bytes);
        for (size_t rank = 0; rank < last.size(); ++rank) CHECK(some.allocated_bytes[rank] <= last[rank]);
        // Of the first stage each number up to its layers takes less, once what is shared is paid.
        if (layers >= 2 && layers <= cut.layers[0]) CHECK(some.allocated_bytes[0] < last[0]);
        last = some.allocated_bytes;
      }
      CHECK(last[0] < kept.allocated_bytes[0]);
    }
}

TEST_CASE("a resume on another cut of the layers continues with the same bits", "[resume]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  job.compute = DType::bf16;
  const ThreadRun whole = run_on_threads(job, {.dir = dir.path() + "/whole"});
  const std::vector<Cut> cuts = {{2, 1, {1, 3}}, {2, 1, {4, 0}}, {3, 1, {0, 3, 1}}, {2, 1, {}}};
  std::string from;
  std::vector<double> losses;
  for (size_t i = 0; i < cuts.size(); ++i) {
    set_cut(job, cuts[i]);
    set_recompute(job, int64_t(i));
    const ThreadRun part = run_on_threads(
        job, {.dir = dir.path() + "/part", .resume_from = from, .max_steps = 5 * int64_t(i + 1)});
    losses.insert(losses.end(), part.losses.begin(), part.losses.end());
    from = part.checkpoint;
  }
  CHECK(losses == whole.losses);
  CHECK(ckpt::Checkpoint::open(real_file_system(), from)->root_hash() == whole.root_hash);
}
