// Goal: data that change under a run end it with their name and status 6, whether they are cut, written to or
// replaced before it restarts by itself; with the old file back, a resume has the bits of an undisturbed run.
// Method: the real program; one rank stops itself, so that the files change at a known step.
#include <fmt/format.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Contains;

namespace {

namespace stdfs = std::filesystem;

constexpr int kStep = 7, kStopped = 1;

/// Writes over the bytes of a file without cutting it first: a rank that reads a mapped file in the moment when
/// it is empty is killed, and the run goes on by itself once the bytes are there again.
void write_in_place(const std::string& path, const std::string& bytes) {
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << bytes;
}

struct Disturbed {
  TemporaryFolder dir;
  std::string tokens = dir / "tokens.bin", val = dir / "val.bin", whole;

  /// `bytes`: the least that the tokens have.
  explicit Disturbed(size_t bytes = 0) {
    const std::string golden = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/llama-tiny/tokens.bin";
    for (const std::string& path : {tokens, val}) stdfs::copy_file(golden, path);
    std::string longer;
    for (const std::string part = read_file(golden); longer.size() < bytes;) longer += part;
    if (bytes > 0) write_file(tokens, longer);
    std::string spec = tiny_spec("tiny");
    spec.replace(spec.find(golden), golden.size(), tokens);
    write_file(dir / "job.json", spec);
    REQUIRE(run_trainctl(dir.path(), words_of("whole")).status == 0);
    whole = run_of(dir.path(), "whole");
  }
  std::vector<std::string> words_of(const std::string& name) const {
    return {"launch", "job.json",
            "-s",     "name=" + name,
            "-s",     "fault_tolerance.max_restarts=3",
            "-s",     "eval.every_steps=2",
            "-s",     "eval.max_tokens=256",
            "-s",     fmt::format(R"(data.val=[{{"path": "{}", "format": "raw", "dtype": "uint16"}}])", val),
            "-s",     "data.prefetch_batches=1"};
  }
  /// Starts a run, and changes the files while a rank is stopped, which then goes on or is killed.
  Outcome change(const std::string& name, const std::function<void()>& change_files, int signal) const {
    std::vector<std::string> words = words_of(name);
    words.insert(words.begin(), trainctl_path());
    Child child(words, dir.path(), {stop_variable({{.rank = kStopped, .step = kStep}})});
    REQUIRE(eventually(60, [&] { return !run_of(dir.path(), name).empty(); }));
    const std::vector<pid_t> ranks = await_stopped_rank(child, run_of(dir.path(), name), 4, kStopped);
    change_files();
    // Where bytes are gone, another rank may have read on and ended all.
    const bool is_there = ::kill(ranks[kStopped], signal) == 0;
    CHECK((is_there || signal == SIGCONT));
    return child.wait(120);
  }
  void require_resumes(const std::string& name) const {
    const std::string run = run_of(dir.path(), name);
    const Outcome o = run_trainctl(dir.path(), {"resume", run});
    INFO(o.err);
    REQUIRE(o.status == 0);
    CHECK(losses_of(run) == losses_of(whole));
    CHECK(run_trainctl(dir.path(), {"inspect-ckpt", run, "--diff", whole}).status == 0);
  }
};

}  // namespace

TEST_CASE("data that change under a run end it with their name", "[fault]") {
  const Disturbed bench;
  const std::string kept = read_file(bench.tokens);
  const auto replaced = [&](const std::string& path) {
    return [path] {
      std::string bytes = read_file(path);
      bytes[2] ^= 1;
      write_file(path + ".new", bytes);
      stdfs::rename(path + ".new", path);
    };
  };
  struct Change {
    const char* name;
    std::function<void()> files;
    int signal;
    std::string says;
  };
  const Change changes[] = {
      {"cut", [&] { stdfs::resize_file(bench.tokens, 4096); }, SIGCONT, bench.tokens},
      {"written", [&] { write_in_place(bench.tokens, kept); }, SIGCONT, bench.tokens},
      {"replaced", replaced(bench.tokens), SIGKILL,
       bench.tokens + " is not the file that the run began with"},
      {"val", replaced(bench.val), SIGKILL, bench.val + " is not the file that the run began with"},
  };
  for (const Change& change : changes) {
    CAPTURE(change.name);
    const Outcome o = bench.change(change.name, change.files, change.signal);
    INFO(o.err);
    CHECK(o.status == 6);
    CHECK_THAT(o.err, Contains(change.says) && Contains("trainctl resume"));
    for (const std::string& path : {bench.tokens, bench.val}) write_file(path, kept);
    bench.require_resumes(change.name);
  }
}

TEST_CASE("a change in the middle of a large file is found before the next attempt", "[fault]") {
  // Of a file this large the first and last MiB are compared when it is opened.
  const Disturbed bench(3 << 20);
  const std::string kept = read_file(bench.tokens);
  const auto rewritten = [&](size_t changed) {
    return [&, changed] {
      REQUIRE(eventually(60, [&] {
        const std::string record = run_of(bench.dir.path(), "middle") + "/data.files.json";
        return stdfs::exists(record) && read_file(record).find(bench.tokens) != std::string::npos;
      }));
      std::string bytes = kept;
      bytes[bytes.size() / 2] ^= char(changed);
      write_file(bench.tokens + ".new", bytes);
      stdfs::rename(bench.tokens + ".new", bench.tokens);
    };
  };
  const Outcome same = bench.change("middle", rewritten(0), SIGKILL);
  INFO(same.err);
  CHECK(same.status == 0);
  CHECK_THAT(same.err, Contains(bench.tokens + " was written to since the run began"));
  stdfs::remove_all(run_of(bench.dir.path(), "middle"));
  const Outcome other = bench.change("middle", rewritten(1), SIGKILL);
  INFO(other.err);
  CHECK(other.status == 6);
  CHECK_THAT(other.err, Contains(bench.tokens + " is not the file that the run began with: digest"));
  write_file(bench.tokens, kept);
  bench.require_resumes("middle");
}
