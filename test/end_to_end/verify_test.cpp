// Goal: steps that a run recorded are computed again and found equal, on its own mesh and on another; a
// changed record and an exchanged checkpoint are found, and a resume that verifies does not go on from
// them; a bit that flips in the memory of a rank's process is found, its rank named, and the run ends with
// the bits of the undisturbed one. A run of an older program is computed as that program did.
// Method: the real program; the older one's run is a run whose jobs lose the fields that it had not. The
// bit: a rank stops itself at the begin of a step, the test looks in its memory for numbers that the newest
// checkpoint holds, and changes one bit of each place.
#include <fmt/format.h>
#include <signal.h>
#include <sys/uio.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "runtime/base/hash.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"
#include "test/support/token_sets.h"

using namespace trainctl::test;
using Catch::Matchers::Contains;
using trainctl::Json;

namespace {

std::string launch(const TemporaryFolder& dir, const std::string& name, std::vector<std::string> sets = {}) {
  write_file(dir.path() + "/job.json", tiny_spec("base"));
  std::vector<std::string> words = {"launch", "job.json"};
  sets.insert(sets.end(), {"observability.run_id=" + name, "checkpoint.keep_last=9"});
  for (const std::string& set : sets) words.insert(words.end(), {"-s", set});
  const Outcome o = run_trainctl(dir.path(), words);
  INFO(o.err);
  REQUIRE(o.status == 0);
  return dir.path() + "/runs/" + name;
}

struct VerifyResult {
  int status = -1;
  Json json;
};
VerifyResult verify(const TemporaryFolder& dir, std::vector<std::string> words) {
  words.insert(words.begin(), {"--json", "verify"});
  const Outcome o = run_trainctl(dir.path(), words);
  INFO(o.out << o.err);
  REQUIRE_FALSE(o.out.empty());
  return {o.status, Json::parse(o.out)};
}

void replace_in(const std::string& path, const std::string& old, const std::string& by) {
  std::string text = read_file(path);
  const size_t at = text.find(old);
  REQUIRE(at != std::string::npos);
  write_file(path, text.replace(at, old.size(), by));
}

/// What a program before `data.documents` and `data.loss` leaves of a run: jobs without them, in the run and
/// in its checkpoints.
void make_older(const std::string& run) {
  const auto without = [](std::string text, const std::string& field, const std::string& value) {
    for (const std::string quote : {"\"", "\\\""}) {
      const std::string line = fmt::format("{0}{1}{0}: {0}{2}{0},", quote, field, value);
      if (const size_t at = text.find(line); at != std::string::npos) return text.erase(at, line.size());
    }
    FAIL("no " << field << " of " << value);
    return text;
  };
  std::vector<std::string> files = {run + "/job.json"};
  for (const auto& step : std::filesystem::directory_iterator(run + "/ckpt"))
    if (std::filesystem::exists(step.path() / "COMMIT")) files.push_back(step.path() / "manifest.json");
  REQUIRE(files.size() == 6);
  for (const std::string& file : files) {
    const std::string before = read_file(file);
    const std::string after = without(without(before, "documents", "ignore"), "loss", "all");
    write_file(file, after);
    if (file != files.front())
      replace_in(std::filesystem::path(file).parent_path() / "COMMIT", trainctl::sha256_hex(before),
                 trainctl::sha256_hex(after));
  }
}

/// The line of a step.
std::string line_of(const std::string& run, int64_t step) {
  std::istringstream lines(read_file(run + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    if (Json::parse(line)["step"] == step) return line;
  FAIL("no line of step " << step);
  return "";
}

/// 64 bytes out of the middle of a checkpoint's largest file, none of them part of a number 0.
std::string numbers_of(const std::string& checkpoint) {
  std::string file;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint))
    if (entry.is_regular_file() && (file.empty() || entry.file_size() > std::filesystem::file_size(file)))
      file = entry.path();
  const std::string bytes = read_file(file);
  for (size_t at = bytes.size() / 2 / 64 * 64; at + 64 < bytes.size(); at += 64) {
    const std::string part = bytes.substr(at, 64);
    if (part.find(std::string(2, '\0')) == std::string::npos) return part;
  }
  FAIL("no numbers in " << file);
  return "";
}

/// Flips a bit of each place in the process that holds `numbers`; how many there are.
int flip_bits(pid_t pid, const std::string& numbers) {
  int flipped = 0;
  std::istringstream maps(read_file(fmt::format("/proc/{}/maps", pid)));
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, inode = 0;
    char mode[5] = {}, rest[64] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %63s %*s %lu", &begin, &end, mode, rest, &inode) != 5)
      continue;
    if (mode[0] != 'r' || mode[1] != 'w' || inode != 0 || end - begin > (1ul << 30)) continue;
    std::string memory(end - begin, '\0');
    iovec to{memory.data(), memory.size()}, from{reinterpret_cast<void*>(begin), memory.size()};
    const ssize_t got = ::process_vm_readv(pid, &to, 1, &from, 1, 0);
    if (got <= 0) continue;
    memory.resize(size_t(got));
    for (size_t at = memory.find(numbers); at != std::string::npos; at = memory.find(numbers, at + 1)) {
      char byte = char(memory[at + 5] ^ 4);
      iovec own{&byte, 1}, there{reinterpret_cast<void*>(begin + at + 5), 1};
      flipped += ::process_vm_writev(pid, &own, 1, &there, 1, 0) == 1;
    }
  }
  return flipped;
}

}  // namespace

TEST_CASE("recorded steps are computed again and are the same, on any mesh; a changed record is found",
          "[verify]") {
  const TemporaryFolder dir;
  const std::string run = launch(dir, "base");
  const VerifyResult newest = verify(dir, {"base"});
  CHECK(newest.status == 0);
  CHECK(newest.json["verdict"] == "identical");
  CHECK(newest.json["from"] == 16);
  CHECK(newest.json["to"] == 20);
  CHECK(newest.json["equal_digests"] == 1);
  CHECK_FALSE(std::filesystem::exists(run + "/verify"));
  const VerifyResult start = verify(dir, {"base", "--step", "8", "--steps", "8", "-s", "parallelism.data=1",
                                          "-s", "parallelism.pipeline=1"});
  CHECK(start.status == 0);
  CHECK(start.json["verdict"] == "identical");
  CHECK(start.json["from"] == 0);
  CHECK(start.json["equal_digests"] == 1);  // a replay saves nothing on its way
  const VerifyResult nothing = verify(dir, {"base", "--step", "4"});
  CHECK(nothing.status == 20);
  CHECK(nothing.json["verdict"] == "undecided");
  CHECK_THAT(nothing.json["why"].get<std::string>(), Contains("--steps 4 begins at the run's start"));

  const std::string line = line_of(run, 18), norm = Json::parse(line)["grad_norm"].dump();
  replace_in(run + "/metrics.jsonl", norm, norm == "0.5" ? "0.25" : "0.5");
  const VerifyResult changed = verify(dir, {"base"});
  CHECK(changed.status == 20);
  CHECK(changed.json["verdict"] == "different");
  CHECK(changed.json["first_difference"]["step"] == 18);
  CHECK(changed.json["first_difference"]["number"] == "grad_norm");
  CHECK(changed.json["equal_steps"] == 3);
}

TEST_CASE("verify compares the digests of two runs; another run's checkpoint is not taken for the run's own",
          "[verify]") {
  const TemporaryFolder dir;
  const std::string base = launch(dir, "base");
  launch(dir, "wide",
         {"parallelism.data=4", "parallelism.pipeline=1", "parallelism.zero_stage=0",
          "observability.state_digest_every_steps=1"});
  const VerifyResult same = verify(dir, {"base", "--against", "wide"});
  CHECK(same.status == 0);
  CHECK(same.json["equal_digests"] == 5);  // 4, 8, 12, 16, 20
  launch(dir, "other", {"seed=99"});
  const VerifyResult different = verify(dir, {"wide", "--against", "other"});
  CHECK(different.status == 20);
  CHECK(different.json["first_difference"]["step"] == 1);

  std::filesystem::remove_all(base + "/ckpt/step-00000016");
  std::filesystem::copy(dir.path() + "/runs/other/ckpt/step-00000016", base + "/ckpt/step-00000016");
  const VerifyResult swapped = verify(dir, {"base"});
  CHECK(swapped.status == 20);
  CHECK_THAT(swapped.json["why"].get<std::string>(),
             Contains("the checkpoint of step 16 is not the state that the run recorded"));
}

TEST_CASE("a resume that verifies goes on where the steps are the same, and only there", "[verify]") {
  const TemporaryFolder dir;
  const std::string whole = launch(dir, "whole");
  write_file(dir.path() + "/job.json", tiny_spec("base"));
  const Outcome begun = run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=half",
                                                  "-s", "checkpoint.keep_last=9", "--max-steps", "12"});
  INFO(begun.err);
  const std::string half = dir.path() + "/runs/half";
  const std::string record = read_file(half + "/metrics.jsonl");
  const std::string loss = Json::parse(line_of(half, 10))["loss"].dump();
  replace_in(half + "/metrics.jsonl", loss, "1.25");
  const Outcome refused = run_trainctl(dir.path(), {"resume", "half", "--verify"});
  CHECK(refused.status == 7);
  CHECK_THAT(refused.err, Contains("the run does not go on: step 10 differs: loss recorded 1.25"));
  write_file(half + "/metrics.jsonl", record);
  const Outcome resumed = run_trainctl(dir.path(), {"resume", "half", "--verify=8"});
  INFO(resumed.err);
  CHECK(resumed.status == 0);
  CHECK_THAT(resumed.err, Contains("identical, bit for bit: steps 5 to 12"));
  CHECK(losses_of(half) == losses_of(whole));
  CHECK(run_trainctl(dir.path(), {"inspect-ckpt", half, "--diff", whole}).status == 0);
}

TEST_CASE("a run whose program knew no boundaries of documents is verified and branched from without them",
          "[verify]") {
  const TemporaryFolder dir;
  write_megatron(dir / "set", many_documents(100));
  const std::string set = fmt::format(R"(data.train=[{{"path": "{}"}}])", dir / "set");
  const std::string run = launch(dir, "older", {set, "data.documents=ignore"});
  make_older(run);
  CHECK(run_trainctl(dir.path(), {"inspect-ckpt", "--verify", run}).status == 0);
  const VerifyResult newest = verify(dir, {"older"});
  CHECK(newest.json["verdict"] == "identical");
  CHECK(newest.json["from"] == 16);
  const VerifyResult start = verify(dir, {"older", "--step", "8", "--steps", "8"});
  CHECK(start.json["verdict"] == "identical");
  CHECK(start.json["from"] == 0);
  // A new run of this data set keeps documents apart; one that begins from the older run goes on as that did.
  launch(dir, "new", {set});
  CHECK(losses_of(dir.path() + "/runs/new") != losses_of(run));
  const Outcome branch = run_trainctl(dir.path(), {"launch", "job.json", "-s", set, "-s",
                                                   "observability.run_id=branch", "--from", "older@8"});
  INFO(branch.err);
  REQUIRE(branch.status == 0);
  CHECK_THAT(branch.err, Contains("no change") && Contains("as the parent's"));
  CHECK(run_trainctl(dir.path(), {"inspect-ckpt", run, "--diff", dir.path() + "/runs/branch"}).status == 0);
}

TEST_CASE("a bit that flips in the memory of a rank is found, and the run goes back to its checkpoint",
          "[verify]") {
  const TemporaryFolder dir;
  const std::string whole = launch(dir, "whole");
  const std::vector<std::string> sets = {
      "observability.run_id=flipped", "fault_tolerance.max_restarts=1",
      "parallelism.data=4",           "parallelism.pipeline=1",
      "parallelism.zero_stage=0",     "observability.state_digest_every_steps=1"};
  std::vector<std::string> words = {trainctl_path(), "launch", "job.json"};
  for (const std::string& set : sets) words.insert(words.end(), {"-s", set});
  Child child(words, dir.path(), {stop_variable({{.rank = 2, .step = 9}})});
  const std::string run = dir.path() + "/runs/flipped";
  const pid_t rank = await_stopped_rank(child, run, 4, 2)[2];
  const std::string checkpoint = run + "/ckpt/step-00000008";
  REQUIRE(eventually(60, [&] { return std::filesystem::exists(checkpoint); }));
  const int flipped = flip_bits(rank, numbers_of(checkpoint));
  INFO(flipped << " places");
  CHECK(flipped > 0);
  REQUIRE(::kill(rank, SIGCONT) == 0);
  const Outcome o = child.wait(120);
  INFO(o.err);
  CHECK(o.status == 0);
  const std::vector<Json> restarts = events_of(run, "restart");
  REQUIRE(restarts.size() == 1);
  CHECK_THAT(restarts[0]["reason"].get<std::string>(),
             Contains("rank 2") && Contains("the memory of its device is at fault"));
  CHECK(restarts[0]["from_step"] == 8);
  CHECK(losses_of(run) == losses_of(whole));
  CHECK(run_trainctl(dir.path(), {"inspect-ckpt", run, "--diff", whole}).status == 0);
}
