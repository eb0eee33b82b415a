// Goal: a new run may begin from any checkpoint of another and is then its own: its lineage is recorded, nothing of the parent changes, and
// without a change it has the parent's bits. What a resume refuses names the command that does it, and that command works.
// Method: the real program: a base run, branches of one checkpoint with two learning rates, without a change, with other data; the printed
// command pasted into another folder.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "runtime/base/json.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"
#include "test/support/tolerances.h"

using trainctl::Json;
using namespace trainctl::test;
using Catch::Contains;

namespace {

/// The base run of 20 steps with checkpoints of steps 4, 8, ..., kept, in `dir`.
void launch_base(const TemporaryFolder& dir) {
  write_file(dir.path() + "/job.json", tiny_spec("base"));
  const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=base", "-s", "checkpoint.keep_last=9"});
  INFO(o.err);
  REQUIRE(o.status == 0);
}

/// "step loss" of the steps a run made itself.
std::vector<std::string> curve_of(const std::string& run, int64_t after) {
  std::vector<std::string> curve;
  std::istringstream lines(read_file(run + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json j = Json::parse(line);
    if (j["step"].get<int64_t>() > after) curve.push_back(j["step"].dump() + " " + j["loss"].dump() + " " + j["tokens"].dump());
  }
  return curve;
}

std::string text_after(const std::string& text, const std::string& mark) {
  const size_t at = text.find(mark);
  REQUIRE(at != std::string::npos);
  return text.substr(at + mark.size(), text.find('\n', at) - at - mark.size());
}

}  // namespace

TEST_CASE("two branches of one checkpoint with two learning rates, and one without a change", "[branch]") {
  const TemporaryFolder dir;
  launch_base(dir);
  const std::string base = dir.path() + "/runs/base";
  const std::string before = read_file(base + "/metrics.jsonl") + read_file(base + "/run.json");
  const auto branch = [&](const std::string& id, std::vector<std::string> sets) {
    std::vector<std::string> arguments = {"launch", "job.json", "--from", "base@8", "-s", "observability.run_id=" + id};
    for (const std::string& s : sets) arguments.insert(arguments.end(), {"-s", s});
    const Outcome o = run_trainctl(dir.path(), arguments);
    INFO(o.err);
    REQUIRE(o.status == 0);
    return o;
  };
  branch("same", {});
  CHECK(curve_of(dir.path() + "/runs/same", 0) == curve_of(base, 8));   // bit for bit, as JSON prints doubles
  CHECK(run_trainctl(dir.path(), {"inspect-ckpt", "same", "--diff", "base"}).status == 0);

  const Outcome low = branch("low", {"schedule.lr=1e-3"});
  CHECK_THAT(low.err, Contains("from base step 8 (state ") && Contains("schedule.lr 0.003 → 0.001") &&
                          Contains("position 2048 tokens, as the parent's") && Contains("in the parent"));
  branch("high", {"schedule.lr=6e-3"});
  CHECK(curve_of(dir.path() + "/runs/low", 0).size() == 12);
  CHECK(curve_of(dir.path() + "/runs/low", 0) != curve_of(dir.path() + "/runs/high", 0));
  CHECK(curve_of(dir.path() + "/runs/low", 0).front() == curve_of(base, 8).front());   // the same weights met the same data

  const Json run = Json::parse(read_file(dir.path() + "/runs/low/run.json"));
  const Json inspected = Json::parse(run_trainctl(dir.path(), {"--json", "inspect-ckpt", "low"}).out);
  const Json status = Json::parse(run_trainctl(dir.path(), {"--json", "status", "low"}).out);
  for (const Json& lineage : {run["lineage"], inspected["lineage"], status["lineage"]}) {
    REQUIRE(lineage.size() == 1);
    CHECK(lineage[0]["run_id"] == "base");
    CHECK(lineage[0]["step"] == 8);
    CHECK(lineage[0]["changes"] ==
          Json::parse(R"([{"path": "schedule.lr", "before": "0.003", "now": "0.001"}])"));
  }
  CHECK(inspected["lineage"][0]["root"] ==
        Json::parse(
            run_trainctl(dir.path(), {"--json", "inspect-ckpt", base + "/ckpt/step-00000008"}).out)["root"]);
  CHECK_THAT(run_trainctl(dir.path(), {"status", "low"}).out, Contains("lineage    from base step 8"));

  // A branch of a branch; and the parent is as it was.
  REQUIRE(run_trainctl(dir.path(), {"launch", "job.json", "--from", "low@16", "-s", "observability.run_id=deep"}).status == 0);
  CHECK(Json::parse(read_file(dir.path() + "/runs/deep/run.json"))["lineage"].size() == 2);
  CHECK(read_file(base + "/metrics.jsonl") + read_file(base + "/run.json") == before);
}

TEST_CASE("the command that a refused resume names works from any folder", "[branch]") {
  const TemporaryFolder dir, elsewhere;
  launch_base(dir);
  const Outcome refused = run_trainctl(elsewhere.path(), {"resume", dir.path() + "/runs/base", "-s", "schedule.lr=1e-3"});
  CHECK(refused.status == 3);
  CHECK_THAT(refused.err, Contains("--> --set schedule.lr=1e-3"));
  const std::string command = text_after(refused.err, "with it: trainctl ");
  CHECK_THAT(command, Contains("base/job.json --from ") && Contains("base@16 -s schedule.lr=1e-3"));
  const Outcome pasted =
      Child({"/bin/sh", "-c", trainctl_path() + " " + command}, elsewhere.path()).wait(120);
  INFO(pasted.err);
  CHECK(pasted.status == 0);
  CHECK(curve_of(run_of(dir.path(), "base"), 0).size() == 4);   // beside its parent, under a name of its own
}

TEST_CASE("a branch without a checkpoint of its own begins at its parent's again", "[branch]") {
  const TemporaryFolder dir;
  launch_base(dir);
  const std::vector<std::string> launch = {"launch", "job.json", "--from", "base@8", "-s", "observability.run_id=b",
                                           "-s", "checkpoint.every_steps=0", "-s", "checkpoint.on_exit=false", "--max-steps", "10"};
  REQUIRE(run_trainctl(dir.path(), launch).status == 0);
  REQUIRE(curve_of(dir.path() + "/runs/b", 0).size() == 2);
  const Outcome resumed = run_trainctl(dir.path(), {"resume", "b", "-s", "checkpoint.on_exit=true"});
  INFO(resumed.err);
  CHECK(resumed.status == 0);
  CHECK(curve_of(dir.path() + "/runs/b", 0) == curve_of(dir.path() + "/runs/base", 8));
  // The same launch again goes on with the run; another beginning is another run.
  CHECK(run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=b"}).status == 3);
  std::filesystem::remove_all(dir.path() + "/runs/b/ckpt");
  std::filesystem::remove_all(dir.path() + "/runs/base/ckpt/step-00000008");
  const Outcome gone = run_trainctl(dir.path(), {"resume", "b"});
  CHECK(gone.status == 7);
  CHECK_THAT(gone.err, Contains("which it began from, is gone"));
}

TEST_CASE("what a branch cannot be is refused before anything starts", "[branch]") {
  const TemporaryFolder dir;
  launch_base(dir);
  const auto refused = [&](const std::vector<std::string>& arguments, int status, const std::string& says) {
    const Outcome o = run_trainctl(dir.path(), arguments);
    CAPTURE(arguments, o.err);
    CHECK(o.status == status);
    CHECK_THAT(o.err, Contains(says));
  };
  refused({"launch", "job.json", "--from", "base@8", "-s", "model.num_layers=2"}, 3, "error[E0603]: `model.num_layers`");
  refused({"launch", "job.json", "--from", "base@9"}, 7, "it has those of steps 20, 16, 12, 8, 4");
  refused({"launch", "job.json", "--from", "base@x"}, 2, "neither a step number nor `latest`");
  refused({"launch", "job.json", "--from", "nobody"}, 2, "no run nobody");
  refused({"launch", "job.json", "--from", "base"}, 3, "raise it, e.g. -s schedule.total_steps=40");
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path() + "/runs"), {}) == 1);
}

TEST_CASE("other data begin at their start, the same data go on where they were", "[branch]") {
  const TemporaryFolder dir;
  launch_base(dir);
  std::string tokens = read_file(std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/llama-tiny/tokens.bin");
  write_file(dir.path() + "/other.bin", tokens.substr(0, tokens.size() / 4 * 2));
  const Outcome other = run_trainctl(dir.path(), {"launch", "job.json", "--from", "base@8", "-s", "data.train.0.path=other.bin",
                                                  "-s", "observability.run_id=other", "--max-steps", "12"});
  INFO(other.err);
  REQUIRE(other.status == 0);
  CHECK_THAT(other.err, Contains("others than the parent's: from their start"));
  const Json inspected = Json::parse(run_trainctl(dir.path(), {"--json", "inspect-ckpt", "other"}).out);
  CHECK(inspected["extra"]["samples"] == 4 * 8);        // of the new data
  CHECK(inspected["tokens"] == 12 * 8 * 32);            // all that the weights have seen
  // A checkpoint alone, copied out of its run, is enough to begin from; a batch of another size reads on.
  std::filesystem::copy(dir.path() + "/runs/base/ckpt/step-00000008", dir.path() + "/alone", std::filesystem::copy_options::recursive);
  const Outcome alone = run_trainctl(dir.path(), {"launch", "job.json", "--from", "alone", "-s", "batch.global_sequences=16",
                                                  "-s", "observability.run_id=alone", "--max-steps", "10"});
  INFO(alone.err);
  REQUIRE(alone.status == 0);
  const Json wide =
      Json::parse(run_trainctl(dir.path(), {"--json", "inspect-ckpt", dir.path() + "/runs/alone"}).out);
  CHECK(wide["extra"]["samples"] == 8 * 8 + 2 * 16);
  CHECK(wide["tokens"] == (8 * 8 + 2 * 16) * 32);
}

TEST_CASE("a resume extends a run and says, with its class, what it changes", "[branch]") {
  const TemporaryFolder dir;
  launch_base(dir);
  const std::string base = dir.path() + "/runs/base";
  const Outcome longer = run_trainctl(dir.path(), {"resume", "base", "-s", "schedule.total_steps=24", "-s", "checkpoint.keep_last=8"});
  INFO(longer.err);
  REQUIRE(longer.status == 0);
  CHECK_THAT(longer.err, Contains("schedule.total_steps 20 → 24 · changes numerics from here on") &&
                             Contains("checkpoint.keep_last 9 → 8 · free") && Contains("step 21 has lr ") &&
                             !Contains("the same bits"));
  CHECK(curve_of(base, 0).size() == 24);
  const Json lineage =
      Json::parse(run_trainctl(dir.path(), {"--json", "inspect-ckpt", "base"}).out)["lineage"];
  REQUIRE(lineage.size() == 1);
  CHECK(lineage[0]["kind"] == "change");
  CHECK(lineage[0]["step"] == 20);
  CHECK(lineage[0]["changes"].size() == 1);   // what is free is no part of a history of numbers
  CHECK(Json::parse(read_file(base + "/run.json"))["lineage"] == lineage);
  CHECK_THAT(read_file(base + "/events.jsonl"), Contains("schedule.total_steps"));
  // Back before the change, without it: no trace of it is left.
  const Outcome back = run_trainctl(dir.path(), {"resume", "base", "--step", "16", "-s", "schedule.total_steps=20"});
  INFO(back.err);
  REQUIRE(back.status == 0);
  CHECK_THAT(back.err, Contains("the same bits"));
  CHECK(Json::parse(run_trainctl(dir.path(), {"--json", "inspect-ckpt", "base"}).out)["lineage"].empty());
}

TEST_CASE("a mesh given by its factors alone resumes a run of another size", "[branch]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("sized"));
  REQUIRE(run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=sized", "-s", "parallelism.world_size=4",
                                    "--max-steps", "4"}).status == 0);
  const Outcome o = run_trainctl(dir.path(), {"resume", "sized", "-s", "parallelism.pipeline=4"});
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK_THAT(o.err, Contains("-s parallelism.world_size=8") && Contains("4 → 8 ranks") && Contains("with the same bits"));
}

TEST_CASE("what is said of a copied run names the copy", "[branch]") {
  const TemporaryFolder dir;
  launch_base(dir);
  std::filesystem::copy(dir.path() + "/runs/base", dir.path() + "/runs/copy", std::filesystem::copy_options::recursive);
  CHECK_THAT(run_trainctl(dir.path(), {"status", "copy"}).out, Contains("run        copy ") && !Contains("runs/base"));
  const std::string shard = dir.path() + "/runs/copy/ckpt/step-00000016/shard-00002-of-00004.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() - 1001] = char(bytes[bytes.size() - 1001] ^ 1);
  write_file(shard, bytes);
  const Outcome damaged = run_trainctl(dir.path(), {"resume", "copy", "--step", "16"});
  INFO(damaged.err);
  CHECK(damaged.status == 7);
  CHECK_THAT(damaged.err, Contains("run copy failed") && Contains("a copy of run base") &&
                              Contains("the checkpoint of step 16 cannot be loaded") && Contains("what to do  trainctl resume copy (takes"));
  CHECK(run_trainctl(dir.path(), {"resume", "copy"}).status == 0);   // as advised
  CHECK(curve_of(dir.path() + "/runs/copy", 0) == curve_of(dir.path() + "/runs/base", 0));
}

TEST_CASE("a branch with another global batch takes its learning rate by the rule", "[branch]") {
  const TemporaryFolder dir;
  launch_base(dir);
  const std::vector<std::string> twice = {
      "launch", "job.json", "--from", "base@8", "-s", "batch.global_sequences=16", "--max-steps", "9"};
  const auto with = [&](const std::string& id, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = twice;
    arguments.insert(arguments.end(), {"-s", "observability.run_id=" + id});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_trainctl(dir.path(), arguments);
  };
  const auto lr_of = [&](const std::string& id) {
    return Json::parse(read_file(dir.path() + "/runs/" + id + "/job.json"))["schedule"]["lr"].get<double>();
  };
  const auto rate_of = [&](const std::string& id) {   // of the only step it made
    return Json::parse(read_file(dir.path() + "/runs/" + id + "/metrics.jsonl"))["lr"].get<double>();
  };
  REQUIRE(with("kept", {}).status == 0);
  CHECK(lr_of("kept") == 0.003);
  const Outcome preview = with("linear", {"-s", "schedule.batch_lr_rule=linear", "--dry-run"});
  CHECK_THAT(preview.out,
             Contains("schedule.lr 0.003 → 0.006") && Contains("schedule.batch_lr_rule linear, × 2"));
  CHECK_FALSE(std::filesystem::exists(dir.path() + "/runs/linear"));
  const Outcome linear = with("linear", {"-s", "schedule.batch_lr_rule=linear"});
  INFO(linear.err);
  REQUIRE(linear.status == 0);
  CHECK_THAT(linear.err, Contains("schedule.batch_lr_rule linear, × 2"));
  CHECK(lr_of("linear") == 0.006);
  CHECK(rate_of("linear") == Approx(2 * rate_of("kept")).epsilon(tolerance::kFormula));
  REQUIRE(with("root", {"-s", "schedule.batch_lr_rule=sqrt"}).status == 0);
  CHECK(lr_of("root") == Approx(0.003 * std::sqrt(2.0)).epsilon(tolerance::kProduct));
  const Json lineage = Json::parse(read_file(dir.path() + "/runs/linear/run.json"))["lineage"];
  CHECK(lineage[0]["batch_lr_rule"] == "linear, × 2");

  // Once: neither a resume nor the same launch again multiplies it again, and the parent's batch changes
  // nothing.
  REQUIRE(run_trainctl(dir.path(), {"resume", "linear", "--max-steps", "10"}).status == 0);
  CHECK(lr_of("linear") == 0.006);
  const Outcome again = with("linear", {"-s", "schedule.batch_lr_rule=linear"});
  CHECK_THAT(again.err, Contains("run linear exists with the same job: going on with it"));
  CHECK(lr_of("linear") == 0.006);
  const Outcome same =
      run_trainctl(dir.path(), {"launch", "job.json", "--from", "base@8", "-s", "observability.run_id=same",
                                "-s", "schedule.batch_lr_rule=linear"});
  INFO(same.err);
  REQUIRE(same.status == 0);
  CHECK(curve_of(dir.path() + "/runs/same", 0) == curve_of(dir.path() + "/runs/base", 8));

  const Outcome high = with("high", {"-s", "schedule.batch_lr_rule=linear", "-s", "schedule.lr=6"});
  CHECK(high.status == 3);
  CHECK_THAT(high.err, Contains("would become 12 by schedule.batch_lr_rule linear, × 2"));
}
