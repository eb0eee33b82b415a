// Goal: a mistake in what watches a run is found in the spec, with its code, its place and what to do.
// Method: a sound job with one bad value each.
#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/spec/pages/pages.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

struct Mistake {
  std::vector<std::string> overrides, expected;
};

const std::vector<Mistake> kMistakes = {
    {{"observability.loss_monitor.policy=rollback"},
     {"E0203 `observability.loss_monitor.policy` cannot be \"rollback\""}},
    {{"observability.loss_monitor.window=4"},
     {"E0202 `observability.loss_monitor.window` = 4 is out of range"}},
    {{"observability.loss_monitor.window=16"},
     {"E0710 a divergence of 20 steps cannot be compared with a window of 16"}},
    {{"observability.loss_monitor.policy=skip"},
     {"W0602 a run that goes back for its loss begins at step 0 again: no checkpoint is saved before the "
      "end"}},
    {{"observability.alerts.webhook=hooks.example.org/x"},
     {"E0711 `observability.alerts.webhook` is no address of a web server"}},
    {{"observability.alerts.webhook=ftp://hooks.example.org/x"},
     {"E0711 `observability.alerts.webhook` is no address of a web server"}},
    {{"observability.alerts.webhook=https:///x"},
     {"E0711 `observability.alerts.webhook` is no address of a web server"}},
    {{R"(observability.alerts.on=["spikes"])"}, {"E0203 `observability.alerts.on` cannot be \"spikes\""}},
    {{"observability.alerts.goodput_below_percent=101"},
     {"E0202 `observability.alerts.goodput_below_percent` = 101 is out of range"}},
    {{"observability.alerts.tries=0"}, {"E0202 `observability.alerts.tries` = 0 is out of range"}},
};

ParsedJob parsed(const std::vector<std::string>& overrides) {
  return parse_job({.text = R"({"version": 1, "model": {"preset": "llama-tiny"},
 "data": {"train": [{"path": "a.idx"}]}, "schedule": {"total_steps": 10}})",
                    .file = "job.json",
                    .overrides = overrides});
}

}  // namespace

TEST_CASE("each mistake in the loss monitor and in alerts has its code, its place and its help",
          "[spec][loss]") {
  for (const Mistake& mistake : kMistakes) {
    CAPTURE(mistake.overrides);
    std::vector<std::string> found;
    for (const Diagnostic& d : parsed(mistake.overrides).diagnostics) {
      found.push_back(d.code + " " + d.message);
      CHECK(!d.help.empty());
      CHECK(d.file == "--set " + mistake.overrides.front());
      CHECK(!explain(d.code, nullptr).empty());
    }
    CHECK(found == mistake.expected);
  }
}

TEST_CASE("the program of an alert is found from any folder, and its arguments stay", "[spec][alerts]") {
  const auto command = [](const std::string& file, const std::string& given, bool overrides) {
    const std::string in_file =
        overrides ? "" : R"(, "observability": {"alerts": {"command": )" + given + "}}";
    std::vector<std::string> set;
    if (overrides) set.push_back("observability.alerts.command=" + given);
    const ParsedJob job = parse_job({.text = R"({"version": 1, "model": {"preset": "llama-tiny"},
 "data": {"train": [{"path": "a.idx"}]}, "schedule": {"total_steps": 10})" +
                                             in_file + "}",
                                     .file = file,
                                     .overrides = set});
    REQUIRE(job.ok());
    return job.job.observability.alerts.command;
  };
  using Words = std::vector<std::string>;
  const char* page = R"(["./bin/page", "./x", "a/b"])";
  CHECK(command("/jobs/a/job.json", page, false) == Words{"/jobs/a/bin/page", "./x", "a/b"});
  CHECK(command("/jobs/a/job.json", R"(["../page"])", false) == Words{"/jobs/page"});
  CHECK(command("/jobs/a/job.json", page, true) ==
        Words{std::filesystem::current_path().string() + "/bin/page", "./x", "a/b"});
  CHECK(command("/jobs/a/job.json", R"(["mail", "-s", "x"])", false) == Words{"mail", "-s", "x"});
  CHECK(command("/jobs/a/job.json", R"(["/bin/page"])", false) == Words{"/bin/page"});
}

TEST_CASE("a job of before the loss was watched keeps its resolved spec and its hash", "[spec][loss]") {
  const ParsedJob plain = parsed({});
  REQUIRE(plain.ok());
  CHECK(plain.resolved_json.find("loss_monitor") == std::string::npos);
  CHECK(plain.resolved_json.find("alerts") == std::string::npos);
  CHECK(plain.job.observability.loss_monitor.policy == LossPolicy::warn);
  const ParsedJob off =
      parsed({"observability.loss_monitor.policy=off", R"(observability.alerts.on=["failure", "disk"])"});
  REQUIRE(off.ok());
  CHECK(off.job.observability.loss_monitor.policy == LossPolicy::off);
  CHECK(off.job.observability.alerts.has(AlertCause::disk));
  CHECK(!off.job.observability.alerts.has(AlertCause::spike));
  const ParsedJob again = parse_job({.text = off.resolved_json, .file = "job.json"});
  REQUIRE(again.ok());
  CHECK(again.hash == off.hash);
}
