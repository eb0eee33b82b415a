// Goal: saving while training goes on costs no bit: runs that copy their state in memory and save it every
// step end with the bits of the undisturbed run, whatever happens to the disk.
// Method: whole runs whose ranks are threads of this process.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "runtime/base/json.h"
#include "test/runtime/train/saver_rig.h"
#include "test/support/child.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("a run that saves every step has the bits of one that saves at its end", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::llama, dir.path());
  const ThreadRun whole = run_on_threads(job, {.dir = dir.path() + "/whole"});
  job.checkpoint.every_steps = 1;
  std::map<EventKind, int> count;
  for (const auto& [dp, pp, zero] : {std::tuple{1, 1, 0}, {2, 1, 1}, {2, 2, 1}, {4, 2, 0}}) {
    INFO("dp " << dp << ", pp " << pp);
    job.parallelism.data = dp;
    job.parallelism.pipeline = pp;
    job.parallelism.zero_stage = zero;
    job.parallelism.lanes = 4;
    JobSpec plain = job;
    plain.checkpoint.every_steps = 0;
    const std::string at = fmt::format("{}/{}-{}", dir.path(), dp, pp);
    const ThreadRun undisturbed = run_on_threads(plain, {.dir = at + "-plain"});
    const ThreadRun run = run_on_threads(
        job,
        {.dir = at, .memory_folder = memory.path(), .on_event = [&](EventKind kind, const std::string& json) {
           INFO(json);
           CHECK(kind != EventKind::save_failed);
           ++count[kind];
         }});
    CHECK(run.losses == undisturbed.losses);
    CHECK(run.root_hash == undisturbed.root_hash);
    std::map<int64_t, int> ranks;
    for (const auto& piece : ckpt::list_pieces(real_file_system(), memory.path()))
      if (piece.ranks == dp * pp) ++ranks[piece.step];
    // The last step is saved to the directory alone.
    REQUIRE_FALSE(ranks.empty());
    CHECK(ranks.rbegin()->second == dp * pp);
    CHECK(ranks.rbegin()->first <= 19);
    std::filesystem::remove_all(memory.path());
    std::filesystem::create_directory(memory.path());
  }
  CHECK(count[EventKind::checkpoint] >= 8);
}

TEST_CASE("a test's run that saves without a folder fails at once", "[saver]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.schedule.total_steps = 1;
  job.checkpoint.every_steps = 0;
  job.checkpoint.on_exit = false;
  CHECK(run_on_threads(job, {}).losses.size() == 1);
  JobSpec at_end = job, between = job;
  at_end.checkpoint.on_exit = true;
  between.checkpoint.every_steps = 1;
  for (const JobSpec& saves : {at_end, between})
    CHECK_THROWS_WITH(run_on_threads(saves, {}), Catch::Contains("ThreadRunOptions::dir"));
}

TEST_CASE("a run with one copy in memory has the same bits and takes half of the memory", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.data = 2;
  job.parallelism.lanes = 2;
  const ThreadRun plain = run_on_threads(job, {.dir = dir.path() + "/plain"});
  std::map<MemoryCopies, uintmax_t> bytes;
  for (const MemoryCopies copies : {MemoryCopies::on, MemoryCopies::one}) {
    const std::string folder = memory.path() + "/" + std::to_string(int(copies));
    std::filesystem::create_directory(folder);
    job.checkpoint.memory = copies;
    const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/run", .memory_folder = folder});
    CHECK(run.losses == plain.losses);
    CHECK(run.root_hash == plain.root_hash);
    const auto pieces = ckpt::list_pieces(real_file_system(), folder);
    CHECK(pieces.size() == (copies == MemoryCopies::one ? 2 : 4));
    for (const auto& piece : pieces) CHECK(piece.piece.has_value());
    bytes[copies] = std::filesystem::file_size(folder + "/" + ckpt::piece_file_name(0, 2));
  }
  CHECK(2 * bytes[MemoryCopies::one] == bytes[MemoryCopies::on]);
}

TEST_CASE("each step reports the newest state that all ranks hold in memory", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.data = 2;
  job.parallelism.pipeline = 2;
  job.parallelism.lanes = 2;
  const auto staged_steps = [&](const std::string& memory_folder) {
    std::vector<int64_t> steps;  // -2: not reported
    for (const std::string& line :
         run_on_threads(job, {.dir = dir.path(), .max_steps = 7, .memory_folder = memory_folder}).lines)
      steps.push_back(parse_json(line).value("staged_step", int64_t(-2)));
    return steps;
  };
  CHECK(staged_steps(memory.path()) == std::vector<int64_t>{-2, 1, 2, 3, 4, 5, 6});
  job.checkpoint.memory_every_steps = 3;
  CHECK(staged_steps(memory.path()) == std::vector<int64_t>{-2, -2, -2, 3, 3, 3, 6});
  CHECK(staged_steps("") == std::vector<int64_t>(7, -2));
}

TEST_CASE("a run whose disk fails for a while trains on with the same bits", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.data = 2;
  job.parallelism.lanes = 2;
  const ThreadRun whole = run_on_threads(job, {.dir = dir.path()});
  job.checkpoint.every_steps = 2;
  PowerLossFileSystem disk;
  int failures = 0, steps = 0;
  const ThreadRun run = run_on_threads(job, {.dir = "/run",
                                             .memory_folder = memory.path(),
                                             .checkpoint_files = &disk,
                                             .on_event =
                                                 [&](EventKind kind, const std::string&) {
                                                   if (kind == EventKind::save_failed) ++failures;
                                                 },
                                             .on_report =
                                                 [&] {
                                                   ++steps;
                                                   if (steps == 5) disk.fail_at(0, Fault::no_space_from_here);
                                                   if (steps < 15) return;
                                                   // A save has met it and was reported; one may have been
                                                   // slow for long.
                                                   happens_within(10, [&] { return disk.failures() > 0; });
                                                   if (failures > 0 || steps == 19) disk.repair();
                                                 }});
  CHECK(failures > 0);
  CHECK(run.losses == whole.losses);
  CHECK(run.root_hash == whole.root_hash);
}
