// Goal: `trainctl data tokenize` that is killed (kill -9) ten times at random moments and repeated makes the
// bytes of an undisturbed run, and names where it goes on.
// Method: the program as a child, killed after a random time, or just after its progress was recorded, or
// ended by a file that may not grow further; files compared.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "runtime/base/file_system.h"
#include "test/end_to_end/killed_tokenize.h"
#include "test/end_to_end/program.h"
#include "test/support/seed.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr const char* kGoingOn = "going on in again/t.partial: ";

/// None where a process was killed before it made the folder.
std::vector<std::string> names_in(const std::string& folder) {
  if (!std::filesystem::exists(folder)) return {};
  return real_file_system().list(folder);
}

}  // namespace

TEST_CASE("data tokenize, killed ten times at random moments, makes the same files", "[tokenize]") {
  const uint64_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  TemporaryFolder folder;
  const std::string golden = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/";
  write_file(folder / "a.jsonl", seeded_lines(12'000'000, 1, 1000));
  write_file(folder / "b.txt", seeded_lines(3'000'000, 1, 1000));
  const auto command = [&](const std::string& out) {
    // A pattern without a scanner of its own: slow enough to be killed.
    return std::vector<std::string>{"data",
                                    "tokenize",
                                    "a.jsonl",
                                    "b.txt",
                                    golden + "parquet/list-1.parquet",
                                    "--out",
                                    out + "/t",
                                    "--tokenizer",
                                    golden + "tokenizers/cased.json",
                                    "--split",
                                    "9:1",
                                    "--separator",
                                    "not json",
                                    "--skip-bad"};
  };
  const double start_s = real_clock().monotonic_s();
  const auto whole = run_trainctl(folder.path(), command("whole"));
  const double longest_s = std::min(0.25, (real_clock().monotonic_s() - start_s) / 2);
  INFO(whole.err);
  REQUIRE(whole.status == 0);
  REQUIRE(names_in(folder / "whole").size() == 6);

  const std::string progress = folder / "again/t.partial/progress.json";
  int kills = 0;
  for (int starts = 0; kills < 10; ++starts) {
    REQUIRE(starts < 60);
    std::vector<std::string> words = command("again");
    words.insert(words.begin(), trainctl_path());
    Child child(words, folder.path());
    // Every third kill at any moment, even before the first record.
    const bool any_moment = starts % 3 == 0, had_begun = std::filesystem::exists(progress);
    kills += kill_some_time(child, progress, any_moment, longest_s, random);
    const Outcome end = child.wait(60);
    INFO(end.err);
    REQUIRE((end.status == 0 || end.status == 128 + SIGKILL));
    if (had_begun && (end.status == 0 || !any_moment)) CHECK_THAT(end.err, Catch::Contains(kGoingOn));
    if (!is_tokenized(folder / "again/t")) {
      REQUIRE(end.status != 0);
      // Nothing but the unfinished work, unless it was killed while the files got their names.
      if (!std::filesystem::exists(folder / "again/t.bin"))
        for (const std::string& name : names_in(folder / "again")) CHECK(name == "t.partial");
      continue;
    }
    for (const std::string& name : names_in(folder / "whole"))
      CHECK(read_file(folder / ("again/" + name)) == read_file(folder / ("whole/" + name)));
    std::filesystem::remove_all(folder / "again");
  }
  // And once at a place that is certain: in the middle of the tokens. A fast machine gets there before anything
  // was recorded, and begins again.
  std::filesystem::remove_all(folder / "again");
  std::vector<std::string> limited = {"bash", "-c", "ulimit -f 3000; exec \"$0\" \"$@\"", trainctl_path()};
  for (const std::string& word : command("again")) limited.push_back(word);
  const Outcome cut = Child(limited, folder.path()).wait(60);
  INFO(cut.err);
  REQUIRE(cut.status != 0);
  const bool had_begun = std::filesystem::exists(progress);
  const Outcome last = run_trainctl(folder.path(), command("again"));
  REQUIRE(last.status == 0);
  CHECK((last.err.find(kGoingOn) != std::string::npos) == had_begun);
  CHECK(names_in(folder / "again") == names_in(folder / "whole"));
  for (const std::string& name : names_in(folder / "whole"))
    CHECK(read_file(folder / ("again/" + name)) == read_file(folder / ("whole/" + name)));
}

TEST_CASE("a tokenize that is interrupted says how it goes on", "[tokenize]") {
  TemporaryFolder folder;
  write_file(folder / "a.jsonl", seeded_lines(12'000'000, 1, 1000));
  Child child({trainctl_path(), "data", "tokenize", "a.jsonl", "--skip-bad", "--out", "t", "--tokenizer",
               std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/tokenizers/cased.json"},
              folder.path());
  REQUIRE(eventually(60, [&] {
    return std::filesystem::exists(folder / "t.partial/progress.json") || !child.running();
  }));
  child.signal(SIGINT);
  const Outcome end = child.wait(60);
  if (is_tokenized(folder / "t")) return;  // it was done before
  CHECK(end.status == 128 + SIGINT);
  CHECK_THAT(end.err, Catch::Contains(
                          "stopped; what is done is kept in t.partial: the same command goes on from there"));
}
