// Goal: a store is checked before a run depends on it, and a run comes back from it. Method: a folder as the
// store, on a file system that fails.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/supervise/care/run_store.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

const std::string kStore = "/copies/tiny-7Q2K", kStoreFolder = "/run/ckpt", kRun = "tiny-7Q2K";

struct Place {
  PowerLossFileSystem fs;
  std::vector<std::string> lines;

  Place() { fs.make_directory("/run"); }
  StoreCheck check(bool is_new, const std::string& run = kRun) {
    return check_store({fs, real_clock()}, kStore, run, is_new);
  }
  int64_t fetch(int64_t newer_than, std::optional<int64_t> step = {}, const std::string& run = kRun) {
    const auto fetched = fetch_checkpoint(
        {fs, real_clock()}, {.place = kStore,
                             .directory = kStoreFolder,
                             .run_id = run,
                             .newer_than = newer_than,
                             .step = step,
                             .say = [this](const std::string& line) { lines.push_back(line); }});
    return fetched ? fetched->step : -1;
  }
  int64_t fetch_at_most(int64_t step) {
    const auto fetched = fetch_checkpoint(
        {fs, real_clock()}, {.place = kStore, .directory = kStoreFolder, .run_id = kRun, .at_most = step});
    return fetched ? fetched->step : -1;
  }
  bool has(int64_t step) {
    const auto checkpoint = ckpt::Checkpoint::open(fs, ckpt::step_directory(kStoreFolder, step));
    return ckpt::verify(*checkpoint).findings.empty() && reads_back(*checkpoint, make_state(1, step));
  }
};

}  // namespace

TEST_CASE("the store of a run is in a folder of its id") {
  JobSpec job;
  CHECK(store_of_run(job.checkpoint, kRun) == "");
  job.checkpoint.store = "s3://bucket/prefix/";
  CHECK(store_of_run(job.checkpoint, kRun) == "s3://bucket/prefix/tiny-7Q2K");
}

TEST_CASE("a store that is good, that fails, that holds another run") {
  Place place;
  const auto is_good = [](const StoreCheck& check) { return check.unusable.is_none() && check.note.empty(); };
  CHECK(is_good(place.check(true)));
  CHECK(place.fs.list(kStore).empty());
  save(place.fs, kStore, make_state(1, 10), 2);
  CHECK(is_good(place.check(false)));
  CHECK_THROWS_WITH(place.check(true),
                    Catch::Contains("/copies/tiny-7Q2K already holds checkpoints of another run (step 10)"));
  CHECK_THROWS_WITH(place.check(false, "other"),
                    Catch::Contains("checkpoints of another run, tiny-7Q2K (step 10)"));
  place.fs.fail_at(0, Fault::no_space_from_here);
  CHECK_THAT(place.check(false).unusable.text(),
             Catch::Contains("checkpoints cannot be copied to /copies/tiny-7Q2K: ") &&
                 Catch::Contains("No space left") && Catch::Contains("-s checkpoint.store="));
}

TEST_CASE("the newest checkpoint that is whole is fetched, if it is newer") {
  Place place;
  CHECK(place.fetch(-1) == -1);
  for (const int64_t step : {10, 20, 30}) save(place.fs, kStore, make_state(1, step), 2);
  CHECK(place.fetch(30) == -1);
  CHECK(place.lines.empty());
  CHECK(place.fetch(20) == 30);
  CHECK(place.has(30));
  CHECK_THAT(place.lines[0],
             Catch::Contains("copying checkpoint step 30") && Catch::Contains("newer than step 20"));
  CHECK(place.fetch(-1, 10) == 10);
  CHECK(place.fetch_at_most(29) == 20);
  CHECK(place.fetch_at_most(9) == -1);
  CHECK(place.has(10));
  CHECK(place.fetch(-1, 15) == -1);
  CHECK_THROWS_WITH(place.fetch(-1, {}, "other"),
                    Catch::Contains("is a checkpoint of run tiny-7Q2K, not of run other"));

  place.fs.remove_tree(kStoreFolder);
  place.fs.poke(kStore + "/step-00000030/shard-00001-of-00002.safetensors",
                [](std::string& text) { text[text.size() - 3] ^= 1; });
  place.lines.clear();
  CHECK(place.fetch(-1) == 20);
  CHECK_THAT(place.lines[1],
             Catch::Contains("step 30 of /copies/tiny-7Q2K is skipped") && Catch::Contains("damaged"));
  CHECK(place.has(20));
  CHECK(ckpt::list_steps(place.fs, kStoreFolder) == std::vector<int64_t>{20});
}
