// Goal: a device that computes wrongly is found in the next check and its rank is named, whatever pass and
// product it is wrong in; one that was wrong once is an event; clean runs have no alarm and the bits of runs
// without checks.
// Method: runs of a tiny model on thread ranks with a check behind every step; a backend of one rank flips a
// bit of one product, or of each from then on, behind the update of step 2, so first in the check behind it.
// The meshes differ in every axis; random_meshes_test has a check behind every step, too.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/train/replay_check.h"
#include "test/support/described_models.h"
#include "test/support/flipping_backend.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t kReplayedSteps = 3;

JobSpec replayed_job(const std::string& dir) {
  JobSpec job = tiny_job(Family::llama, dir);
  job.model.num_layers = 2;
  job.parallelism.lanes = 4;
  job.observability.replay_every_steps = 1;
  job.observability.state_digest_every_steps = 1;
  return job;
}

/// A folder of its own for each run.
std::string new_folder(const std::string& dir) {
  static int count = 0;
  return dir + "/run" + std::to_string(++count);
}

struct ReplayedRun {
  ThreadRun run;
  std::vector<Json> events;  ///< replay_differs
  ErrorCode code = ErrorCode::kInternal;
  std::string failure;  ///< "": it ended well
};
/// rank -1: a clean run.
ReplayedRun run_with(const JobSpec& job, const std::string& dir, int rank = -1, const Flip& flip = {},
                     int64_t steps = kReplayedSteps) {
  ReplayedRun result;
  ThreadRunOptions options{.dir = new_folder(dir), .max_steps = steps};
  options.make_backend = [&](int r) {
    return r == rank ? make_flipping_backend(1, flip) : kernels::make_cpu_backend(1);
  };
  options.on_event = [&](EventKind kind, const std::string& json) {
    if (kind == EventKind::replay_differs) result.events.push_back(parse_json(json));
  };
  try {
    result.run = run_on_threads(job, options);
  } catch (const Error& error) {
    result.code = error.code(), result.failure = error.what();
  }
  return result;
}

std::vector<int64_t> replayed_of(const ThreadRun& run) {
  std::vector<int64_t> replayed;
  for (const std::string& line : run.lines)
    replayed.push_back(parse_json(line).value("replayed", int64_t{0}));
  return replayed;
}

}  // namespace

TEST_CASE("replicas compute a micro-batch again: no alarm, and the bits of a run without checks",
          "[replay]") {
  const TemporaryFolder dir;
  JobSpec job = replayed_job(dir.path());
  job.observability.replay_every_steps = 0;
  const ReplayedRun plain = run_with(job, dir.path());
  REQUIRE(plain.failure == "");
  CHECK(replayed_of(plain.run) == std::vector<int64_t>{0, 0, 0});
  for (const auto& [mesh, every] :
       {std::pair{TestMesh{.data = 1, .zero = 0}, 1},
        {TestMesh{.data = 4, .zero = 1}, 1},
        {TestMesh{.data = 3, .zero = 0}, 2},
        {TestMesh{.data = 2, .zero = 3}, 1},
        {TestMesh{.data = 2, .pipeline = 2, .zero = 2}, 3},
        {TestMesh{.data = 2,
        .pipeline = 2,
        .zero = 3,
        .schedule = parallel::Schedule::zb_h1,
        .recompute = Recompute::selective},
         1},
        {TestMesh{.data = 1, .pipeline = 2, .zero = 1, .schedule = parallel::Schedule::zb_v}, 1}}) {
    job.observability.replay_every_steps = every;
    INFO(text_of(mesh));
    const ReplayedRun run = run_with(on_mesh(job, mesh), dir.path());
    REQUIRE(run.failure == "");
    CHECK(run.events.empty());
    check_equal_runs(run.run, plain.run);
    std::vector<int64_t> expected;
    for (int64_t step = 1; step <= kReplayedSteps; ++step)
      expected.push_back(step % every == 0 ? mesh.data : 0);
    CHECK(replayed_of(run.run) == expected);
  }
}

TEST_CASE("what a model counts of its steps is left alone by the checks", "[replay]") {
  const TemporaryFolder dir;
  for (const auto describe : {describe_quantile_experts, describe_grouped_experts, describe_capped_experts}) {
    JobSpec job = replayed_job(dir.path());
    describe(job.model);
    job.observability.replay_every_steps = 0;
    const ReplayedRun plain = run_with(job, dir.path());
    REQUIRE(plain.failure == "");
    job.observability.replay_every_steps = 1;
    const ReplayedRun run = run_with(on_mesh(job, {.data = 2, .pipeline = 2, .zero = 1}), dir.path());
    REQUIRE(run.failure == "");
    CHECK(run.events.empty());
    check_equal_runs(run.run, plain.run);
    for (size_t i = 0; i < plain.run.lines.size(); ++i)
      for (const char* what : {"expert_load", "idle_experts", "dropped_slots"})
        CHECK(parse_json(run.run.lines.at(i)).value(what, Json()) ==
              parse_json(plain.run.lines[i]).value(what, Json()));
  }
}

TEST_CASE("a device that computes wrongly each time is found by the next check, and its rank is named",
          "[replay]") {
  const TemporaryFolder dir;
  const JobSpec base = replayed_job(dir.path());
  struct Injection {
    TestMesh mesh;
    int rank;
    Flipped what;
    const char* where;
  };
  const TestMesh four{.data = 4, .zero = 1}, pipeline{.data = 3, .pipeline = 2, .zero = 0};
  for (const Injection& injection :
       {Injection{four, 2, Flipped::output, "forward pass of virtual stage 0"},
        {four, 2, Flipped::input_gradient, "backward pass of virtual stage 0"},
        {four, 0, Flipped::weight_gradient, "backward pass of virtual stage 0"},
        {{.data = 3, .zero = 3}, 1, Flipped::weight_gradient, "backward pass of virtual stage 0"},
        {pipeline, 1, Flipped::output, "forward pass of virtual stage 0"},
        {pipeline, 4, Flipped::output, "forward pass of virtual stage 1"},
        {pipeline, 4, Flipped::input_gradient, "backward pass of virtual stage 1"},
        {pipeline, 1, Flipped::weight_gradient, "backward pass of virtual stage 0"},
        {pipeline, 5, Flipped::packed, "forward pass of virtual stage 1"},
        {{.tensor = 2, .data = 3, .zero = 0}, 3, Flipped::output, "forward pass of virtual stage 0"}}) {
    CAPTURE(text_of(injection.mesh), injection.rank, int(injection.what));
    const ReplayedRun run =
        run_with(on_mesh(base, injection.mesh), dir.path(), injection.rank,
                 {.what = injection.what, .step = 2, .element = 3, .bit = 22, .each = true});
    CHECK(run.code == ErrorCode::kDevice);
    CHECK_THAT(run.failure,
               Contains(injection.where) && Contains("behind step 2") &&
                   Contains(": rank " + std::to_string(injection.rank) + " computed wrongly each"));
    REQUIRE(run.events.size() == 1);
    CHECK(run.events[0]["answer"] == "put_out");
    CHECK(run.events[0]["ranks"] == Json{injection.rank});
  }
}

TEST_CASE("a wrong backward pass is found in f16, too, with the loss scale of the steps",
          "[replay][loss_scale]") {
  const TemporaryFolder dir;
  JobSpec job = replayed_job(dir.path());
  job.compute = DType::f16;
  // Gradients of the logits are below the least f16 without the loss scale, so that products of them are 0.
  job.model.logit_scale = 0x1p-20;
  job.loss_scale.initial = int64_t{1} << 28;
  const TestMesh four{.data = 4, .zero = 1};
  const ReplayedRun clean = run_with(on_mesh(job, four), dir.path());
  REQUIRE(clean.failure == "");
  CHECK(clean.events.empty());
  for (const Flipped what : {Flipped::input_gradient, Flipped::weight_gradient}) {
    CAPTURE(int(what));
    const ReplayedRun run =
        run_with(on_mesh(job, four), dir.path(), 2,
                 {.what = what, .step = 2, .element = 3, .bit = 22, .each = true, .spares_zeros = true});
    CHECK(run.code == ErrorCode::kDevice);
    CHECK_THAT(run.failure, Contains("backward pass of virtual stage 0") && Contains("behind step 2") &&
                                Contains(": rank 2 computed wrongly each"));
  }
}

TEST_CASE("what is wrong once is an event, and the run goes on with the bits of a clean one", "[replay]") {
  const TemporaryFolder dir;
  const JobSpec base = replayed_job(dir.path());
  const ReplayedRun clean = run_with(base, dir.path());
  REQUIRE(clean.failure == "");
  struct Injection {
    TestMesh mesh;
    int rank;
    Flipped what;
  };
  for (const Injection& injection : {Injection{{.data = 4, .zero = 1}, 3, Flipped::output},
                                     {{.data = 2, .zero = 0}, 1, Flipped::weight_gradient},
                                     {{.data = 2, .pipeline = 2, .zero = 0}, 0, Flipped::input_gradient},
                                     {{.data = 2, .zero = 1}, 0, Flipped::packed},
                                     {{.data = 1, .zero = 0}, 0, Flipped::output}}) {
    CAPTURE(text_of(injection.mesh), injection.rank, int(injection.what));
    const JobSpec job = on_mesh(base, injection.mesh);
    const ReplayedRun run = run_with(job, dir.path(), injection.rank,
                                     {.what = injection.what, .step = 2, .box = 1, .element = 3, .bit = 22});
    REQUIRE(run.failure == "");
    check_equal_runs(run.run, clean.run);
    CHECK(replayed_of(run.run) == std::vector<int64_t>{injection.mesh.data, 0, injection.mesh.data});
    REQUIRE(run.events.size() == 1);
    CHECK(run.events[0]["step"] == 2);
    CHECK(run.events[0]["answer"] == "go_on");
    CHECK(run.events[0]["ranks"] == Json{injection.rank});
  }
}

TEST_CASE("of two replicas that differ each time, products with known bits decide", "[replay]") {
  const TemporaryFolder dir;
  const JobSpec job = on_mesh(replayed_job(dir.path()), {.data = 2, .zero = 0});
  Flip flip{.what = Flipped::output, .step = 1, .element = 3, .bit = 22, .each = true};
  const ReplayedRun decided = run_with(job, dir.path(), 1, flip);
  CHECK(decided.code == ErrorCode::kDevice);
  CHECK_THAT(decided.failure, Contains("rank 1 differed from 1 replica") && Contains("bits are known"));
  // Its products are right: only other ops are wrong.
  flip.what = Flipped::weight_gradient;
  const ReplayedRun open = run_with(job, dir.path(), 1, flip);
  CHECK(open.code == ErrorCode::kHardware);
  CHECK_THAT(open.failure, Contains("ranks 0 and 1 differ") && Contains("do not say which"));
  REQUIRE(open.events.size() == 1);
  CHECK(open.events[0]["answer"] == "undecided");
}

TEST_CASE("an owner of experts that is wrong in a row of another replica puts no right rank out",
          "[replay]") {
  const TemporaryFolder dir;
  JobSpec job = on_mesh(replayed_job(dir.path()), {.expert = 2, .data = 4, .zero = 1});
  describe_balanced_experts(job.model);
  job.model.moe.num_experts = 4;
  // One row of one product: the result of one replica is wrong, and any of the two owners may be the cause.
  Flip flip{.what = Flipped::expert_output, .step = 1, .element = 3, .bit = 22};
  const ReplayedRun once = run_with(job, dir.path(), 3, flip);
  CHECK(once.failure == "");
  REQUIRE(once.events.size() == 1);
  CHECK(once.events[0]["answer"] == "go_on");
  CHECK(once.events[0]["ranks"] == Json{2, 3});
  flip.each = true;
  const ReplayedRun each = run_with(job, dir.path(), 3, flip);
  CHECK(each.code == ErrorCode::kHardware);
  CHECK_THAT(each.failure, Contains("do not say which"));
  REQUIRE(each.events.size() == 1);
  CHECK(each.events[0]["answer"] == "undecided");
}

TEST_CASE("without replicas a device that is always wrong is not found", "[replay]") {
  const TemporaryFolder dir;
  const JobSpec job = on_mesh(replayed_job(dir.path()), {.data = 1, .zero = 0});
  const ReplayedRun run = run_with(
      job, dir.path(), 0, {.what = Flipped::output, .step = 2, .element = 3, .bit = 22, .each = true});
  CHECK(run.failure == "");
  CHECK(run.events.empty());
}

TEST_CASE("which micro-batch is computed again follows from seed and step alone", "[replay]") {
  const TemporaryFolder dir;
  JobSpec job = on_mesh(replayed_job(dir.path()), {.data = 4});
  std::set<std::pair<int, int64_t>> drawn;
  for (int64_t step = 1; step <= 64; ++step) {
    const ReplayedMicroBatch of = replayed_micro_batch(job, step);
    REQUIRE((of.dp >= 0 && of.dp < 4 && of.index >= 0 && of.index < 2));
    drawn.emplace(of.dp, of.index);
  }
  CHECK(drawn.size() == 8);  // each of them comes
}
