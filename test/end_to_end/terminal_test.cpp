// Goal: what a person types about real runs works: list, logs, compare, top, the line of progress, CSV; a
// full screen gives the terminal back however it ends.
// Method: the real program on runs with and without a failure; screens and keys in a pseudo terminal.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <regex>

#include "runtime/base/json.h"
#include "runtime/observe/text_table.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/end_to_end/shown_runs.h"
#include "test/support/pseudo_terminal.h"
#include "test/support/temporary_folder.h"

using trainctl::Json;
using namespace trainctl::test;
using Catch::Matchers::Contains;
using trainctl::columns_of;

namespace {

constexpr const char* kToTheScreen = "\033[?1049h";
constexpr const char* kBack = "\033[?1049l";

/// Begins each frame of `top`.
constexpr const char* kFrame = "\033[H";

int widest(const std::string& text) {
  int most = 0;
  for (const std::string& line : shown_lines(text)) most = std::max(most, columns_of(line));
  return most;
}

}  // namespace

TEST_CASE("list, compare and logs of runs", "[terminal]") {
  const Outcome listed = ran({"list"});
  for (const char* run : {"hurt", "narrow", "other"}) {
    INFO(listed.out);
    const std::regex row(fmt::format(R"(\n{} +paused +60/400 +\d\.\d{{4}} +60 +\d)", run));
    CHECK(std::regex_search(listed.out, row));
  }

  const Outcome same = ran({"compare", "hurt", "narrow"});
  INFO(same.out << same.err);
  CHECK(same.status == 0);
  CHECK_THAT(
      same.out,
      Contains(
          "identical, bit for bit: loss, grad_norm, lr, tokens, val_loss of 60 steps in both (1 to 60)"));
  CHECK_THAT(same.out,
             Contains("identical: the root hash, which covers the whole state, of 6 checkpoints (10, "
                      "20, 30, 40, 50 and 60)"));
  CHECK_THAT(same.out, Contains("parallelism.data") && Contains("2 (job.json:6)") && Contains("1 (--set)"));
  const Outcome different = ran({"compare", "hurt", "other", "--json"});
  CHECK(different.status == 20);
  const Json found = Json::parse(different.out);
  CHECK(found["steps"]["first_difference"]["step"] == 1);
  CHECK(found["steps"]["first_difference"]["number"] == "lr");
  CHECK_THAT(
      found["spec"].dump(),
      Contains(
          R"("path":"schedule.lr","runs":[{"origin":"job.json:5","value":0.003},{"origin":"--set","value":0.001}])"));
  // The bits are those of metrics.jsonl.
  const auto a = losses_of(folder_of("hurt")), b = losses_of(folder_of("other"));
  const auto& largest = found["steps"]["largest_difference_of_loss"];
  const size_t at = largest["step"].get<size_t>() - 1;
  CHECK(largest["values"][0].get<double>() == a[at]);
  CHECK(largest["values"][1].get<double>() == b[at]);

  const Outcome none = ran({"logs", "hurt", "--rank", "0,9"});
  CHECK(none.status == 2);
  CHECK_THAT(none.err, Contains("--rank: hurt has the ranks 0 to "));
  const Outcome logs = ran({"logs", "hurt", "--rank", "2"});
  for (const std::string& line : lines_of(logs.out)) CHECK_THAT(line, Contains("rank 2 | "));
  CHECK_THAT(logs.out, Contains("attempt 1 rank 2 pid") && Contains("attempt 2 rank 2 pid"));
  CHECK_THAT(ran({"logs", "hurt", "--grep", "killed by signal (9|11)"}).out,
             Contains("failure") && Contains("rank 2") && !Contains("attempt "));
  CHECK_THAT(ran({"logs", "hurt", "--failure", "last"}).out, Contains("(failure 1) | "));
  CHECK(lines_of(ran({"logs", "hurt", "-n", "3"}).out).size() == 3);
  CHECK_THAT(ran({"logs", "hurt", "--grep", "("}).err, Contains("is not an extended regular expression"));
  CHECK(ran({"logs", "narrow", "--failure", "last"}).status == 2);
  CHECK(ran({"logs", "hurt", "--failure", "2"}).status == 2);
}

TEST_CASE("logs follow a run to its end", "[terminal]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("followed"));
  Child run({trainctl_path(), "launch", "job.json", "-s", "observability.run_id=f", "-s",
             "schedule.total_steps=100000"},
            dir.path());
  REQUIRE(eventually(60, [&] { return line_count(dir.path() + "/runs/f/metrics.jsonl") >= 3; }));
  Child follow({"/bin/sh", "-c", "exec " + trainctl_path() + " logs f --follow --rank 1 >lines 2>&1"},
               dir.path());
  const auto lines = [&] {
    return std::filesystem::exists(dir / "lines") ? read_file(dir / "lines") : std::string();
  };
  REQUIRE(eventually(120, [&] { return lines().find("attempt 1 rank 1") != std::string::npos; }));
  REQUIRE(follow.running());
  std::ofstream(dir / "runs/f/logs/rank-1.log", std::ios::app) << "a late line\n";
  REQUIRE(eventually(120, [&] { return lines().find("rank 1 | a late line") != std::string::npos; }));
  CHECK(run_trainctl(dir.path(), {"stop", "f"}).status == 0);
  CHECK(run.wait(60).status == 75);
  CHECK(follow.wait(120).status == 0);
}

TEST_CASE("the steps of runs as CSV have the bits of metrics.jsonl", "[terminal]") {
  const Outcome o = ran({"report", "hurt", "other", "--csv", "-"});
  const auto rows = lines_of(o.out);
  REQUIRE(rows.size() > 21);
  CHECK_THAT(rows[0], Contains("run,step,unix_s,attempt,tokens,loss,val_loss,"));
  std::vector<double> losses;
  for (const std::string& row : rows)
    if (row.starts_with("hurt,")) {
      size_t at = 0;
      for (int comma = 0; comma < 5; ++comma) at = row.find(',', at) + 1;
      losses.push_back(std::stod(row.substr(at)));
    }
  CHECK(losses == losses_of(folder_of("hurt")));
  CHECK(ran({"report", "hurt", "--csv", "steps.csv"}).status == 0);
  CHECK(lines_of(read_file(shown_runs() / "steps.csv")).size() == losses.size() + 1);
  CHECK(ran({"report", "hurt", "--csv", "nowhere/steps.csv"}).status == 2);
}

TEST_CASE("top without a terminal is one frame as text", "[terminal]") {
  const Outcome o = ran({"top", "hurt"});
  INFO(o.out << o.err);
  CHECK(o.status == 0);
  CHECK_THAT(o.out, Contains("run      hurt · ") && Contains("attempt 2 · 1 restart") &&
                        Contains("ranks    4 · computed"));
  CHECK_THAT(o.out, Contains("failure") && !Contains("\033"));
}

TEST_CASE("top on a screen: keys, a new size, and the terminal as it was at every end", "[terminal]") {
  const std::vector<std::string> words = {trainctl_path(), "top", "hurt", "--every", "0.2"};
  {
    PseudoTerminal t(words, shown_runs().path(), 100, 30);
    REQUIRE(t.shows(kToTheScreen));
    REQUIRE(t.shows("s slowest first · r a rank · arrows select · q quit"));
    CHECK_FALSE(t.is_ordinary());
    t.press("s");
    REQUIRE(t.shows("slowest "));
    REQUIRE(t.shows("s by rank"));
    t.press("r");
    CHECK(t.shows("of its stage's median"));
    t.press("\033[C\033[1;5D");  // arrows are no letters
    CHECK(t.shows("r no rank"));
    CHECK(widest(t.all()) <= 100);
    const size_t before = t.all().size();
    t.resize(40, 12);
    // Frames of the old size may still come first.
    bool fits = false;
    for (int frame = 0; frame < 50 && !fits; ++frame) {
      REQUIRE(t.shows(kFrame));
      const size_t end = t.all().rfind(kFrame), begin = t.all().rfind(kFrame, end - 1);
      fits = begin != std::string::npos && begin >= before && widest(t.all().substr(begin, end - begin)) <= 40;
    }
    CHECK(fits);
    const size_t narrow = t.all().rfind(kFrame);
    REQUIRE(t.shows("run      hurt"));
    REQUIRE(t.shows("s by rank"));
    CHECK(widest(t.all().substr(narrow)) <= 40);
    // Ctrl-Z gives the screen back, fg draws it again.
    t.press("\x1a");
    REQUIRE(t.stopped());
    CHECK(t.all().rfind(kBack) > t.all().rfind(kToTheScreen));
    CHECK(t.is_ordinary());
    t.signal(SIGCONT);
    REQUIRE(t.shows(kToTheScreen));
    REQUIRE(t.shows("s by rank"));
    CHECK_FALSE(t.is_ordinary());
    t.press("q");
    CHECK(t.wait() == 0);
    CHECK(t.is_ordinary());
    CHECK(t.all().rfind(kBack) > t.all().rfind(kToTheScreen));
    CHECK_THAT(t.all(), Contains("\033[?25h"));
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    PseudoTerminal t(words, shown_runs().path(), 80, 24);
    REQUIRE(t.shows("q quit"));
    if (signal == SIGINT)
      t.press("\x03");
    else
      t.signal(signal);
    CHECK(t.wait() == 0);
    CHECK(t.is_ordinary());
    CHECK(t.all().rfind(kBack) > t.all().rfind("q quit"));
  }
}

TEST_CASE("top has no colours where they are not wanted", "[terminal]") {
  PseudoTerminal colored({trainctl_path(), "top", "hurt"}, shown_runs().path(), 80, 24);
  REQUIRE(colored.shows("q quit"));
  CHECK_THAT(colored.all(), Contains("\033[32m"));
  PseudoTerminal plain({"/usr/bin/env", "NO_COLOR=1", trainctl_path(), "top", "hurt"}, shown_runs().path(),
                       80, 24);
  REQUIRE(plain.shows("q quit"));
  CHECK_THAT(plain.all(), !Contains("\033[32m") && !Contains("\033[1m"));
}

TEST_CASE("the line of progress fits the terminal as it is now", "[terminal]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("wide"));
  PseudoTerminal t({trainctl_path(), "launch", "job.json", "-s", "schedule.total_steps=100000", "-s",
                    "checkpoint.every_steps=0"},
                   dir.path(), 120, 24);
  REQUIRE(t.shows("tok/s"));
  REQUIRE(t.shows("goodput"));
  CHECK(t.shows("eta "));
  t.resize(40, 24);
  t.forget();
  for (int i = 0; i < 3; ++i) REQUIRE(t.shows("\r "));  // one may have been on its way
  t.forget();
  const size_t begin = t.all().size();
  for (int i = 0; i < 5; ++i) REQUIRE(t.shows("eta "));
  // What else the run has to say, for example that a rank is slow, is as long as it is.
  int most = 0;
  for (const std::string& line : shown_lines(t.all().substr(t.all().find('\r', begin))))
    if (line.find("eta ") != std::string::npos) most = std::max(most, columns_of(line));
  CHECK((most > 0 && most < 40));
  t.press("\x03");
  CHECK(t.wait() == 75);
  CHECK_THAT(t.all(), Contains("\033[36m"));
}
