// Goal: a run that masks documents trains each document as if it were alone, with the same bits on every
// mesh.
// Method: the same documents packed into sequences and each in a sequence of its own, filled up with
// documents of one token, which have no target: losses, gradient norms and the updates they lead to agree.
// Meshes are compared bit for bit with one rank. A step without targets is skipped.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "runtime/train/token_feed.h"
#include "test/support/error_text.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

constexpr int kLength = 16;

/// A folder for checkpoints of its own.
std::string fresh() {
  static const TemporaryFolder all;
  static int number = 0;
  return all / std::to_string(++number);
}

JobSpec documents_job(Family family, const TemporaryFolder& dir, const std::vector<TokenDocument>& documents,
                      int sequences) {
  JobSpec job = tiny_job(family, dir.path());
  train_on(job, dir.path(), documents);
  job.data.shuffle = false;
  job.batch.global_sequences = sequences;
  return job;
}

}  // namespace

TEST_CASE("a packed sequence trains its documents as sequences of their own do", "[documents]") {
  constexpr int kSteps = 6;
  std::mt19937 random(7);
  std::vector<TokenDocument> packed, alone;
  for (int step = 0; step < kSteps; ++step)
    for (const int length : {6, 1, 9}) {
      const std::vector<int32_t> text = random_text(random, length);
      packed.push_back({text});
      alone.push_back({text});
      for (int i = length; i < kLength; ++i) alone.push_back({random_text(random, 1)});
    }
  packed.push_back({{1}}), alone.push_back({{1}});  // the target of the last token
  for (const Family family : {Family::gpt2, Family::llama}) {
    const TemporaryFolder one, other;
    JobSpec job = documents_job(family, one, packed, 1), single = documents_job(family, other, alone, 3);
    job.optimizer.grad_clip = single.optimizer.grad_clip = 0.5;  // so that the norms count
    const ThreadRun a = run_on_threads(job, {.dir = fresh(), .max_steps = kSteps}),
                    b = run_on_threads(single, {.dir = fresh(), .max_steps = kSteps});
    REQUIRE(a.losses.size() == size_t(kSteps));
    for (size_t s = 0; s < size_t(kSteps); ++s) {
      CAPTURE(s, int(family));
      CHECK(std::abs(a.losses[s] - b.losses[s]) < tolerance::kLossF32);
      CHECK(std::abs(a.grad_norms[s] / b.grad_norms[s] - 1) < tolerance::kGradNorm);
    }
    job.data.documents = Documents::ignore;
    const ThreadRun mixed = run_on_threads(job, {.dir = fresh(), .max_steps = kSteps});
    CHECK(std::abs(a.losses[0] - mixed.losses[0]) > 10 * tolerance::kLossF32);
  }
}

TEST_CASE("packed documents have the same bits on every mesh", "[documents]") {
  struct Variant {
    int dp, pp, virtual_stages, zero;
    Schedule schedule;
    Recompute recompute;
  };
  for (const Family family : {Family::gpt2, Family::llama}) {
    const TemporaryFolder dir;
    JobSpec base = documents_job(family, dir, many_documents(12), 8);
    base.data.shuffle = true;
    base.data.val = base.data.train;
    base.eval = {.every_steps = 3, .max_sequences = 10};
    base.parallelism.lanes = 4;
    const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = 6});
    int number = 0;
    for (const Variant& v : {Variant{2, 1, 1, 1, Schedule::one_f_one_b, Recompute::full},
                             Variant{1, 3, 1, 0, Schedule::zb_h1, Recompute::selective},
                             Variant{2, 2, 2, 0, Schedule::interleaved, Recompute::none},
                             Variant{4, 1, 1, 3, Schedule::gpipe, Recompute::selective},
                             Variant{3, 2, 1, 0, Schedule::zb_h1, Recompute::full}}) {
      JobSpec job = base;
      job.parallelism.data = v.dp;
      job.parallelism.pipeline = v.pp;
      job.parallelism.virtual_stages = v.virtual_stages;
      job.parallelism.zero_stage = v.zero;
      job.parallelism.schedule = v.schedule;
      job.recompute = v.recompute;
      CAPTURE(v.dp, v.pp, v.zero, int(family));
      const ThreadRun run =
          run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(++number), .max_steps = 6});
      CHECK(run.losses == plain.losses);
      CHECK(run.grad_norms == plain.grad_norms);
      CHECK(run.val_losses == plain.val_losses);
      CHECK(run.root_hash == plain.root_hash);
    }
    for (const bool sequence_parallel : {false, true}) {
      JobSpec job = base;
      job.parallelism.tensor = 2;
      job.parallelism.sequence_parallel = sequence_parallel;
      const ThreadRun run = run_on_threads(job, {.dir = fresh(), .max_steps = 6});
      for (size_t s = 0; s < 6; ++s) CHECK(std::abs(run.losses[s] - plain.losses[s]) < tolerance::kLossF32);
    }
    JobSpec counts = base;
    counts.data.count_boundary_targets = true;
    CHECK(run_on_threads(counts, {.dir = fresh(), .max_steps = 1}).losses[0] != plain.losses[0]);
  }
}

TEST_CASE("a set of one document trains with the bits of a run that ignores documents", "[documents]") {
  std::mt19937 random(3);
  const TemporaryFolder dir;
  JobSpec job = documents_job(Family::llama, dir, {{random_text(random, 1000)}}, 8);
  const ThreadRun masked = run_on_threads(job, {.dir = dir.path() + "/a", .max_steps = 4});
  job.data.documents = Documents::ignore;
  const ThreadRun plain = run_on_threads(job, {.dir = dir.path() + "/b", .max_steps = 4});
  CHECK(masked.losses == plain.losses);
  CHECK(masked.grad_norms == plain.grad_norms);
  CHECK(masked.root_hash == plain.root_hash);
  job.data.documents = Documents::automatic;  // where nothing has decided
  CHECK(run_on_threads(job, {.dir = fresh(), .max_steps = 4}).losses == plain.losses);
}

TEST_CASE("a step in which no target counts is skipped, whatever its number of bad steps", "[documents]") {
  std::mt19937 random(9);
  std::vector<TokenDocument> documents;
  for (int step = 0; step < 5; ++step)
    for (int i = 0; i < 2; ++i)
      if (step == 1 || step == 2)
        for (int t = 0; t < kLength; ++t) documents.push_back({random_text(random, 1)});
      else
        documents.push_back({random_text(random, kLength)});
  documents.push_back({{1}});
  const TemporaryFolder dir;
  JobSpec job = documents_job(Family::gpt2, dir, documents, 2);
  job.fault_tolerance.skip_bad_steps = 1;
  std::vector<std::string> said;
  const ThreadRun run = run_on_threads(
      job, {.dir = fresh(), .max_steps = 5, .on_event = [&](EventKind kind, const std::string& text) {
              if (kind == EventKind::step_skipped) said.push_back(text);
            }});
  REQUIRE(run.losses.size() == 5);
  for (size_t s = 0; s < 5; ++s) CHECK(std::isfinite(run.losses[s]) == (s != 1 && s != 2));
  REQUIRE(said.size() == 2);
  CHECK_THAT(said[1], Catch::Contains("no target of the step counts") && Catch::Contains("\"step\":3"));
}

TEST_CASE("a run whose validation data have no target that counts is refused before it trains",
          "[documents]") {
  std::mt19937 random(4);
  std::vector<TokenDocument> single;
  for (int t = 0; t <= 6 * kLength; ++t) single.push_back({random_text(random, 1)});
  const TemporaryFolder dir, other;
  JobSpec job = documents_job(Family::gpt2, dir, many_documents(12), 2);
  JobSpec validated = documents_job(Family::gpt2, other, single, 2);
  job.data.val = validated.data.train;
  job.eval = {.every_steps = 2};
  const auto said = [](const JobSpec& of) {
    return error_text(ErrorCode::kData, [&] { run_on_threads(of, {.dir = fresh(), .max_steps = 2}); });
  };
  CHECK_THAT(said(job),
             Catch::Contains("no target of the 6 sequences") && Catch::Contains("eval.every_steps"));
  single[2 * kLength] = {random_text(random, 2)};  // a target in the third sequence
  const TemporaryFolder third;
  job.data.val = documents_job(Family::gpt2, third, single, 2).data.train;
  CHECK(said(job) == "no error");
  job.eval.max_sequences = 2;  // of those before it
  CHECK_THAT(said(job), Catch::Contains("no target of the 2 sequences"));
  job.data.count_boundary_targets = true;
  CHECK(said(job) == "no error");
}

TEST_CASE("a job that ignores documents carries tokens and targets alone", "[documents]") {
  CHECK(BatchRows{.first = true, .last = true}.bytes_per_token() == 8);
  CHECK(BatchRows{}.empty());
  CHECK(BatchRows{.documents = true}.bytes_per_token() == 8);
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 9}, starts = {0, 0, 2, 3, 3};
  const auto row = [&](BatchField field, const SampleTokens& sample) {
    std::vector<int32_t> out(4);
    kBatchRows[size_t(field)].fill(sample, out.data());
    return out;
  };
  const SampleTokens sample{.tokens = tokens, .document_start = starts};
  CHECK(row(BatchField::tokens, sample) == std::vector<int32_t>{5, 6, 7, 8});
  CHECK(row(BatchField::targets, sample) == std::vector<int32_t>{6, -1, -1, 9});
  CHECK(row(BatchField::targets, {.tokens = tokens}) == std::vector<int32_t>{6, 7, 8, 9});
  CHECK(row(BatchField::targets, {.tokens = tokens, .document_start = starts, .counts_boundaries = true}) ==
        std::vector<int32_t>{6, 7, 8, 9});
  CHECK(row(BatchField::document_start, sample) == std::vector<int32_t>{0, 0, 2, 3});
  CHECK(row(BatchField::positions, sample) == std::vector<int32_t>{0, 1, 0, 0});
}
