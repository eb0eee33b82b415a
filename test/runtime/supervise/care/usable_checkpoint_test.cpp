// Goal: a run goes on from the newest checkpoint that opens; where a person named the step of a damaged one,
// from that one repaired, or from none.
// Method: a folder and a store with a copy of it on a file system in memory.
#include <catch2/catch.hpp>

#include "runtime/supervise/care/usable_checkpoint.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

struct Folder {
  PowerLossFileSystem fs;

  Folder() {
    fs.make_directory("/run");
    for (const int64_t step : {10, 20, 30}) save(fs, "/run/ckpt", make_state(1, step), 2);
  }
  void lose_commit(int64_t step) { fs.remove_file(ckpt::step_directory("/run/ckpt", step) + "/COMMIT"); }
  int64_t usable(std::optional<int64_t> at_most, std::optional<int64_t> damaged = {}) {
    const Usable found = find_usable({fs, real_clock()}, {.directory = "/run/ckpt",
                                                          .run_id = "tiny-7Q2K",
                                                          .store = "/copies/tiny-7Q2K",
                                                          .at_most = at_most,
                                                          .damaged = damaged,
                                                          .say = [](const std::string&) {}});
    return found.checkpoint ? found.checkpoint->state().step : -1;
  }
};

}  // namespace

TEST_CASE("the newest checkpoint that opens is used") {
  Folder folder;
  CHECK(folder.usable({}) == 30);
  CHECK(folder.usable(29) == 20);
  folder.lose_commit(30);
  CHECK(folder.usable({}) == 20);
}

TEST_CASE("where the step was named and is damaged, no other checkpoint is used") {
  Folder folder;
  folder.lose_commit(20);
  CHECK(folder.usable(-1, 20) == -1);
  CHECK(folder.usable(19, 20) == 10);
  save(folder.fs, "/copies/tiny-7Q2K", make_state(1, 20), 2);
  CHECK(folder.usable(-1, 20) == 20);
}
