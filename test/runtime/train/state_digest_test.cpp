// Goal: the digest of the state is the same on every mesh; a bit that flips in a rank's memory is found
// within one digest and the rank is named, where a replica or the state's own digest can tell; what cannot
// be found that way changes the recorded digest; a state that was saved wrong is refused when it is loaded.
// Method: runs of a tiny model on thread ranks with a digest of every step, on meshes that differ in every
// axis; a backend of one rank flips one bit at one moment. Clean runs of every test are the check for false
// alarms.
#include <catch2/catch.hpp>
#include <set>

#include "parallel/state_digest.h"
#include "runtime/base/error.h"
#include "runtime/train/state_info.h"
#include "runtime/train/state_watch.h"
#include "test/support/described_models.h"
#include "test/support/flipping_backend.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t kStepsOfRun = 4;

JobSpec digested_job(const std::string& dir, DType compute = DType::f32) {
  JobSpec job = tiny_job(Family::llama, dir);
  job.compute = compute;
  job.parallelism.lanes = 4;
  job.batch.global_sequences = 8;
  job.observability.state_digest_every_steps = 1;
  return job;
}

/// A folder of its own for each run.
std::string fresh(const std::string& dir) {
  static int count = 0;
  return dir + std::to_string(++count);
}

ThreadRun digested_run(const JobSpec& job, const std::string& dir) {
  const ThreadRun run = run_on_threads(job, {.dir = fresh(dir), .max_steps = kStepsOfRun});
  REQUIRE(run.digests.size() == size_t(kStepsOfRun));
  return run;
}

/// What a run with a flipped bit on one rank ends with; "": it ends well, and `run` is it.
std::string failure_of(const JobSpec& job, const std::string& dir, int rank, const Flip& flip,
                       ThreadRun& run) {
  ThreadRunOptions options{.dir = fresh(dir), .max_steps = kStepsOfRun};
  options.make_backend = [&](int r) {
    return r == rank ? make_flipping_backend(1, flip) : kernels::make_cpu_backend(1);
  };
  try {
    run = run_on_threads(job, options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kHardware);
    return error.what();
  }
  return "";
}

parallel::ReplicaOfRank replica(int rank, uint64_t part, uint64_t digest) {
  return {.rank = rank, .part = part, .digest = digest};
}

}  // namespace

TEST_CASE("the digest of the state is the same on every mesh", "[digest]") {
  const TemporaryFolder dir;
  for (const DType compute : {DType::f32, DType::bf16}) {
    const JobSpec job = digested_job(dir.path(), compute);
    const ThreadRun plain = digested_run(job, dir.path() + "/plain");
    std::set<std::string> different;
    for (const auto& [step, digest] : plain.digests) different.insert(digest);
    CHECK(different.size() == plain.digests.size());
    for (const TestMesh& mesh :
         {TestMesh{.data = 4, .zero = 0}, TestMesh{.data = 3, .zero = 1}, TestMesh{.data = 2, .zero = 2},
          TestMesh{.data = 4, .zero = 3}, TestMesh{.data = 2, .pipeline = 2},
          TestMesh{.data = 1, .pipeline = 2, .zero = 0, .schedule = parallel::Schedule::interleaved}}) {
      INFO(text_of(mesh));
      check_equal_runs(digested_run(on_mesh(job, mesh), dir.path() + "/mesh"), plain);
    }
  }
}

TEST_CASE("a tied embedding and tensor parallelism: replicas agree, and each width has its own digest",
          "[digest]") {
  const TemporaryFolder dir;
  JobSpec job = digested_job(dir.path());
  job.model = tiny_job(Family::gpt2, dir.path()).model;
  std::map<int64_t, std::string> first;
  for (const int tensor : {1, 2}) {
    job.parallelism.tensor = tensor;
    const ThreadRun plain = digested_run(job, dir.path() + "/plain");
    for (const int zero : {0, 1, 3})
      for (const TestMesh& mesh :
           {TestMesh{.data = 2, .zero = zero}, TestMesh{.data = 2, .pipeline = 2, .zero = zero}}) {
        INFO(text_of(mesh) << ", tp " << tensor);
        check_equal_runs(digested_run(on_mesh(job, mesh), dir.path() + "/mesh"), plain);
      }
    CHECK(plain.digests != first);
    first = plain.digests;
  }
}

TEST_CASE("one flipped bit of a rank is found within one digest, and the rank is named", "[digest]") {
  const TemporaryFolder dir;
  const JobSpec base = digested_job(dir.path());
  const ThreadRun clean = digested_run(base, dir.path() + "/clean");
  struct Injection {
    int zero;
    Flipped what;
    const char* found;  ///< null: no replica and no digest before can tell
  };
  const char* const by_replicas = "rank 2 held other bits after step 3 than most of the 4 ranks";
  const char* const at_rest = "bits of the state of rank 2 changed between step 3 and the next one";
  for (const Injection& injection : {Injection{0, Flipped::copy, by_replicas},
                                     {0, Flipped::master, by_replicas},
                                     {0, Flipped::first_moment, by_replicas},
                                     {0, Flipped::second_moment, by_replicas},
                                     {0, Flipped::gradient, by_replicas},
                                     {0, Flipped::resting, at_rest},
                                     {1, Flipped::copy, by_replicas},
                                     {1, Flipped::resting, at_rest},
                                     {2, Flipped::copy, by_replicas},
                                     {2, Flipped::resting, at_rest},
                                     {3, Flipped::resting, at_rest},
                                     {1, Flipped::master, nullptr},
                                     {1, Flipped::second_moment, nullptr},
                                     {1, Flipped::gradient, nullptr}}) {
    const JobSpec job = on_mesh(base, {.data = 4, .zero = injection.zero});
    for (const int bit : {injection.what == Flipped::gradient ? 22 : 1, 20, 30}) {
      CAPTURE(injection.zero, int(injection.what), bit);
      ThreadRun run;
      const std::string failure =
          failure_of(job, dir.path() + "/run", 2,
                     {.what = injection.what, .step = 3, .box = 1, .element = 5, .bit = bit}, run);
      if (injection.found) {
        CHECK_THAT(failure, Contains(injection.found));
        continue;
      }
      CHECK(failure == "");
      REQUIRE(run.digests.size() == clean.digests.size());
      CHECK(run.digests.at(2) == clean.digests.at(2));
      CHECK(run.digests.at(3) != clean.digests.at(3));  // `trainctl verify` compares it
    }
  }
}

TEST_CASE("two replicas cannot say which is wrong, and the failure says so", "[digest]") {
  const TemporaryFolder dir;
  const JobSpec job = on_mesh(digested_job(dir.path()), {.data = 2, .zero = 0});
  ThreadRun run;
  CHECK_THAT(failure_of(job, dir.path() + "/run", 1, {.what = Flipped::master, .step = 2}, run),
             Contains("ranks 0 and 1 have the same state") && Contains("do not say of which"));
}

TEST_CASE("a state that was saved with other bits than were digested is refused", "[digest]") {
  const TemporaryFolder dir;
  const JobSpec job = digested_job(dir.path());
  ThreadRun run;
  CHECK(failure_of(job, dir.path() + "/run", 0, {.what = Flipped::saved, .step = kStepsOfRun}, run) == "");
  REQUIRE(!run.checkpoint.empty());
  const std::string checkpoint = run.checkpoint;
  for (const int data : {1, 2}) {
    const JobSpec resumed = on_mesh(job, {.data = data});
    CHECK_THROWS_WITH(run_on_threads(resumed, {.dir = fresh(dir.path() + "/resumed"),
                                               .resume_from = checkpoint,
                                               .max_steps = kStepsOfRun + 1}),
                      Contains("the loaded state has the digest") && Contains(run.digests.at(kStepsOfRun)));
  }
  JobSpec off = job;
  off.observability.state_digest_every_steps = 0;
  CHECK(run_on_threads(
            off,
            {.dir = fresh(dir.path() + "/resumed"), .resume_from = checkpoint, .max_steps = kStepsOfRun + 1})
            .digests.empty());
}

TEST_CASE("every so many steps, at saves and at the end", "[digest]") {
  const TemporaryFolder dir;
  JobSpec job = digested_job(dir.path());
  job.observability.state_digest_every_steps = 3;
  job.checkpoint.every_steps = 4;
  const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/run", .max_steps = 7});
  std::vector<int64_t> steps;
  for (const auto& [step, digest] : run.digests) steps.push_back(step);
  CHECK(steps == std::vector<int64_t>{3, 4, 6, 7});
}

TEST_CASE("the majority decides who holds other bits", "[digest]") {
  using parallel::find_disagreement;
  CHECK(find_disagreement({replica(0, 1, 5), replica(1, 1, 5), replica(2, 2, 6)}).ranks.empty());
  const auto one = find_disagreement({replica(0, 1, 5), replica(1, 1, 7), replica(2, 1, 5)});
  CHECK(one.is_decided);
  CHECK(one.ranks == std::vector<int>{1});
  CHECK(one.replicas == 3);
  const auto two = find_disagreement({replica(4, 1, 5), replica(3, 1, 7)});
  CHECK_FALSE(two.is_decided);
  CHECK(two.ranks == std::vector<int>{3, 4});
  // A decided part says more than one that is not.
  const auto both = find_disagreement(
      {replica(0, 1, 5), replica(1, 1, 7), replica(0, 2, 5), replica(1, 2, 7), replica(2, 2, 5)});
  CHECK(both.is_decided);
  CHECK(both.ranks == std::vector<int>{1});
  // Only those that are named fail by themselves.
  CHECK(state_problem(one, 1, 9).code == ErrorCode::kHardware);
  CHECK(state_problem(one, 0, 9).code == ErrorCode::kPeerLost);
  CHECK(state_problem(two, 3, 9).code == ErrorCode::kHardware);
}

TEST_CASE("a checkpoint keeps the digest of its state", "[digest]") {
  JobSpec job;
  const TrainingState state{.step = 3,
                            .digest = parallel::StateDigest{.value = 0xfedcba9876543210, .form = 7}};
  CHECK(digest_of(state_info(state, job, {}, "", "[]")) == state.digest);
  CHECK_FALSE(digest_of(state_info({.step = 3}, job, {}, "", "[]")));
}
