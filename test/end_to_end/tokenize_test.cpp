// Goal: `trainctl data tokenize` that is killed (kill -9) ten times at random moments and repeated makes the bytes of an
// undisturbed run, and names where it goes on.
// Method: the program as a child, killed after a random time, or just after its progress was recorded; files compared.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "runtime/base/file_system.h"
#include "test/end_to_end/program.h"
#include "test/support/seed.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// Lines of JSON with seeded words, some of them bad.
std::string some_lines(size_t bytes) {
  std::mt19937 random(1);
  std::string lines;
  for (int i = 0; lines.size() < bytes; ++i) {
    if (i % 1000 == 999) lines += "not json\n";
    lines += "{\"id\":" + std::to_string(i) + ",\"text\":\"";
    for (int words = int(random() % 200); words > 0; --words) {
      for (int letters = 1 + int(random() % 8); letters > 0; --letters) lines += char('a' + random() % 26);
      lines += random() % 12 == 0 ? "\\n" : " ";
    }
    lines += "\"}\n";
  }
  return lines;
}

std::vector<std::string> names_in(const std::string& folder) { return real_file_system().list(folder); }

}  // namespace

TEST_CASE("data tokenize, killed ten times at random moments, makes the same files", "[tokenize]") {
  const uint64_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  TemporaryFolder folder;
  const std::string golden = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/";
  write_file(folder / "a.jsonl", some_lines(12'000'000));
  write_file(folder / "b.txt", some_lines(3'000'000));
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
  const auto whole = run_trainctl(folder.path(), command("whole"));
  INFO(whole.err);
  REQUIRE(whole.status == 0);
  REQUIRE(names_in(folder / "whole").size() == 6);

  const std::string progress = folder / "again/t.partial/progress.json";
  int kills = 0, resumed = 0;
  for (int starts = 0; kills < 10; ++starts) {
    REQUIRE(starts < 60);
    std::vector<std::string> words = command("again");
    words.insert(words.begin(), trainctl_path());
    Child child(words, folder.path());
    const std::string before = std::filesystem::exists(progress) ? read_file(progress) : "";
    const auto moves_on = [&] {
      std::error_code gone;
      return !child.running() || (std::filesystem::exists(progress, gone) && read_file(progress) != before);
    };
    // Every third kill at any moment, even before the first record; the others after one, so that the work ends.
    if (starts % 3 != 0) REQUIRE(eventually(60, moves_on));
    real_clock().sleep_s(double(random() % 250) / 1000);
    if (child.running()) {
      child.signal(SIGKILL);
      ++kills;
    }
    const Outcome end = child.wait(60);
    INFO(end.err);
    REQUIRE((end.status == 0 || end.status == 128 + SIGKILL));
    resumed += end.err.find("going on in again/t.partial: ") != end.err.npos;
    if (end.status != 0) {
      // Nothing but the unfinished work, unless it was killed while the files got their names.
      if (!std::filesystem::exists(folder / "again/t.bin"))
        CHECK(names_in(folder / "again") == std::vector<std::string>{"t.partial"});
      continue;
    }
    for (const std::string& name : names_in(folder / "whole"))
      CHECK(read_file(folder / ("again/" + name)) == read_file(folder / ("whole/" + name)));
    std::filesystem::remove_all(folder / "again");
  }
  CHECK(resumed >= 3);
  const Outcome last = run_trainctl(folder.path(), command("again"));
  REQUIRE(last.status == 0);
  CHECK(names_in(folder / "again") == names_in(folder / "whole"));
  for (const std::string& name : names_in(folder / "whole"))
    CHECK(read_file(folder / ("again/" + name)) == read_file(folder / ("whole/" + name)));
}
