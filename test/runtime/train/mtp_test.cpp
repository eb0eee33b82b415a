// Goal: multi-token prediction trains with the same bits on every mesh, counts only targets of the same
// document and sequence, and leaves the model alone where it has no weight. Method: tiny models with one and
// two modules, tied and not, thread ranks: losses, those of modules, gradient norms, validation losses and
// root hash against one plain rank. Documents are packed, and each in a sequence of its own. The formula
// itself is held to PyTorch by golden_blocks_test.cpp, gradients by described_layers_test.cpp.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "runtime/base/json.h"
#include "runtime/model/batch.h"
#include "runtime/train/target_counts.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

constexpr int64_t kMtpSteps = 4;

JobSpec mtp_job(const TemporaryFolder& dir, void (*describe)(ModelSpec&), DType compute) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  if (describe) describe(job.model);
  train_on(job, dir.path(), many_documents(12));
  job.compute = compute;
  job.parallelism.lanes = 4;
  job.data.val = job.data.train;
  job.eval = {.every_steps = 2, .max_sequences = 8};
  return job;
}

ThreadRun run_mtp(const JobSpec& job, const TemporaryFolder& dir, int64_t steps = kMtpSteps,
                  const std::string& from = "") {
  static int number = 0;
  return run_on_threads(job,
                        {.dir = dir / std::to_string(++number), .resume_from = from, .max_steps = steps});
}

/// [step][module]
std::vector<std::vector<double>> module_losses(const ThreadRun& run) {
  std::vector<std::vector<double>> losses;
  for (const std::string& line : run.lines)
    losses.push_back(parse_json(line)["mtp_losses"].get<std::vector<double>>());
  return losses;
}

void check_same_mtp(const ThreadRun& run, const ThreadRun& plain) {
  CHECK(run.losses == plain.losses);
  CHECK(module_losses(run) == module_losses(plain));
  check_equal_runs(run, plain);
}

void check_mtp_meshes(const JobSpec& base, const TemporaryFolder& dir, const std::vector<TestMesh>& meshes) {
  const ThreadRun plain = run_mtp(base, dir);
  REQUIRE(plain.losses.size() == size_t(kMtpSteps));
  REQUIRE(module_losses(plain).front().size() == size_t(base.model.mtp.num_layers));
  for (const TestMesh& m : meshes) {
    CAPTURE(text_of(m));
    check_same_mtp(run_mtp(on_mesh(base, m), dir), plain);
  }
}

const std::vector<TestMesh> kMtpMeshes = {
    {.data = 2, .recompute = Recompute::full},
    {.data = 2, .zero = 2},
    {.data = 4, .zero = 3, .recompute = Recompute::selective},
    {.pipeline = 2, .zero = 0},
    {.pipeline = 3, .schedule = Schedule::zb_h1, .recompute = Recompute::selective},
    {.data = 2, .pipeline = 2, .zero = 3, .schedule = Schedule::zb_h1},
    {.data = 2, .pipeline = 2, .zero = 2, .recompute = Recompute::full},
    {.pipeline = 2, .schedule = Schedule::interleaved, .virtual_stages = 2},
    {.data = 2, .pipeline = 2, .zero = 1, .schedule = Schedule::zb_v, .virtual_stages = 2},
    {.data = 3, .pipeline = 2, .zero = 0}};

}  // namespace

TEST_CASE("multi-token prediction: the same bits on every mesh", "[bits][mtp]") {
  const TemporaryFolder tied, latent, muon;
  check_mtp_meshes(mtp_job(tied, describe_mtp, DType::f32), tied, kMtpMeshes);
  check_mtp_meshes(mtp_job(latent, describe_latent_mtp, DType::bf16), latent, kMtpMeshes);
  JobSpec job = mtp_job(muon, describe_latent_mtp, DType::f32);
  job.optimizer.type = OptimizerType::muon;
  job.optimizer.momentum = 0.9;
  check_mtp_meshes(job, muon, {{.data = 2, .zero = 2}, {.data = 2, .pipeline = 2}});
}

TEST_CASE("multi-token prediction: the same bits on every mesh of two tensor ranks", "[bits][mtp]") {
  for (const bool sequence_parallel : {false, true})
    for (const auto describe : {describe_mtp, describe_latent_mtp}) {
      const TemporaryFolder dir;
      JobSpec job = mtp_job(dir, describe, DType::f32);
      const ThreadRun one = run_mtp(job, dir);
      job.parallelism.tensor = 2;
      job.parallelism.sequence_parallel = sequence_parallel;
      CAPTURE(sequence_parallel, job.model.mtp.num_layers);
      const ThreadRun two = run_mtp(job, dir);
      const auto losses = module_losses(one), of_two = module_losses(two);
      for (size_t s = 0; s < size_t(kMtpSteps); ++s) {
        CHECK(two.losses[s] == Approx(one.losses[s]).epsilon(tolerance::kLossOfWidths));
        CHECK(two.grad_norms[s] == Approx(one.grad_norms[s]).epsilon(tolerance::kGradNorm));
        for (size_t i = 0; i < losses[s].size(); ++i)
          CHECK(of_two[s][i] == Approx(losses[s][i]).epsilon(tolerance::kLossOfWidths));
      }
      check_mtp_meshes(job, dir,
                       {{.data = 2, .zero = 3}, {.pipeline = 2}, {.data = 2, .pipeline = 2, .zero = 2}});
    }
}

TEST_CASE("multi-token prediction: the same bits on every number of context ranks", "[bits][mtp][context]") {
  for (const auto describe : {describe_mtp, describe_latent_mtp}) {
    const TemporaryFolder dir;
    JobSpec job = mtp_job(dir, describe, DType::f32);
    const ThreadRun whole = run_mtp(job, dir);
    job.parallelism.sequence_parallel = false;
    job.parallelism.context_blocks = 4;
    check_mtp_meshes(job, dir,
                     {{.context = 2, .zero = 1},
                      {.context = 4, .zero = 3},
                      {.context = 2, .data = 2, .pipeline = 2, .zero = 2, .recompute = Recompute::full}});
    const ThreadRun cut = run_mtp(job, dir);
    const auto losses = module_losses(whole), of_cut = module_losses(cut);
    for (size_t s = 0; s < size_t(kMtpSteps); ++s)
      for (size_t i = 0; i < losses[s].size(); ++i)
        CHECK(of_cut[s][i] == Approx(losses[s][i]).epsilon(tolerance::kLossOfWidths));
  }
}

TEST_CASE("multi-token prediction: ranks that share experts", "[bits][mtp]") {
  const TemporaryFolder dir;
  const JobSpec job = mtp_job(dir, describe_latent_mtp, DType::f32);
  check_mtp_meshes(job, dir, {{.expert = 2, .data = 4, .zero = 1}, {.expert = 4, .data = 4, .zero = 3}});
}

TEST_CASE(
    "multi-token prediction: a run goes on with the same bits on another mesh, across a change of the weight",
    "[bits][mtp]") {
  const TemporaryFolder dir;
  const JobSpec job = mtp_job(dir, describe_latent_mtp, DType::bf16);
  REQUIRE(job.model.mtp.later_from_step == 2);
  const ThreadRun whole = run_mtp(job, dir);
  for (const int64_t stop : {1, 2, 3}) {
    const ThreadRun begun = run_mtp(on_mesh(job, {.data = 2, .zero = 3}), dir, stop);
    const ThreadRun resumed =
        run_mtp(on_mesh(job, {.data = 2, .pipeline = 2}), dir, kMtpSteps, begun.checkpoint);
    CHECK(resumed.root_hash == whole.root_hash);
  }
  JobSpec constant = job;
  constant.model.mtp.later_from_step = 0;
  const ThreadRun other = run_mtp(constant, dir);
  CHECK((other.grad_norms[1] == whole.grad_norms[1] && other.grad_norms[2] != whole.grad_norms[2]));
}

TEST_CASE("modules without weight leave the model as it is without them", "[mtp]") {
  for (const Family family : {Family::gpt2, Family::llama})
    for (const int pipeline : {1, 2}) {
      const TemporaryFolder dir;
      JobSpec job = tiny_job(family, dir.path());
      job.data.val = job.data.train;
      job.eval = {.every_steps = 2, .max_sequences = 8};
      job.parallelism.pipeline = pipeline;
      const ThreadRun without = run_mtp(job, dir);
      job.model.mtp = {.num_layers = 2, .loss_weight = 0};
      const ThreadRun with = run_mtp(job, dir);
      CHECK(with.losses == without.losses);
      CHECK(with.grad_norms == without.grad_norms);
      CHECK(with.val_losses == without.val_losses);
      CHECK(without.lines.front().find("mtp_losses") == std::string::npos);
      CHECK(module_losses(with).front().size() == 2);
      job.model.mtp.loss_weight = 0.3;
      CHECK(run_mtp(job, dir).grad_norms[0] != without.grad_norms[0]);
    }
}

TEST_CASE("modules see a document as if it were alone", "[mtp][documents]") {
  constexpr int kLengthOfAll = 16;
  std::mt19937 random(7);
  std::vector<TokenDocument> packed, alone;
  for (int step = 0; step < kMtpSteps; ++step)
    for (const int length : {6, 2, 8}) {
      const std::vector<int32_t> text = random_text(random, length);
      packed.push_back({text}), alone.push_back({text});
      for (int i = length; i < kLengthOfAll; ++i) alone.push_back({random_text(random, 1)});
    }
  packed.push_back({{1}}), alone.push_back({{1}});  // the target of the last token
  const auto run_of = [](const std::vector<TokenDocument>& documents, int sequences) {
    const TemporaryFolder dir;
    JobSpec job = tiny_job(Family::llama, dir.path());
    describe_mtp(job.model);
    train_on(job, dir.path(), documents);
    job.data.shuffle = false;
    job.batch.global_sequences = sequences;
    job.optimizer.grad_clip = 0.5;  // so that the norms count
    return run_mtp(job, dir);
  };
  const ThreadRun a = run_of(packed, 1), b = run_of(alone, 3);
  const auto of_a = module_losses(a), of_b = module_losses(b);
  for (size_t s = 0; s < size_t(kMtpSteps); ++s) {
    CHECK(std::abs(a.losses[s] - b.losses[s]) < tolerance::kLossF32);
    CHECK(std::abs(a.grad_norms[s] / b.grad_norms[s] - 1) < tolerance::kGradNorm);
    for (size_t i = 0; i < 2; ++i) CHECK(std::abs(of_a[s][i] - of_b[s][i]) < tolerance::kLossF32);
  }
}

TEST_CASE("rows of modules: tokens ahead, and targets that the document and the sequence have", "[mtp]") {
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 9, 10, 11}, starts = {0, 0, 0, 3, 3, 3, 3};
  const std::vector<uint8_t> weights = {1, 2, 3, 4, 5, 0, 7};
  const auto row = [](BatchField first, size_t i, const SampleTokens& sample) {
    std::vector<int32_t> out(sample.tokens.size() - 1);
    kBatchRows[size_t(mtp_field(first, i))].fill(sample, out.data());
    return out;
  };
  using Row = std::vector<int32_t>;
  const SampleTokens one{.tokens = tokens}, two{.tokens = tokens, .document_start = starts};
  CHECK(row(BatchField::mtp_tokens, 0, one) == Row{6, 7, 8, 9, 10, 11});
  CHECK(row(BatchField::mtp_tokens, 1, two) == Row{7, 8, 9, 10, 11, 11});
  CHECK(row(BatchField::mtp_targets, 0, one) == Row{7, 8, 9, 10, 11, -1});
  CHECK(row(BatchField::mtp_targets, 1, one) == Row{8, 9, 10, 11, -1, -1});
  CHECK(row(BatchField::mtp_targets, 0, two) == Row{7, -1, -1, 10, 11, -1});
  CHECK(row(BatchField::mtp_targets, 1, two) == Row{-1, -1, -1, 11, -1, -1});
  SampleTokens boundaries = two;
  boundaries.counts_boundaries = true;
  CHECK(row(BatchField::mtp_targets, 0, boundaries) == Row{7, 8, -1, 10, 11, -1});
  const SampleTokens weighed{.tokens = tokens, .weights = weights};
  CHECK(row(BatchField::mtp_targets, 0, weighed) == Row{7, 8, 9, -1, 11, -1});
  CHECK((weighed.weight(0, 1) == 3 && weighed.weight(4, 1) == 7 && weighed.weight(5, 1) == 0));
  for (const int modules : {0, 1, 2}) {
    CHECK(BatchRows{.last = true, .mtp = modules}.bytes_per_token() == size_t(4 + 8 * modules));
    CHECK(BatchRows{.last = true, .weights = true, .mtp = modules}.bytes_per_token() ==
          size_t(8 + 12 * modules));
    CHECK(BatchRows{.first = true, .mtp = modules}.bytes_per_token() == 4);
  }
}

TEST_CASE("each module's loss is divided by its own targets", "[mtp]") {
  JobSpec job;
  job.data.seq_len = 10;
  job.batch.global_sequences = 6;
  job.model.mtp = {.num_layers = 2, .loss_weight = 0.4, .later_loss_weight = 0.1, .later_from_step = 7};
  const TargetCounts all =
      all_targets(job.batch.global_sequences, job.data.seq_len, job.model.mtp.num_layers);
  CHECK((all.head == 60 && all.modules[0] == 54 && all.modules[1] == 48 && all.modules[2] == 0));
  const TargetCounts counts{.head = 50, .modules = {40, 0}};
  // times 60 / 50 it is 0.4 / 2 / 40
  CHECK(mtp_scales(job.model.mtp, counts, job.tokens_per_step(), 6)[0] == Approx(0.4 / 2 / 40 * 50 / 60));
  CHECK(mtp_scales(job.model.mtp, counts, job.tokens_per_step(), 6)[1] == 0);
  CHECK(mtp_scales(job.model.mtp, counts, job.tokens_per_step(), 7)[0] == Approx(0.1 / 2 / 40 * 50 / 60));
}
