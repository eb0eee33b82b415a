// Goal: a run that saved checkpoints which are gone never begins again by itself, and changes nothing in its
// store; asked to, it begins again with the same bits.
// Method: the real program without its folder of checkpoints, with no store, a damaged one, one that is away.
#include <catch2/catch.hpp>
#include <filesystem>

#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Contains;

namespace {

namespace stdfs = std::filesystem;

struct LostRun {
  TemporaryFolder dir;
  std::string folder = stdfs::canonical(dir.path()).string(), run = folder + "/runs/r";
  std::string store = folder + "/copies";

  explicit LostRun(bool has_store) {
    write_file(folder + "/job.json", tiny_spec("tiny"));
    std::vector<std::string> words = {"launch",      "job.json", "-s", "observability.run_id=r",
                                      "--max-steps", "8"};
    if (has_store) words.insert(words.end(), {"-s", "checkpoint.store=" + store});
    const Outcome first = run_program(words);
    INFO(first.err);
    REQUIRE(first.status == 0);
    stdfs::remove_all(run + "/ckpt");
  }
  Outcome run_program(const std::vector<std::string>& words) const { return run_trainctl(folder, words); }
  /// Each file of the store with its bytes.
  std::vector<std::string> store_files() const {
    std::vector<std::string> files;
    for (const auto& entry : stdfs::recursive_directory_iterator(store))
      if (entry.is_regular_file()) files.push_back(entry.path().string() + "\n" + read_file(entry.path()));
    std::sort(files.begin(), files.end());
    return files;
  }
  void damage_store() const {
    for (const auto& entry : stdfs::recursive_directory_iterator(store)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::string bytes = read_file(entry.path());
      bytes[bytes.size() / 2] ^= 4;
      write_file(entry.path(), bytes);
    }
  }
};

void check_refused(const Outcome& resumed, const std::string& what) {
  INFO(resumed.err);
  CHECK(resumed.status == 7);
  CHECK_THAT(resumed.err, Contains("saved checkpoints up to step 8, but ") && Contains(what) &&
                              Contains("`trainctl resume r --from-scratch`"));
}

}  // namespace

TEST_CASE("a run whose checkpoints are gone is refused; begun again on request, it has the same bits",
          "[fault]") {
  const LostRun lost(false);
  const std::vector<double> before = losses_of(lost.run);
  check_refused(lost.run_program({"resume", "r"}), lost.run + "/ckpt has none");
  CHECK(losses_of(lost.run) == before);
  CHECK(lost.run_program({"resume", "r", "--from-scratch", "--step", "8"}).status == 2);
  const Outcome again = lost.run_program({"resume", "r", "--from-scratch", "--max-steps", "8"});
  INFO(again.err);
  CHECK(again.status == 0);
  CHECK(losses_of(lost.run) == before);
  // Its own checkpoints are found again, and this beginning is the run's now.
  CHECK(lost.run_program({"resume", "r", "--max-steps", "12"}).status == 0);
}

TEST_CASE("a damaged store or one that is away does not make a run begin again", "[fault]") {
  const LostRun lost(true);
  lost.damage_store();
  const std::vector<std::string> damaged = lost.store_files();
  check_refused(lost.run_program({"resume", "r"}), "nor has " + lost.store + "/r");
  CHECK(lost.store_files() == damaged);
  const Outcome again = lost.run_program({"resume", "r", "--from-scratch"});
  CHECK(again.status == 2);
  CHECK_THAT(again.err, Contains("holds checkpoints of this run up to step 8"));
  CHECK(lost.store_files() == damaged);
  stdfs::rename(lost.store, lost.folder + "/away");
  write_file(lost.store, "a file is no folder of copies");
  check_refused(lost.run_program({"resume", "r"}), "checkpoints cannot be copied to " + lost.store);
}
