// Goal: the report of a real run that failed and was resumed has each step once, with the bits of
// metrics.jsonl, its events and its lost steps; the page holds the same data; the live page answers and ends.
// Method: the real program: launch with a kill -9 of a rank, stop, resume, report; status --serve over HTTP
// (curl).
#include <fmt/format.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/end_to_end/shown_runs.h"
#include "test/support/temporary_folder.h"
#include "test/support/tolerances.h"

using trainctl::Json;
using namespace trainctl::test;
using Catch::Matchers::Contains;

namespace {

std::string fetched(const std::string& url, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"curl", "-s", "-w", "\n%{http_code}", "-o", "-", url};
  words.insert(words.end(), more.begin(), more.end());
  const TemporaryFolder folder;  // for what it says
  return Child(words, folder.path()).wait(120).out;
}

/// What the time of a run was spent on adds up to that of the test's own clock, but for what lies before its
/// first record and behind its last one.
void check_ledger(const Json& time, const std::string& run, double began_unix_s, double ended_unix_s) {
  const double first = events_of(run, "supervisor").front()["t"], last = events_of(run, "end").back()["t"];
  const double wall_s = time["wall_s"];
  INFO(time.dump(1));
  const double outside_s = ended_unix_s - began_unix_s - (first - began_unix_s) - (ended_unix_s - last);
  CHECK(std::abs(wall_s - outside_s) <= tolerance::kWallTime * outside_s);
  double sum = 0, rank_sum = 0, ranks = 0;
  for (const auto& [cause, seconds] : time["seconds"].items()) {
    CHECK(seconds.get<double>() >= 0);
    sum += seconds.get<double>();
  }
  for (const auto& [cause, seconds] : time["rank_seconds"].items()) rank_sum += seconds.get<double>();
  for (const Json& attempt : time["attempts"])
    ranks += attempt["ranks"].get<double>() * (attempt["end"].get<double>() - attempt["begin"].get<double>());
  CHECK(std::abs(sum - outside_s) <= tolerance::kWallTime * outside_s);
  CHECK(std::abs(rank_sum - ranks) <= tolerance::kWallTime * ranks);
  for (const char* cause :
       {"training", "bubble", "saving", "recomputed", "recovering", "starting", "loading", "stopped"}) {
    CAPTURE(cause);
    CHECK(time["seconds"][cause] > 0);
  }
  // A busy machine may bring the times of all ranks too late for a step's line, which then lacks them.
  bool all_known = true;
  for (const auto& file : std::filesystem::directory_iterator(run)) {
    const std::string name = file.path().filename();
    if (name != "metrics.jsonl" && !name.starts_with("metrics.superseded-")) continue;
    std::istringstream lines(read_file(file.path()));
    for (std::string line; std::getline(lines, line);) all_known &= Json::parse(line).contains("ranks");
  }
  if (all_known) CHECK(time["seconds"]["unknown"] == 0);
  CHECK(time["attempts"].size() == 3);
}

}  // namespace

TEST_CASE("the report of a run with a failure and a resume", "[report]") {
  const TemporaryFolder dir;
  const double began_unix_s = trainctl::real_clock().unix_s();
  write_file(dir.path() + "/job.json", tiny_spec("shown"));
  const std::string run = run_with_failure(dir, "shown");
  const Outcome resumed = run_trainctl(dir.path(), {"resume", "shown", "--max-steps", "70"});
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  const double ended_unix_s = trainctl::real_clock().unix_s();
  const Outcome made = run_trainctl(dir.path(), {"report", "shown"});
  INFO(made.err);
  REQUIRE(made.status == 0);
  CHECK_THAT(made.out, Contains("runs/shown/report.html"));
  const Json data = Json::parse(run_trainctl(dir.path(), {"--json", "report", "shown"}).out);
  const Json shown = data["runs"][0];
  CHECK(shown["step"] == 70);
  CHECK(shown["state"] == "paused");
  REQUIRE(shown["curves"]["columns"]["step"].size() == 70);
  const std::vector<double> losses = losses_of(run);
  for (size_t i = 0; i < 70; ++i) {
    CHECK(shown["curves"]["columns"]["step"][i] == i + 1);
    // Seven digits are shown.
    CHECK(shown["curves"]["columns"]["loss"][i] == Json::parse(fmt::format("{:.7g}", losses[i])));
  }
  // Three attempts; times go up within the run.
  CHECK(shown["curves"]["columns"]["attempt"].front() == 1);
  CHECK(shown["curves"]["columns"]["attempt"].back() == 3);
  CHECK(shown["time"]["lost_steps"].get<int>() >= 1);
  CHECK(shown["time"]["goodput"].get<double>() > 0);
  CHECK(shown["time"]["goodput"].get<double>() < 1);
  check_ledger(shown["time"], run, began_unix_s, ended_unix_s);
  CHECK(Json::parse(run_trainctl(dir.path(), {"--json", "status", "shown"}).out)["time"] == shown["time"]);
  CHECK_THAT(run_trainctl(dir.path(), {"status", "shown"}).out, Contains("time       goodput "));
  CHECK_THAT(read_file(run + "/trainctl.prom"),
             Contains("trainctl_rank_seconds{run=\"shown\",cause=\"bubble\"} "));
  std::string marks;
  for (const Json& event : shown["happenings"]["events"]) marks += event["mark"].get<std::string>() + " ";
  CHECK_THAT(marks, Contains("start") && Contains("failure") && Contains("restart") &&
                        Contains("checkpoint") && Contains("end"));
  CHECK(shown["ranks"]["ranks"] == 4);
  CHECK(shown["ranks"]["steps"].size() >= 30);  // every second step of 400, and what was done again
  CHECK(shown["plan"]["memory"].size() == 2);
  CHECK(shown["plan"]["memory"][0].contains("measured"));
  // The page has the same numbers in it.
  const std::string page = read_file(run + "/report.html");
  CHECK_THAT(page, Contains(shown["curves"]["columns"]["loss"].dump()));
  // Two runs side by side.
  REQUIRE(run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=other", "-s",
                                    "schedule.lr=1e-3", "--max-steps", "5"})
              .status == 0);
  const Json two = Json::parse(run_trainctl(dir.path(), {"--json", "report", "shown", "other"}).out);
  REQUIRE(two["runs"].size() == 2);
  CHECK_THAT(two["differences"].dump(), Contains(R"(["schedule.lr","0.003","0.001"])"));
  CHECK(run_trainctl(dir.path(), {"report", "shown", "other", "--out", "both.html"}).status == 0);
  CHECK_THAT(read_file(dir.path() + "/both.html"), Contains("2 runs"));
  CHECK(run_trainctl(dir.path(), {"report", "shown", "--out", "no/folder.html"}).status == 2);
}

TEST_CASE("the report of a run with experts and cut sequences shows how both are used", "[report]") {
  const TemporaryFolder dir;
  write_file(dir / "job.json", expert_spec("experts"));
  const Outcome done =
      run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=experts"}, 300);
  INFO(done.err);
  REQUIRE(done.status == 0);
  const std::string run = dir / "runs/experts";
  CHECK(line_count(run + "/metrics.experts.jsonl") == 4);  // every fifth step of 20
  const Json data = Json::parse(run_trainctl(dir.path(), {"--json", "report", "experts"}).out)["runs"][0];
  const Json experts = data["experts"];
  CHECK(experts["steps"] == Json({5, 10, 15, 20}));
  CHECK(experts["layers"] == Json({0, 1, 2, 3}));
  CHECK(experts["map"]["step"] == 20);
  REQUIRE(experts["map"]["load"].size() == 4);
  for (const Json& loads : experts["map"]["load"]) {
    double sum = 0;
    for (const Json& load : loads) sum += load.get<double>();
    CHECK(sum == Approx(4).epsilon(0.01));  // multiples of the mean of 4 experts
  }
  CHECK(experts["bias_most"][3].size() == 4);
  for (const char* part : {"experts_s", "context_s"}) {
    double most = 0;
    for (const Json& value : data["curves"]["columns"][part])
      most = std::max(most, value.is_null() ? 0 : value.get<double>());
    CHECK(most > 0);
  }
  REQUIRE(run_trainctl(dir.path(), {"report", "experts"}).status == 0);
  CHECK_THAT(read_file(run + "/report.html"), Contains(experts["map"]["load"].dump()));
  CHECK_THAT(run_trainctl(dir.path(), {"status", "experts"}).out,
             Contains("experts    ") && Contains("× the mean at most (layer ") && Contains(" · step 20") &&
                 Contains("a step for other ranks, of which experts ") && Contains(" and context "));
}

TEST_CASE("the live page answers, asks for its token, and ends with a signal", "[report]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("live"));
  REQUIRE(
      run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=live", "--max-steps", "3"})
          .status == 0);
  // Its output goes to a file that is read while it runs.
  const auto serve = [&](const std::string& address) {
    return std::make_unique<Child>(
        std::vector<std::string>{
            "/bin/sh", "-c", "exec " + trainctl_path() + " status live --serve " + address + " >url 2>&1"},
        dir.path());
  };
  const auto url_of = [&] {
    REQUIRE(eventually(120, [&] { return read_file(dir.path() + "/url").find('\n') != std::string::npos; }));
    const std::string text = read_file(dir.path() + "/url");
    return text.substr(0, text.find(' '));
  };
  auto open = serve("127.0.0.1:0");
  const std::string url = url_of();
  CHECK_THAT(fetched(url), Contains("report-data") && Contains("\"live\":true") && Contains("\n200"));
  const std::string report = fetched(url + "api/report");
  CHECK_THAT(report, Contains("\n200"));
  CHECK(Json::parse(report.substr(0, report.rfind('\n')))["runs"][0]["step"] == 3);
  CHECK_THAT(fetched(url + "api/status"), Contains("\"supervised\":false"));
  CHECK_THAT(fetched(url + "metrics"),
             Contains("trainctl_step{run=\"live\"} 3") &&
                 Contains("trainctl_time_seconds{run=\"live\",cause=\"training\"} "));
  CHECK_THAT(fetched(url + "api/status"), Contains("\"rank_seconds\""));
  CHECK_THAT(fetched(url + "nothing"), Contains("404"));
  CHECK_THAT(fetched(url, {"-H", "Host: evil.example"}), Contains("403") && !Contains("report-data"));
  // A second server at the same port: one sentence.
  const std::string at = url.substr(7, url.size() - 8);
  const Outcome taken = run_trainctl(dir.path(), {"status", "live", "--serve", at});
  CHECK(taken.status == 5);
  CHECK_THAT(taken.err, Contains("is in use by another program"));
  open->signal(SIGINT);
  CHECK(open->wait(120).status == 0);

  std::filesystem::remove(dir.path() + "/url");
  auto guarded = serve("0.0.0.0:0");
  const std::string with_token = url_of();
  const std::string token = with_token.substr(with_token.find("token=") + 6);
  REQUIRE(token.size() == 32);
  const size_t port = with_token.rfind(':', with_token.find('?'));
  const std::string here = "http://127.0.0.1" + with_token.substr(port, with_token.find('?') - port);
  CHECK_THAT(fetched(here), Contains("401") && !Contains("report-data"));
  CHECK_THAT(fetched(here + "metrics"), Contains("401") && !Contains("trainctl_step"));
  CHECK_THAT(fetched(here + "?token=" + token), Contains("report-data") && Contains("\n200"));
  CHECK_THAT(fetched(here + "metrics", {"-H", "Authorization: Bearer " + token}), Contains("trainctl_step"));
  CHECK_THAT(fetched(here + "api/report", {"-b", "trainctl_token=" + token}), Contains("\n200"));
  CHECK_THAT(fetched(here + "api/report?token=" + std::string(32, '0')), Contains("401"));
  guarded->signal(SIGTERM);
  CHECK(guarded->wait(120).status == 0);
}
