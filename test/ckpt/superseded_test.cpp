// Goal: checkpoints that a run sets aside when it goes back are found, counted and removed only when newer ones of the same line
// are safe; at no instant is one lost.
// Method: a file system in memory; power lost after every effect of setting aside, on every kind of file system.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

const std::string kRunDir = "/run/ckpt";

void save_step(FileSystem& fs, int64_t step, uint64_t epoch) {
  PlainState state = make_state(1, step);
  state.info.epoch = epoch;
  save(fs, kRunDir, state, 2);
}

std::vector<int64_t> steps_aside(FileSystem& fs) {
  std::vector<int64_t> steps;
  for (const ckpt::Superseded& aside : ckpt::list_superseded(fs, kRunDir))
    steps.insert(steps.end(), aside.steps.begin(), aside.steps.end());
  return steps;
}

}  // namespace

TEST_CASE("a run that goes back sets later checkpoints aside, with their size") {
  PowerLossFileSystem fs;
  for (const int64_t step : {10, 20, 30, 40}) save_step(fs, step, 1);
  uint64_t bytes = 0;
  const auto saved = ckpt::Checkpoint::open(fs, ckpt::step_directory(kRunDir, 30));
  for (const auto& file : saved->files()) bytes += file.file_bytes;
  const ckpt::Superseded aside = ckpt::supersede(fs, kRunDir, {"tiny-7Q2K", 2, 20});
  CHECK(aside.path == kRunDir + "/superseded-e2");
  CHECK(aside.steps == std::vector<int64_t>{40, 30});
  CHECK(aside.bytes == 2 * bytes);
  CHECK(ckpt::text_of(aside).find("2 checkpoints (steps 30 to 40), ") == 0);
  CHECK(ckpt::list_steps(fs, kRunDir) == std::vector<int64_t>{20, 10});
  CHECK(ckpt::open_latest(fs, kRunDir, -1, nullptr)->state().step == 20);
  CHECK(ckpt::supersede(fs, kRunDir, {"tiny-7Q2K", 3, 20}).steps.empty());
  CHECK(ckpt::list_superseded(fs, kRunDir).size() == 1);
  CHECK(ckpt::list_superseded(fs, "/nowhere").empty());
  // What was set aside is still whole.
  CHECK(ckpt::verify(*ckpt::Checkpoint::open(fs, ckpt::step_directory(aside.path, 40))).findings.empty());
}

TEST_CASE("superseded checkpoints are removed once as many of the new line are kept, older lines first") {
  PowerLossFileSystem fs;
  for (const int64_t step : {10, 20, 30}) save_step(fs, step, 1);
  ckpt::supersede(fs, kRunDir, {"tiny-7Q2K", 2, 20});
  save_step(fs, 30, 2);
  ckpt::retain(fs, kRunDir, 2, 0, "");   // kept: 30 of epoch 2, 20 of epoch 1
  CHECK(steps_aside(fs) == std::vector<int64_t>{30});
  ckpt::supersede(fs, kRunDir, {"tiny-7Q2K", 3, 20});   // goes back again
  CHECK(steps_aside(fs) == std::vector<int64_t>{30, 30});
  save_step(fs, 25, 3);
  save_step(fs, 30, 3);
  fs.remove_file(ckpt::step_directory(kRunDir, 30) + "/COMMIT");   // damaged: does not count
  ckpt::retain(fs, kRunDir, 2, 0, "");
  CHECK(steps_aside(fs) == std::vector<int64_t>{30, 30});
  save_step(fs, 40, 3);
  ckpt::retain(fs, kRunDir, 2, 0, "");
  CHECK(steps_aside(fs).empty());
  CHECK(fs.list(kRunDir + "/.trash").empty());
}

TEST_CASE("no checkpoint is lost when the power goes while others are set aside") {
  for (const bool no_replace : {true, false}) {
    PowerLossFileSystem fs;
    if (!no_replace) fs.refuse_rename_no_replace();
    for (const int64_t step : {10, 20, 30}) save_step(fs, step, 1);
    const auto before = fs.after_power_loss(Survival::everything, 0);
    for (uint64_t n = 0;; ++n) {
      const auto machine = before->copy();
      machine->lose_power_after(n);
      bool lost = false;
      try {
        ckpt::supersede(*machine, kRunDir, {"tiny-7Q2K", 2, 10});
      } catch (const PowerLost&) {
        lost = true;
      }
      for (uint64_t seed = 0; seed < 4; ++seed) {
        const auto survivor = machine->after_power_loss(seed == 0 ? Survival::nothing : Survival::random, seed);
        std::vector<int64_t> steps = ckpt::list_steps(*survivor, kRunDir), aside = steps_aside(*survivor);
        steps.insert(steps.end(), aside.begin(), aside.end());
        std::sort(steps.begin(), steps.end());
        CHECK(steps == std::vector<int64_t>{10, 20, 30});
        if (!lost) CHECK(aside.size() == 2);
      }
      if (!lost) break;
    }
  }
}

TEST_CASE("a save on trial works, leaves nothing, and finds what a file system refuses") {
  PowerLossFileSystem fs;
  fs.make_directories(kRunDir);
  const uint64_t before = fs.effects().size();
  ckpt::try_saving(fs, kRunDir);
  const uint64_t effects = fs.effects().size() - before;
  CHECK(fs.list(kRunDir).empty());
  // What a trial left whose process was killed goes, too.
  fs.make_directories(std::string(kRunDir) + "/.probe-1/.saving");
  fs.write_new_text(std::string(kRunDir) + "/.probe-1/.saving/shard", "half");
  ckpt::try_saving(fs, kRunDir);
  CHECK(fs.list(kRunDir).empty());
  for (uint64_t n = 0; n < effects; ++n) {
    PowerLossFileSystem broken;
    broken.make_directories(kRunDir);
    broken.fail_at(n, Fault::io_error_from_here);
    CHECK_THROWS_AS(ckpt::try_saving(broken, kRunDir), Error);
  }
}
