// Goal: whichever call of the file system fails during a save, also one that only looks (a read, a list, a
//       look whether a name is there), the older checkpoint stays whole, the new one is whole or absent, what
//       was reported as saved is there, and the next save succeeds and leaves nothing behind.
// Method: exhaustive: a save by two writers with its retention, in which the n-th call fails once, three
//         times, or from then on; on files in memory.
#include <catch2/catch.hpp>

#include "ckpt/counting_file_system.h"
#include "ckpt/folders.h"
#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr const char* kRoot = "/runs/a/ckpt";

std::unique_ptr<PowerLossFileSystem> disk_with_step_10() {
  auto disk = std::make_unique<PowerLossFileSystem>();
  disk->make_directories("/runs/a");
  save(*disk, kRoot, make_state(7, 10), 2);
  return disk;
}

/// The state if it is there and every byte is good; "" or what is wrong.
std::string problem_of(FileSystem& fs, const PlainState& state) {
  try {
    const auto checkpoint = ckpt::Checkpoint::open(fs, ckpt::step_directory(kRoot, state.info.step));
    if (!ckpt::verify(*checkpoint).findings.empty()) return "a byte is not as it was saved";
    return reads_back(*checkpoint, state) ? "" : "it is another state";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("each call of a save fails once, three times, and from then on") {
  const PlainState before = make_state(7, 10), state = make_state(7, 20), next = make_state(7, 30);
  int failed = 0, absorbed = 0;
  for (const int64_t times : {int64_t(1), int64_t(3), INT64_MAX})
    for (int64_t n = 0;; ++n) {
      INFO("call " << n << " fails, " << times << " times");
      const auto disk = disk_with_step_10();
      int64_t calls = 0;
      ckpt::CountingFileSystem failing(*disk, {.asked = [&] {
        const int64_t call = calls++;
        if (call >= n && call - n < times) throw Error(ErrorCode::kIo, "Input/output error");
      }});
      bool saved = false;
      try {
        save(failing, kRoot, state, 2);
        saved = true;
        ckpt::retain(*ckpt::directory_store(failing, kRoot), {.current_epoch = state.info.epoch});
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kIo);
      }
      REQUIRE(problem_of(*disk, before) == "");
      const std::vector<int64_t> steps = ckpt::list_steps(*disk, kRoot);
      const bool is_there = std::count(steps.begin(), steps.end(), 20) > 0;
      if (saved) REQUIRE(is_there);
      if (is_there) REQUIRE(problem_of(*disk, state) == "");
      failed += !saved;
      absorbed += saved && calls > n;
      // Afterwards the disk is well, and another epoch goes on.
      ckpt::restore_moved(*disk, kRoot);
      PlainState later = next;
      later.info.epoch += 1;
      ckpt::supersede(*disk, kRoot, {later.info.run_id, later.info.epoch, is_there ? 20 : 10});
      save(*disk, kRoot, later, 2);
      ckpt::retain(*ckpt::directory_store(*disk, kRoot), {.keep_last = 3, .current_epoch = later.info.epoch});
      REQUIRE(problem_of(*disk, later) == "");
      REQUIRE(problem_of(*disk, before) == "");
      for (const std::string& place : {ckpt::saving_root(kRoot), ckpt::trash_root(kRoot)})
        if (disk->exists(place)) REQUIRE(disk->list(place).empty());
      if (calls <= n) break;
    }
  CHECK(failed > 50);
  CHECK(absorbed > 10);
}
