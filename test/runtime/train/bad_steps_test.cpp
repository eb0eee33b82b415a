// Goal: a step whose loss is not a number is skipped on every mesh alike and leaves parameters and moments alone; too many in a row stop
// the run; a resume in between changes nothing.
// Method: decisions exhaustively. Then whole runs: one token's embedding is NaN in the initial weights, so that exactly the steps whose
// samples hold this token are bad; losses and root hashes are compared over meshes and resumes. The advice after a divergence from lists of
// saved losses.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/supervise/history/divergence.h"
#include "runtime/observe/console.h"
#include "runtime/run/record/summary.h"
#include "runtime/train/bad_steps.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr uint16_t kPoison = 255;
constexpr int64_t kBatch = 8, kTokens = 32;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

/// The golden Llama with a NaN in the embedding of token 255, which occurs in one sample of each of `bad` (steps from 1) only.
JobSpec poisoned_job(const std::string& dir, const std::vector<int64_t>& bad) {
  JobSpec job = golden_job("llama-tiny");
  std::string weights = real_file_system().read_text(job.model.init.from);
  uint64_t header = 0;
  std::memcpy(&header, weights.data(), 8);
  const auto entry = parse_json(weights.substr(8, header))["model.embed_tokens.weight"];
  const size_t at = 8 + header + entry["data_offsets"][0].get<size_t>() + size_t(kPoison) * entry["shape"][1].get<size_t>() * 4;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(weights.data() + at, &nan, 4);
  real_file_system().write_new_text(dir + "/weights.safetensors", weights);
  job.model.init.from = dir + "/weights.safetensors";

  std::string bytes = real_file_system().read_text(job.data.train[0].path);
  std::vector<uint16_t> tokens(bytes.size() / 2);
  std::memcpy(tokens.data(), bytes.data(), bytes.size());
  for (uint16_t& t : tokens)
    if (t == kPoison) t = kPoison - 1;
  for (const int64_t step : bad) tokens[size_t(((step - 1) * kBatch + step % kBatch) * kTokens + 5)] = kPoison;
  std::ofstream(dir + "/tokens.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), std::streamsize(bytes.size()));
  job.data.train[0].path = dir + "/tokens.bin";
  job.schedule.total_steps = 12;
  job.parallelism.lanes = 4;
  job.checkpoint.chunk_mib = 0.01;
  return job;
}

bool same(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::isnan(a[i]) != std::isnan(b[i]) || (!std::isnan(a[i]) && a[i] != b[i])) return false;
  return true;
}

std::string stopped_by(const JobSpec& job, const ThreadRunOptions& options) {
  try {
    run_on_threads(job, options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kDiverged);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a step is applied, skipped or the last one by its numbers and the counts before it", "[bad_steps]") {
  for (const int64_t most : {0, 1, 5}) {
    BadSteps counts;
    for (int64_t i = 0; i < most; ++i) {
      CHECK(fate_of_step(kNan, 1, counts, most) == StepFate::skip);
      CHECK(fate_of_step(1, -kInf, counts, most) == StepFate::skip);
      CHECK(fate_of_step(1, 1, counts, most) == StepFate::apply);
      counts = after_step(counts, StepFate::skip);
      CHECK((counts.total == i + 1 && counts.in_a_row == i + 1));
    }
    CHECK(fate_of_step(1, kInf, counts, most) == StepFate::stop);
    counts = after_step(counts, StepFate::apply);
    CHECK((counts.total == most && counts.in_a_row == 0));
  }
  CHECK(what_is_bad(-kNan, 1) == "the loss is nan");
  CHECK(what_is_bad(2, kInf) == "the gradient norm is inf");
  CHECK(bad_steps_of(R"({"bad_steps":{"total":7,"in_a_row":2}})").total == 7);
  CHECK(bad_steps_of("{}").in_a_row == 0);
}

TEST_CASE("bad steps are skipped with the same bits on every mesh and after a resume", "[bad_steps]") {
  const TemporaryFolder dir;
  const JobSpec base = poisoned_job(dir.path(), {3, 6, 7, 8});
  const ThreadRun whole = run_on_threads(base, {.dir = dir.path() + "/whole"});
  REQUIRE(whole.losses.size() == 12);
  for (size_t i = 0; i < 12; ++i) CHECK(std::isnan(whole.losses[i]) == (i == 2 || (i >= 5 && i <= 7)));

  JobSpec mesh = base;
  mesh.parallelism.data = 2;
  mesh.parallelism.pipeline = 2;
  const ThreadRun wide = run_on_threads(mesh, {.dir = dir.path() + "/wide"});
  CHECK(same(wide.losses, whole.losses));
  CHECK(wide.root_hash == whole.root_hash);

  // Cut off within the bad steps, then continued on another mesh.
  const ThreadRun first = run_on_threads(mesh, {.dir = dir.path() + "/cut", .max_steps = 7});
  mesh.parallelism = base.parallelism;
  mesh.parallelism.data = 4;
  const ThreadRun second = run_on_threads(mesh, {.dir = dir.path() + "/cut", .resume_from = first.checkpoint});
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), second.losses.begin(), second.losses.end());
  CHECK(same(losses, whole.losses));
  CHECK(second.root_hash == whole.root_hash);
  const BadSteps counts =
      bad_steps_of(ckpt::Checkpoint::open(real_file_system(), second.checkpoint)->state().extra_json);
  CHECK((counts.total == 4 && counts.in_a_row == 0));
}

TEST_CASE("a skipped step changes neither parameters nor moments", "[bad_steps]") {
  const TemporaryFolder dir;
  const JobSpec job = poisoned_job(dir.path(), {3});
  const ThreadRun before = run_on_threads(job, {.dir = dir.path() + "/a", .max_steps = 2});
  const ThreadRun after = run_on_threads(job, {.dir = dir.path() + "/b", .max_steps = 3});
  FileSystem& fs = real_file_system();
  const auto a = ckpt::Checkpoint::open(fs, before.checkpoint), b = ckpt::Checkpoint::open(fs, after.checkpoint);
  CHECK(ckpt::diff(*a, *b).empty());
  CHECK(a->state().step == 2);
  CHECK(b->state().step == 3);
}

TEST_CASE("more bad steps in a row than allowed stop the run, also when a resume lies between them", "[bad_steps]") {
  const TemporaryFolder dir;
  JobSpec job = poisoned_job(dir.path(), {2, 6, 7, 8});
  job.fault_tolerance.skip_bad_steps = 2;
  const std::string whole = stopped_by(job, {.dir = dir.path() + "/whole"});
  CHECK_THAT(whole, Catch::Contains("the loss is nan at step 8") && Catch::Contains("after 2 skipped steps in a row") &&
                        Catch::Contains("the parameters are those of step 5"));
  const ThreadRun first = run_on_threads(job, {.dir = dir.path() + "/cut", .max_steps = 6});
  CHECK(stopped_by(job, {.dir = dir.path() + "/cut", .resume_from = first.checkpoint}) == whole);
  job.fault_tolerance.skip_bad_steps = 0;
  CHECK_THAT(stopped_by(job, {.dir = dir.path() + "/none"}), Catch::Contains("at step 2"));
}

TEST_CASE("a diverged run branches where its losses were still on course", "[bad_steps]") {
  const auto point = [](std::vector<SavedLoss> saved, double first_loss) { return branch_point(saved, first_loss); };
  CHECK_FALSE(point({}, 9));
  CHECK_FALSE(point({{100, kNan}}, 9));
  CHECK(point({{100, 5.0}, {200, 3.0}, {300, 3.2}, {400, 7.5}, {500, kNan}}, 9) == 300);
  CHECK(point({{300, 8.0}, {100, 4.0}, {200, 6.0}}, kNan) == 100);
  CHECK_FALSE(point({{10, 452.0}, {20, 209.0}}, 4.6));   // never on course
  CHECK_FALSE(point({{10, 4.59}, {20, 4.57}}, 4.6));     // learned nothing
  CHECK(lower_learning_rate(10) == 3e-4);
  CHECK(lower_learning_rate(1e-3) == 5e-4);

  const TemporaryFolder dir;
  JobSpec job = poisoned_job(dir.path(), {6, 7});
  job.fault_tolerance.skip_bad_steps = 0;
  job.checkpoint.every_steps = 4;
  job.schedule.lr = 10;
  job.schedule.min_lr = 1;
  FileSystem& fs = real_file_system();
  const RunDirectory run{dir.path() + "/my run"};
  CHECK(divergence_advice(fs, job, run) ==
        fmt::format("trainctl launch '{0}/my run/job.json' -s schedule.lr=0.0003 -s schedule.min_lr=3e-05", dir.path()));
  fs.make_directory(run.path);
  const RunIdentity branch{.run_id = "x", .parent_checkpoint = "/p/step-00000040"};
  fs.write_new_text(run.file("run.json"), branch.to_json());
  job.observability.run_id = "my";
  CHECK(divergence_advice(fs, job, run) ==
        fmt::format("trainctl launch '{0}/my run/job.json' --from /p/step-00000040 -s schedule.lr=0.0003 "
                    "-s schedule.min_lr=3e-05 -s observability.run_id=",
                    dir.path()));
  job.checkpoint.dir = dir.path() + "/a/ckpt";
  job.schedule.lr = 3e-3;
  job.schedule.min_lr = 3e-4;
  stopped_by(job, {.dir = dir.path() + "/a"});
  CHECK(divergence_advice(fs, job, run) ==
        fmt::format("trainctl launch '{0}/my run/job.json' --from '{0}/my run@4' -s schedule.lr=0.0015", dir.path()));
}

TEST_CASE("the summary names time, tokens, best losses and skipped steps", "[bad_steps]") {
  RunSummary summary(1000);
  CHECK(summary.render(1001).empty());
  const auto at = [](int64_t step, double loss, double val, bool skipped) {
    return StepLine{.step = step, .tokens = step * 100, .loss = loss, .val_loss = val, .skipped = skipped};
  };
  summary.step(at(11, 3.0, kNan, false), 1010);
  summary.step(at(12, 2.0, 2.5, false), 1011);
  summary.step(at(13, kNan, kNan, true), 1012);
  summary.step(at(12, 2.0, 2.5, false), 1013);   // done again after a restart
  summary.step(at(13, kNan, kNan, true), 1014);
  summary.step(at(14, 2.25, kNan, false), 1020);
  const std::string text = summary.render(1070);
  CHECK_THAT(text, Catch::Contains("1m 10s · 4 steps · 400 tokens") && Catch::Contains("30 tokens/s on average"));
  CHECK_THAT(text, Catch::Contains("loss 2.2500 at the end, 2.0000 at best (step 12) · validation 2.5000 at best (step 12)"));
  CHECK_THAT(text, Catch::Contains("1 step skipped"));
  CHECK_THAT(summary.render(1070, 4),
             Catch::Contains("validation 2.5000, 0.902 bits a byte at best (step 12)"));
}
