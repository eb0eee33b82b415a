// Goal: a run in f16 has the same bits on every mesh, through overflows, growth and resumes; its loss scale
// leaves no trace in the gradients; at its floor the run ends with one sentence; it learns as others do.
// Method: the decisions alone; then tiny models of all losses on thread ranks over meshes against one plain
// rank, with scales that overflow at once, that grow, and that may not fall.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/train/loss_scale.h"
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

constexpr int64_t kF16Steps = 4;

/// Every loss that a step may have, in one model.
void describe_all_losses(ModelSpec& m) {
  describe_balanced_experts(m);
  m.mtp = {.num_layers = 1, .loss_weight = 0.5};
  m.z_loss = 1e-2;
}

JobSpec f16_job(const TemporaryFolder& dir, void (*describe)(ModelSpec&) = nullptr,
                Family family = Family::llama) {
  JobSpec job = tiny_job(family, dir.path());
  if (describe) describe(job.model);
  job.compute = DType::f16;
  job.parallelism.lanes = 4;
  job.checkpoint.chunk_mib = 0.02;
  return job;
}

struct F16Runs {
  const TemporaryFolder& dir;
  int runs = 0;
  std::vector<std::string> skips = {};  ///< events of the last run
  ThreadRun run(const JobSpec& job, int64_t steps = kF16Steps, const std::string& from = "") {
    skips.clear();
    return run_on_threads(job, {.dir = dir / std::to_string(++runs),
                                .resume_from = from,
                                .max_steps = steps,
                                .on_event = [this](EventKind kind, const std::string& text) {
                                  if (kind == EventKind::step_skipped) skips.push_back(text);
                                }});
  }
  void check(const JobSpec& base, const std::vector<TestMesh>& meshes) {
    const ThreadRun plain = run(base);
    REQUIRE(plain.losses.size() == size_t(kF16Steps));
    for (const TestMesh& m : meshes) {
      CAPTURE(text_of(m), base.parallelism.tensor);
      check_equal_runs(run(on_mesh(base, m)), plain);
    }
  }
};

std::vector<double> scales_of(const ThreadRun& run) {
  std::vector<double> scales;
  for (const std::string& line : run.lines) scales.push_back(parse_json(line).value("loss_scale", 0.0));
  return scales;
}
std::vector<bool> skipped_in(const ThreadRun& run) {
  std::vector<bool> skipped;
  for (const std::string& line : run.lines) skipped.push_back(parse_json(line).value("skipped", false));
  return skipped;
}
LossScale saved_scale(const ThreadRun& run, const JobSpec& job) {
  return loss_scale_of(ckpt::Checkpoint::open(real_file_system(), run.checkpoint)->state().extra_json, job);
}

}  // namespace

TEST_CASE("a loss scale halves with an overflow and doubles after steps without one", "[loss_scale]") {
  constexpr double kInf = INFINITY, kNan = NAN;
  JobSpec job;
  CHECK(first_loss_scale(job) == LossScale{.value = 1});
  const auto line_of = [](double loss, double grad_norm, std::vector<double> mtp_losses = {}) {
    return StepLine{.loss = loss, .grad_norm = grad_norm, .mtp_losses = std::move(mtp_losses)};
  };
  CHECK_FALSE(is_overflow(line_of(1, kInf), {.value = 64}, job));
  job.compute = DType::f16;
  job.loss_scale = {.initial = 16, .minimum = 4, .growth_interval = 2};
  LossScale scale = first_loss_scale(job);
  CHECK(scale.value == 16);
  CHECK(is_overflow(line_of(1, kInf), scale, job));
  CHECK(is_overflow(line_of(1, kNan, {2, 3}), scale, job));
  CHECK_FALSE(is_overflow(line_of(1, 1), scale, job));
  CHECK_FALSE(is_overflow(line_of(kNan, kNan), scale, job));  // of the forward pass: no scale helps
  CHECK_FALSE(is_overflow(line_of(1, kNan, {2, kInf}), scale, job));
  CHECK_FALSE(is_at_floor(line_of(1, kInf), scale, job));
  scale = after_step(scale, StepFate::apply, job.loss_scale);
  CHECK(scale == LossScale{16, 1, 0});
  scale = after_overflow(scale, job.loss_scale);
  CHECK(scale == LossScale{8, 0, 1});
  scale = after_overflow(scale, job.loss_scale);
  CHECK(scale == LossScale{4, 0, 2});
  CHECK_FALSE(is_overflow(line_of(1, kInf), scale, job));
  CHECK(is_at_floor(line_of(1, kInf), scale, job));
  CHECK_FALSE(is_at_floor(line_of(1, kInf, {kNan}), scale, job));
  CHECK(after_step(scale, StepFate::skip, job.loss_scale) == scale);
  scale = after_step(scale, StepFate::apply, job.loss_scale);
  CHECK(scale == LossScale{4, 1, 0});
  CHECK(after_step(scale, StepFate::skip, job.loss_scale) == LossScale{4, 0, 0});
  CHECK(after_step(scale, StepFate::apply, job.loss_scale) == LossScale{8, 0, 0});
  job.loss_scale.growth_interval = 0;
  CHECK(after_step(scale, StepFate::apply, job.loss_scale) == LossScale{4, 2, 0});
  job.loss_scale.growth_interval = 1;
  CHECK(after_step({.value = 0x1p32}, StepFate::apply, job.loss_scale).value == 0x1p32);

  const std::string saved = R"({"loss_scale":{"value":32.0,"good_steps":7,"overflows_in_a_row":1}})";
  CHECK(loss_scale_of(saved, job) == LossScale{32, 7, 1});
  CHECK(loss_scale_of("{}", job) == LossScale{16, 0, 0});
  job.loss_scale.minimum = 64;
  CHECK(loss_scale_of(saved, job).value == 64);
  job.compute = DType::bf16;
  CHECK(loss_scale_of(saved, job) == LossScale{.value = 1});
}

TEST_CASE("f16: the same bits on every mesh", "[bits][loss_scale]") {
  const TemporaryFolder dir;
  F16Runs runs{dir};
  JobSpec job = f16_job(dir);
  runs.check(job, {{.data = 2, .zero = 0, .recompute = Recompute::selective},
                   {.data = 4, .zero = 3, .recompute = Recompute::full},
                   {.data = 3, .pipeline = 2, .zero = 1},
                   {.data = 2, .pipeline = 2, .zero = 2, .schedule = Schedule::zb_h1},
                   {.pipeline = 2, .zero = 1, .schedule = Schedule::interleaved, .virtual_stages = 2}});
  for (const bool sequence_parallel : {false, true}) {
    job.parallelism.tensor = 2;
    job.parallelism.sequence_parallel = sequence_parallel;
    runs.check(job, {{.data = 2, .zero = 3, .recompute = Recompute::selective}, {.pipeline = 2, .zero = 1}});
  }
  runs.check(f16_job(dir, describe_everything), {{.data = 2, .pipeline = 2, .zero = 2}});
  runs.check(f16_job(dir, describe_latent_mtp), {{.data = 2, .pipeline = 2, .zero = 3}});
}

TEST_CASE("f16 with experts and cut sequences: the same bits on every mesh", "[bits][loss_scale]") {
  const TemporaryFolder dir;
  F16Runs runs{dir};
  JobSpec job = f16_job(dir, describe_all_losses);
  job.parallelism.context_blocks = 2;
  job.parallelism.sequence_parallel = false;
  runs.check(job, {{.expert = 2, .data = 2, .zero = 0, .recompute = Recompute::full},
                   {.context = 2, .data = 2, .zero = 3, .recompute = Recompute::selective},
                   {.expert = 2, .context = 2, .pipeline = 2, .zero = 2}});
}

TEST_CASE("f16: an overflow skips the step and halves the scale alike on every mesh", "[bits][loss_scale]") {
  const TemporaryFolder dir;
  F16Runs runs{dir};
  JobSpec base = f16_job(dir, describe_all_losses);
  base.loss_scale = {.initial = 1 << 22, .growth_interval = 2};
  constexpr int64_t kSteps = 12;
  const ThreadRun plain = runs.run(base, kSteps);
  const std::vector<std::string> skips = runs.skips;
  const std::vector<bool> skipped = skipped_in(plain);
  const std::vector<double> scales = scales_of(plain);
  // It falls from step to step, then steps are applied, and it grows.
  REQUIRE((skipped[0] && skipped[1]));
  const auto first = std::find(skipped.begin(), skipped.end(), false) - skipped.begin();
  REQUIRE(first + 2 < kSteps);
  LossScale scale = first_loss_scale(base);
  bool grows = false;
  for (size_t step = 0; step < size_t(kSteps); ++step) {
    CHECK(scales[step] == scale.value);
    const LossScale next = skipped[step] ? after_overflow(scale, base.loss_scale)
                                         : after_step(scale, StepFate::apply, base.loss_scale);
    grows = grows || next.value > scale.value;
    scale = next;
  }
  CHECK(grows);
  CHECK(saved_scale(plain, base) == scale);
  const int64_t skips_count = std::count(skipped.begin(), skipped.end(), true);
  CHECK(int64_t(skips.size()) == skips_count);
  // They are counted apart from steps that something is wrong with.
  for (size_t step = 0; step < size_t(kSteps); ++step)
    CHECK(parse_json(plain.lines[step]).value("overflow", false) == skipped[step]);
  CHECK(parse_json(plain.lines.back())["overflows"] == skips_count);
  CHECK_FALSE(parse_json(plain.lines.back()).contains("skipped_steps"));
  CHECK_THAT(skips.front(), Catch::Contains("with a loss scale of 4194304"));
  CHECK(parse_json(skips.front())["loss_scale"] == 2097152.0);
  CHECK(parse_json(skips.front())["in_a_row"] == 0);

  const auto check = [&](const ThreadRun& run) {
    CHECK(run.losses == plain.losses);
    CHECK(scales_of(run) == scales);
    CHECK(skipped_in(run) == skipped);
    CHECK(parse_json(run.lines.back())["overflows"] == skips_count);
    CHECK(run.root_hash == plain.root_hash);
    CHECK(saved_scale(run, base) == saved_scale(plain, base));
  };
  for (const TestMesh& m : std::vector<TestMesh>{{.data = 4, .zero = 3},
                                                 {.expert = 2, .data = 2, .pipeline = 2, .zero = 2},
                                                 {.pipeline = 3, .zero = 1, .schedule = Schedule::zb_h1}}) {
    CAPTURE(text_of(m));
    check(runs.run(on_mesh(base, m), kSteps));
    CHECK(runs.skips.size() == skips.size());
  }
  // Two tensor ranks round otherwise, so they may begin to train a step earlier or later, but alike.
  const ThreadRun wide = runs.run(on_mesh(base, {.tensor = 2}), kSteps);
  const std::vector<bool> skipped_wide = skipped_in(wide);
  const auto first_wide = std::find(skipped_wide.begin(), skipped_wide.end(), false) - skipped_wide.begin();
  CHECK(std::abs(first_wide - first) <= 1);
  for (const TestMesh& m :
       std::vector<TestMesh>{{.tensor = 2, .data = 2, .zero = 3}, {.tensor = 2, .pipeline = 2, .zero = 1}}) {
    CAPTURE(text_of(m));
    const ThreadRun run = runs.run(on_mesh(base, m), kSteps);
    CHECK(run.losses == wide.losses);
    CHECK(run.root_hash == wide.root_hash);
    CHECK(scales_of(run) == scales_of(wide));
    CHECK(skipped_in(run) == skipped_wide);
  }

  // Cut off within the overflows, and within the steps that count towards growth.
  for (const int64_t cut : {int64_t(1), int64_t(first + 1)}) {
    CAPTURE(cut);
    const ThreadRun begun = runs.run(on_mesh(base, {.data = 2, .zero = 2}), cut);
    ThreadRun rest = runs.run(on_mesh(base, {.pipeline = 2}), kSteps, begun.checkpoint);
    rest.losses.insert(rest.losses.begin(), begun.losses.begin(), begun.losses.end());
    rest.lines.insert(rest.lines.begin(), begun.lines.begin(), begun.lines.end());
    check(rest);
  }
}

TEST_CASE("f16: no gradient keeps a trace of the loss scale", "[loss_scale]") {
  const TemporaryFolder dir;
  F16Runs runs{dir};
  for (const auto describe : {describe_all_losses, describe_everything, describe_latent_mtp}) {
    JobSpec job = f16_job(dir, describe);
    std::vector<double> norms;
    for (const int64_t scale : {1 << 12, 1 << 14, 1 << 16}) {
      job.loss_scale.initial = scale;
      norms.push_back(runs.run(job, 1).grad_norms[0]);
    }
    job.compute = DType::f32;
    norms.push_back(runs.run(job, 1).grad_norms[0]);
    CHECK(norms[1] == Approx(norms[0]).epsilon(tolerance::kGradNormOfScales));
    CHECK(norms[2] == Approx(norms[0]).epsilon(tolerance::kGradNormOfScales));
    CHECK(norms[3] == Approx(norms[0]).epsilon(tolerance::kLossF16));
  }
}

TEST_CASE("f16: at the floor of the scale an overflow is a bad step, and says where it is", "[loss_scale]") {
  const TemporaryFolder dir;
  F16Runs runs{dir};
  JobSpec job = f16_job(dir);
  job.loss_scale = {.initial = 1 << 30, .minimum = 1 << 28};
  job.fault_tolerance.skip_bad_steps = 1;
  const auto stopped = [&](const JobSpec& on, const std::string& from = "") -> std::string {
    try {
      runs.run(on, 8, from);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kDiverged);
      return error.what();
    }
    return "";
  };
  const std::string whole = stopped(job);
  // Steps 1 and 2 halve it, step 3 is the one that may be skipped.
  CHECK_THAT(whole, Catch::Contains(" at step 4 (lr ") && Catch::Contains("after 1 skipped step in a row") &&
                        Catch::Contains("the parameters are those of step 0 with the loss scale at its floor "
                                        "(precision.loss_scale.minimum = 268435456): the gradient of "
                                        "lm_head.weight is beyond the range of f16; lower schedule.lr or the "
                                        "floor, or branch"));
  CHECK(stopped(on_mesh(job, {.data = 2, .pipeline = 2})) == whole);
  const ThreadRun begun = runs.run(job, 3);
  CHECK(stopped(on_mesh(job, {.data = 4}), begun.checkpoint) == whole);
}

TEST_CASE("a state goes on in another format, and f16 with a scale of its own", "[loss_scale]") {
  const TemporaryFolder dir;
  F16Runs runs{dir};
  JobSpec job = f16_job(dir);
  job.loss_scale = {.initial = 1024, .growth_interval = 2};
  for (const DType from : {DType::f32, DType::bf16, DType::f16})
    for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(name_of(from), name_of(to));
      job.compute = from;
      const ThreadRun begun = runs.run(job, 3);
      job.compute = to;
      const ThreadRun rest = runs.run(job, 6, begun.checkpoint);
      REQUIRE(rest.losses.size() == 3);
      CHECK(std::isfinite(rest.losses.back()));
      const double scale = to != DType::f16 ? 0 : from == DType::f16 ? 2048 : 1024;
      CHECK(scales_of(rest).front() == scale);
      const Json extra =
          parse_json(ckpt::Checkpoint::open(real_file_system(), rest.checkpoint)->state().extra_json);
      CHECK(extra.contains("loss_scale") == (to == DType::f16));
    }
}

TEST_CASE("f16 learns as f32 does", "[loss_scale]") {
  const TemporaryFolder dir;
  F16Runs runs{dir};
  for (const Family family : {Family::llama, Family::gpt2}) {
    JobSpec job = f16_job(dir, nullptr, family);
    const ThreadRun half = runs.run(job, 20);
    CHECK(half.losses.size() == 20);
    CHECK(runs.skips.empty());
    job.compute = DType::f32;
    const ThreadRun whole = runs.run(job, 20);
    CHECK(half.losses != whole.losses);
    for (size_t step = 0; step < 20; ++step)
      CHECK(std::abs(half.losses[step] - whole.losses[step]) < tolerance::kLossF16);
  }
}
