// Goal: the schedules whose layers go down the stages and back up give the bits of one plain rank, although
// the first stage holds both ends of the model and passes tensors to itself at the turn on the last. Method:
// runs of a model of 8 layers on thread ranks with 2, 3 and 4 stages, with tied and untied embeddings, every
// ZeRO stage, every recomputation, tensor parallelism and evaluation; each is compared exactly in losses,
// gradient norms, validation losses and root hash. A run under 1F1B is continued under each of them and back.
#include <catch2/catch.hpp>

#include "parallel/schedules.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/rank_plan.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

JobSpec v_job(const std::string& folder, bool tied) {
  JobSpec job = tiny_job(Family::llama, folder);
  job.model.num_layers = 8;
  job.model.tie_embeddings = tied;
  job.parallelism.lanes = 2;
  job.batch.global_sequences = 16;  // 8 micro-batches a lane, which every stage count needs for dualpipev
  job.data.val = job.data.train;
  job.eval = {.every_steps = 3, .max_sequences = 6};
  return job;
}

void set_v(JobSpec& job, Schedule schedule, int stages) {
  job.parallelism.schedule = schedule;
  job.parallelism.pipeline = stages;
  job.parallelism.virtual_stages = 2;
}

void check_same(const ThreadRun& run, const ThreadRun& plain) {
  CHECK(run.losses == plain.losses);
  CHECK(run.grad_norms == plain.grad_norms);
  CHECK(run.val_losses == plain.val_losses);
  CHECK(run.root_hash == plain.root_hash);
}

}  // namespace

TEST_CASE("schedules down the stages and back up give the same bits", "[bits]") {
  for (const bool tied : {false, true}) {
    const TemporaryFolder dir;
    const JobSpec base = v_job(dir.path(), tied);
    const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = 4});
    REQUIRE(plain.val_losses.size() == 1);
    int variant = 0;
    for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::zb_v, Schedule::dualpipev})
      for (const int stages : {2, 3, 4})
        for (const int zero : {0, 1, 2, 3}) {
          JobSpec job = base;
          set_v(job, schedule, stages);
          if (schedule == Schedule::one_f_one_b) job.parallelism.virtual_stages = 1;
          job.parallelism.data = stages < 4 || zero >= 2 ? 2 : 1;
          job.parallelism.zero_stage = zero;
          const Recompute kinds[] = {Recompute::none, Recompute::selective, Recompute::full};
          job.recompute = kinds[++variant % 3];
          CAPTURE(parallel::name_of(schedule), stages, zero, tied, int(job.recompute));
          REQUIRE(parallel::shape_problem(pipeline_shape(job, 0)).is_none());
          const std::string at = dir.path() + "/" + std::to_string(variant);
          check_same(run_on_threads(job, {.dir = at, .max_steps = 4}), plain);
        }
  }
}

TEST_CASE("schedules down the stages and back up give the same bits beside tensor parallelism", "[bits]") {
  const TemporaryFolder dir;
  JobSpec base = v_job(dir.path(), true);
  base.parallelism.tensor = 2;
  const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = 3});
  for (const Schedule schedule : {Schedule::zb_v, Schedule::dualpipev})
    for (const int64_t first : {0, 2}) {  // layers of the first virtual stage, and of the last
      JobSpec job = base;
      set_v(job, schedule, 2);
      job.parallelism.stage_layers = {first, 4 - first, 2 + first, 2 - first};
      CAPTURE(parallel::name_of(schedule), first);
      check_same(run_on_threads(job, {.dir = dir.path() + "/" + name_of(schedule) + std::to_string(first),
                                      .max_steps = 3}),
                 plain);
    }
}

TEST_CASE("a run under 1f1b goes on down the stages and back up, and returns", "[bits][resume]") {
  const TemporaryFolder dir;
  JobSpec job = v_job(dir.path(), true);
  job.eval = {};
  const ThreadRun plain = run_on_threads(job, {.dir = dir.path() + "/plain", .max_steps = 8});
  job.parallelism.pipeline = 2;
  ThreadRun before = run_on_threads(job, {.dir = dir.path() + "/1f1b", .max_steps = 2});
  std::vector<double> losses = before.losses;
  int64_t steps = 2;
  for (const Schedule schedule : {Schedule::zb_v, Schedule::dualpipev, Schedule::one_f_one_b}) {
    set_v(job, schedule, schedule == Schedule::zb_v ? 4 : 2);
    if (schedule == Schedule::one_f_one_b) job.parallelism.virtual_stages = 1;
    job.parallelism.zero_stage = int(steps / 2);
    job.parallelism.data = 2;
    CAPTURE(parallel::name_of(schedule));
    ThreadRun next = run_on_threads(job, {.dir = dir.path() + "/" + name_of(schedule),
                                          .resume_from = before.checkpoint,
                                          .max_steps = steps += 2});
    losses.insert(losses.end(), next.losses.begin(), next.losses.end());
    before = std::move(next);
  }
  CHECK(losses == plain.losses);
  CHECK(before.root_hash == plain.root_hash);
}

TEST_CASE("in a V the first stage has both ends of the model and the last one passes to itself") {
  const TemporaryFolder dir;
  JobSpec job = v_job(dir.path(), true);
  set_v(job, Schedule::zb_v, 4);
  const ModelTables tables = model_tables(job);
  const DeviceModel device = device_of_kind(job, DeviceKind::cpu);
  std::vector<int64_t> first_layers(8), counts(8);
  for (int pp = 0; pp < 4; ++pp) {
    const RankPlan plan = make_rank_plan({job, device, tables}, {.pp = pp});
    CAPTURE(pp);
    CHECK(plan.batch.first == (pp == 0));
    CHECK(plan.batch.last == (pp == 0));
    CHECK(!plan.groups.tied_peer);  // one rank has both uses
    CHECK(plan.groups.activations_come == (pp > 0));
    CHECK(plan.groups.activations_go == (pp < 3));
    REQUIRE(plan.uses.virtual_stages.size() == 2);
    const auto& down = plan.uses.virtual_stages[0];
    const auto& up = plan.uses.virtual_stages[1];
    CHECK((down.embedding >= 0) == (pp == 0));
    CHECK((up.head >= 0) == (pp == 0));
    CHECK((down.last || up.first) == false);
    first_layers[size_t(pp)] = down.first_layer, counts[size_t(pp)] = int64_t(down.layers.size());
    first_layers[size_t(7 - pp)] = up.first_layer, counts[size_t(7 - pp)] = int64_t(up.layers.size());
    int passes = 0;
    for (const parallel::Action& a : plan.program.actions)
      passes += a.act == parallel::Act::pass_activation || a.act == parallel::Act::pass_gradient;
    CHECK(passes == (pp == 3 ? 2 * 16 : 0));
  }
  int64_t next = 0;
  for (size_t c = 0; c < 8; next += counts[c], ++c) CHECK(first_layers[c] == next);
  CHECK(next == 8);
}
