// Goal: samples that are left out are never trained and all others once, and steps with a lower rate have
// it, with the same bits on every mesh and after every resume. Method: whole jobs on threads: with the same
// decisions on several meshes; against a job whose file lacks those samples; cut off and resumed before,
// within and behind them, with the decisions from the run or from the checkpoint alone.
#include <catch2/catch.hpp>
#include <fstream>

#include "runtime/base/json.h"
#include "runtime/train/schedule.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr int64_t kSampleTokens = 16;
const SkippedSamples kSkipped{40, 16};  // steps 6 and 7 of eight samples

JobSpec watched_job(const std::string& dir) {
  JobSpec job = tiny_job(Family::llama, dir);
  job.data.shuffle = false;
  job.parallelism.lanes = 4;
  return job;
}

void set_mesh(JobSpec& job, int data, int pipeline, int zero) {
  job.parallelism.data = data;
  job.parallelism.pipeline = pipeline;
  job.parallelism.zero_stage = zero;
}

/// Cuts the skipped samples out of the job's file. The token at which the file is joined is the target of the
/// sample before: it is made the same in both files.
void cut(const std::string& dir, const std::string& to) {
  std::string bytes = read_file(dir + "/tokens.bin");
  const size_t first = size_t(kSkipped.first * kSampleTokens) * 2;
  const size_t end = size_t(kSkipped.end() * kSampleTokens) * 2;
  bytes[first] = bytes[end];
  bytes[first + 1] = bytes[end + 1];
  write_file(dir + "/tokens.bin", bytes);
  write_file(to, bytes.substr(0, first) + bytes.substr(end));
}

std::vector<double> tail_of_run(const std::vector<double>& values, size_t from) {
  return {values.begin() + ptrdiff_t(from), values.end()};
}

}  // namespace

TEST_CASE("samples that are left out are as if the data had never had them, on every mesh", "[loss][bits]") {
  const TemporaryFolder dir;
  JobSpec job = watched_job(dir.path());
  cut(dir.path(), dir.path() + "/cut.bin");
  JobSpec without = job;
  without.data.train[0].path = dir.path() + "/cut.bin";
  const ThreadRun expected = run_on_threads(without, {.dir = dir.path() + "/cut"});
  const ThreadRun plain = run_on_threads(job, {.dir = dir.path() + "/plain"});
  CHECK(plain.losses != expected.losses);
  int n = 0;
  for (const auto& [data, pipeline, zero] : {std::tuple{1, 1, 0}, {2, 2, 1}, {4, 1, 3}, {3, 1, 1}}) {
    set_mesh(job, data, pipeline, zero);
    CAPTURE(data, pipeline, zero);
    const ThreadRun run = run_on_threads(
        job, {.dir = dir.path() + "/" + std::to_string(n++), .remedies = {.skipped = {kSkipped}}});
    CHECK(run.losses == expected.losses);
    CHECK(run.grad_norms == expected.grad_norms);
    CHECK(run.root_hash == expected.root_hash);
    // Each line names the first of its samples.
    for (const std::string& text : run.lines) {
      const Json line = Json::parse(text);
      const int64_t trained = (line["step"].get<int64_t>() - 1) * 8;
      CHECK(line["sample"] == (trained < 40 ? trained : trained + 16));
    }
  }
}

TEST_CASE("a resume before, within and behind what is left out continues with the same bits",
          "[loss][bits]") {
  const TemporaryFolder dir;
  JobSpec job = watched_job(dir.path());
  const Remedies remedies{.skipped = {kSkipped}, .rates = {{9, 4, 0.5}}};
  const ThreadRun whole = run_on_threads(job, {.dir = dir.path() + "/whole", .remedies = remedies});
  for (const int64_t at : {4, 5, 6, 9, 11, 15}) {
    CAPTURE(at);
    const std::string folder = dir.path() + "/" + std::to_string(at);
    set_mesh(job, 2, 1, 0);
    // Before the spike was found the run knew of no decision.
    const ThreadRun part =
        run_on_threads(job, {.dir = folder, .max_steps = at, .remedies = at <= 5 ? Remedies{} : remedies});
    set_mesh(job, 1, 2, 1);
    const ThreadRun rest =
        run_on_threads(job, {.dir = folder + "-rest", .resume_from = part.checkpoint, .remedies = remedies});
    CHECK(rest.losses == tail_of_run(whole.losses, size_t(at)));
    CHECK(rest.root_hash == whole.root_hash);
    if (at <= 5) continue;
    // The checkpoint knows the decisions, too: a branch has nothing else.
    const ThreadRun branch = run_on_threads(job, {.dir = folder + "-branch", .resume_from = part.checkpoint});
    CHECK(branch.losses == rest.losses);
    CHECK(branch.root_hash == whole.root_hash);
  }
}

TEST_CASE("a lower rate holds for its steps and no others", "[loss][bits]") {
  const TemporaryFolder dir;
  const JobSpec job = watched_job(dir.path());
  const ThreadRun plain = run_on_threads(job, {.dir = dir.path() + "/plain"});
  const ThreadRun lower =
      run_on_threads(job, {.dir = dir.path() + "/lower", .remedies = {.rates = {{6, 3, 0.5}}}});
  for (size_t i = 0; i < plain.lines.size(); ++i) {
    const double before = Json::parse(plain.lines[i])["lr"].get<double>();
    const double now = Json::parse(lower.lines[i])["lr"].get<double>();
    CHECK(now == (i >= 5 && i < 8 ? before * 0.5 : before));
    // The loss of a step is that of the weights before it.
    CHECK((lower.losses[i] == plain.losses[i]) == (i < 6));
  }
}
