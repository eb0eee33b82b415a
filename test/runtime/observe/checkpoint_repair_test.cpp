// Goal: inspect-ckpt --repair finds good copies where they are and says what it did; --copy-to copies a whole
// checkpoint; neither writes where it must not, nor where a run is going. Method: small checkpoints in a file
// system in memory, with a lock in a real one; each kind of path and outcome, text and JSON.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/observe/checkpoint_repair.h"
#include "runtime/run/record/run_directory.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/hand_clock.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

const std::string kShard = "/shard-00001-of-00003.safetensors";

void flip_end(PowerLossFileSystem& fs, const std::string& path) {
  fs.poke(path, [](std::string& text) { text.back() ^= 1; });
}

bool is_whole(FileSystem& fs, const std::string& step) {
  return ckpt::verify(*ckpt::Checkpoint::open(fs, step)).findings.empty();
}

}  // namespace

TEST_CASE("a damaged checkpoint of a run is repaired from a replica elsewhere") {
  PowerLossFileSystem fs;
  for (const int64_t step : {7, 8}) save(fs, "/runs/a/ckpt", make_state(1, step), 3);
  save(fs, "/replica", make_state(1, 8), 3);
  const auto before = fs.files();
  const std::string step = "/runs/a/ckpt/step-00000008";
  CHECK_THAT(repair_checkpoint(fs, real_clock(), {.path = "/runs/a"}).text, Contains("nothing to repair"));
  flip_end(fs, step + kShard);

  const auto lost = repair_checkpoint(fs, real_clock(), {.path = "/runs/a"});
  CHECK(lost.damaged);
  CHECK_THAT(lost.text, Contains("✗ shard-00001-of-00003.safetensors: ") && Contains("lost: ") &&
                            Contains("1 piece without a good copy; nothing was written"));
  CHECK_FALSE(is_whole(fs, step));
  const auto look =
      repair_checkpoint(fs, real_clock(), {.path = step, .from = {"/replica"}, .only_look = true});
  CHECK(look.damaged);
  CHECK_THAT(look.text, Contains("all of it can be repaired; nothing was written"));
  CHECK_FALSE(is_whole(fs, step));
  const auto done = repair_checkpoint(
      fs, real_clock(), {.path = "/runs/a/", .from = {"/runs/a/ckpt/step-00000007/", "/replica"}});
  CHECK_FALSE(done.damaged);
  CHECK_THAT(done.text, Contains("1 chunk · ") && Contains("from /replica/step-00000008\n") &&
                            Contains("✓ repaired: 1 file written anew"));
  CHECK(fs.files() == before);
  CHECK_THROWS_WITH(repair_checkpoint(fs, real_clock(), {.path = "/runs/b"}),
                    Contains("there is no /runs/b"));
  CHECK_THROWS_WITH(repair_checkpoint(fs, real_clock(), {.path = "/runs"}),
                    Contains("/runs holds no checkpoint"));
}

TEST_CASE("a repair finds equal chunks in the steps next to it, and in those set aside") {
  PowerLossFileSystem fs;
  for (const int64_t step : {7, 8, 9}) {
    PlainState state = make_state(1, 7);  // the same values at every step
    state.info.step = step;
    save(fs, "/ckpt", state, 3);
  }
  ckpt::supersede(fs, "/ckpt", {"tiny-7Q2K", 4, 8});
  flip_end(fs, "/ckpt/step-00000008" + kShard);
  fs.remove_file("/ckpt/step-00000007" + kShard);
  const auto done =
      Json::parse(repair_checkpoint(fs, real_clock(), {.path = "/ckpt", .json = true}).text);
  CHECK(done["ok"] == true);
  CHECK(done["origins"][0]["from"] == "/ckpt/superseded-e4/step-00000009");
  CHECK(is_whole(fs, "/ckpt/step-00000008"));
  // A whole file that was lost comes back chunk by chunk.
  CHECK_THAT(repair_checkpoint(fs, real_clock(), {.path = "/ckpt/step-00000007"}).text,
             Contains("the file is missing") && Contains("✓ repaired"));
  CHECK(is_whole(fs, "/ckpt/step-00000007"));
}

TEST_CASE("a checkpoint is copied into another folder") {
  PowerLossFileSystem fs;
  for (const int64_t step : {7, 8}) save(fs, "/runs/a/ckpt", make_state(1, step), 3);
  CHECK_THAT(copy_checkpoint(fs, real_clock(), {.path = "/runs/a", .to = "/far/away/"}).text,
             Contains("✓ /far/away/step-00000008 · 3 files · ") && Contains("every hash matches"));
  CHECK(is_whole(fs, "/far/away/step-00000008"));
  CHECK_THAT(copy_checkpoint(fs, real_clock(), {.path = "/runs/a", .to = "/far/away"}).text,
             Contains("is there already"));
  const auto json = Json::parse(
      copy_checkpoint(fs, real_clock(),
                      {.path = "/runs/a/ckpt/step-00000007", .to = "/far/away", .json = true})
          .text);
  CHECK((json["step"] == 7 && json["files"] == 3 && json["was_there"] == false));
  flip_end(fs, "/runs/a/ckpt/step-00000007" + kShard);
  CHECK_THROWS_WITH(copy_checkpoint(fs, real_clock(), {.path = "/runs/a/ckpt/step-00000007", .to = "/other"}),
                    Contains("is damaged") && Contains("repair it before it is copied"));
  CHECK(ckpt::list_steps(fs, "/other").empty());
  CHECK_THROWS_WITH(copy_checkpoint(fs, real_clock(), {.path = "/runs/b", .to = "/other"}),
                    Contains("there is no /runs/b"));
}

TEST_CASE("a place in an object store needs a bucket, a prefix and credentials") {
  PowerLossFileSystem fs;
  save(fs, "/a", make_state(1, 7), 1);
  const auto to = [&](const std::string& place) {
    copy_checkpoint(fs, real_clock(),
                    {.path = "/a", .to = place, .environment = [](const std::string&) { return ""; }});
  };
  CHECK_THROWS_WITH(to("s3://bucket"), Contains("give s3://bucket/prefix"));
  CHECK_THROWS_WITH(to("s3:///prefix"), Contains("give s3://bucket/prefix"));
  CHECK_THROWS_WITH(to("s3://bucket/prefix"), Contains("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
}

TEST_CASE("a store that does not answer is named within seconds, with what to check") {
  PowerLossFileSystem fs;
  save(fs, "/a", make_state(1, 7), 1);
  HandClock clock;
  const double begin_s = clock.now_s;
  const auto environment = [](const std::string& name) {
    return std::string(name.starts_with("AWS_ENDPOINT_URL") ? "http://127.0.0.1:1"
                       : name.starts_with("AWS_")           ? "x"
                                                            : "");
  };
  // The words without curl's header are others.
  CHECK_THROWS_WITH(
      copy_checkpoint(fs, clock, {.path = "/a", .to = "s3://bucket/prefix", .environment = environment}),
      Contains("s3://bucket/prefix: ") &&
              Contains("check AWS_ENDPOINT_URL, the credentials and the network") ||
          Contains("curl"));
  CHECK(clock.now_s - begin_s < 10);
}

TEST_CASE("the checkpoints of a run that is going are left to its supervisor") {
  const bool elsewhere = GENERATE(false, true);
  const TemporaryFolder folder;
  FileSystem& fs = real_file_system();
  const RunDirectory run{folder / "run"};
  const std::string checkpoints = elsewhere ? folder / "elsewhere" : run.path + "/ckpt";
  const std::string step = checkpoints + "/step-00000008";
  fs.make_directory(run.path);
  fs.replace_text(run.file("run.json"), "{}");
  const Json job = {{"checkpoint", {{"dir", elsewhere ? checkpoints : ""}}}};
  fs.replace_text(run.job(), job.dump());
  save(fs, checkpoints, make_state(1, 8), 3);
  save(fs, folder / "replica", make_state(1, 8), 3);
  std::string damaged = fs.read_text(step + kShard);
  damaged.back() ^= 1;
  fs.replace_text(step + kShard, damaged);
  const std::vector<std::string> from = {folder / "replica"};
  {
    const auto lock = RunLock::try_take(run);  // its supervisor's
    REQUIRE(lock);
    for (const std::string& path : {run.path, run.path + "/", elsewhere ? run.path : step})
      CHECK_THROWS_WITH(repair_checkpoint(fs, real_clock(), {.path = path, .from = from}),
                        Contains("belongs to a run that is going") && Contains("trainctl stop " + run.path));
    CHECK(fs.read_text(step + kShard) == damaged);
    const auto look =
        repair_checkpoint(fs, real_clock(), {.path = run.path, .from = from, .only_look = true});
    CHECK_THAT(look.text, Contains("all of it can be repaired; nothing was written"));
  }
  CHECK_FALSE(repair_checkpoint(fs, real_clock(), {.path = run.path, .from = from}).damaged);
  CHECK(is_whole(fs, step));
}
