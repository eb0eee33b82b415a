// Goal: inspect-ckpt finds the checkpoint that a path means, says what is in it, and tells good, damaged, equal and different apart.
// Method: small checkpoints in a file system in memory; each kind of path, each section, text and JSON.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/observe/checkpoint_report.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

CheckpointReport report(FileSystem& fs, CheckpointReportOptions options) { return report_checkpoint(fs, real_clock(), options); }

}  // namespace

TEST_CASE("inspect-ckpt finds the newest usable checkpoint of a run") {
  PowerLossFileSystem fs;
  for (const int64_t step : {7, 8, 9}) save(fs, "/runs/a/ckpt", make_state(1, step), 2);
  for (const std::string path : {"/runs/a", "/runs/a/", "/runs/a/ckpt", "/runs/a/ckpt/step-00000009"})
    CHECK_THAT(report(fs, {.path = path}).text, Contains("step 9 · 9.00 k tokens") || Contains("step 9 · 9.0 k tokens") || Contains("step 9 · 9"));
  CHECK_THAT(report(fs, {.path = "/runs/a/ckpt/step-00000007/"}).text, Contains("step 7 ·"));
  CHECK_THROWS_WITH(report(fs, {.path = "/runs/b"}), Contains("there is no /runs/b"));
  CHECK_THROWS_WITH(report(fs, {.path = "/runs"}), Contains("/runs holds no checkpoint"));

  SECTION("checkpoints kept elsewhere") {
    fs.make_directory("/runs/c");
    fs.write_new_text("/runs/c/job.json", R"({"checkpoint":{"dir":"/runs/a/ckpt"}})");
    CHECK_THAT(report(fs, {.path = "/runs/c"}).text, Contains("step 9 ·"));
  }
  SECTION("the newest is damaged") {
    fs.remove_file("/runs/a/ckpt/step-00000009/COMMIT");
    const auto found = report(fs, {.path = "/runs/a"});
    CHECK_THAT(found.text, Contains("step 8 ·"));
    CHECK_THAT(found.notes, Contains("step-00000009 is not a checkpoint: it has no COMMIT"));
    CHECK_FALSE(found.damaged);
    CHECK(report(fs, {.path = "/runs/a", .verify = true}).damaged);
    for (const int64_t step : {7, 8}) fs.remove_file(ckpt::step_directory("/runs/a/ckpt", step) + "/COMMIT");
    CHECK_THROWS_WITH(report(fs, {.path = "/runs/a"}), Contains("no checkpoint in /runs/a/ckpt is usable"));
  }
}

TEST_CASE("inspect-ckpt shows, verifies and compares") {
  PowerLossFileSystem fs;
  save(fs, "/a", make_state(1, 7), 3);
  save(fs, "/b", make_state(1, 7, 100), 1);
  save(fs, "/c", make_state(2, 8), 2);

  const auto summary = report(fs, {.path = "/a"});
  CHECK_THAT(summary.text, Contains("581 params · 4 tensors") && Contains("in 3 files") && Contains("weights ✓ optimizer ✓") &&
                               Contains("largest    layers.0.qkv.weight [24,8] 768 B"));
  CHECK_THAT(report(fs, {.path = "/a", .stats = true}).text, Contains("embed.weight") && Contains("second_moment") && Contains("abs max"));
  const auto json = Json::parse(report(fs, {.path = "/a", .stats = true, .verify = true, .json = true}).text);
  CHECK(json["tensors"].size() == 12);
  CHECK(json["verify"]["ok"] == true);
  CHECK(json["step"] == 7);

  const auto same = report(fs, {.path = "/a", .other = "/b"});
  CHECK_FALSE(same.different);
  CHECK_THAT(same.text, Contains("identical · 12 tensors"));
  const auto other = report(fs, {.path = "/a", .other = "/c"});
  CHECK(other.different);
  CHECK_THAT(other.text, Contains("~ step 7 | 8") && Contains("~ embed.weight master: values · 184 elements"));
  CHECK(Json::parse(report(fs, {.path = "/a", .other = "/c", .json = true}).text)["diff"]["identical"] ==
        false);

  CHECK_FALSE(report(fs, {.path = "/a", .verify = true}).damaged);
  fs.poke("/a/step-00000007/shard-00001-of-00003.safetensors", [](std::string& text) { text.back() ^= 1; });
  const auto damaged = report(fs, {.path = "/a", .verify = true});
  CHECK(damaged.damaged);
  CHECK_THAT(damaged.text, Contains("✗ shard-00001-of-00003.safetensors: ") && Contains("differs from the manifest's (at byte"));
}
