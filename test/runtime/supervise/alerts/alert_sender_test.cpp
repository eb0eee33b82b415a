// Goal: an alert reaches its webhook and its command; a server that refuses is asked again; a server, or a
// program, that never answers costs the caller nothing and ends as one problem. Method: a web server in
// this process that answers, refuses or hangs; commands that write a file, fail, hang.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "ckpt/http_post.h"
#include "runtime/base/json.h"
#include "runtime/supervise/alerts/alert_sender.h"
#include "test/support/child.h"
#include "test/support/hook_server.h"
#include "test/support/json_schema.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::HookServer;

namespace {

Alert an_alert(const std::string& text = "the loss rose") {
  return {.cause = AlertCause::spike,
          .key = "spike 51",
          .text = text,
          .run_id = "calm-7F3K",
          .directory = "/runs/calm",
          .host = "login0",
          .step = 51,
          .unix_s = 1e9,
          .look = "trainctl diagnose calm"};
}

/// The outcomes of so many alerts.
std::vector<AlertSender::Outcome> outcomes_of(AlertSender& sender, size_t count) {
  std::vector<AlertSender::Outcome> all;
  REQUIRE(test::eventually(60, [&] {
    for (AlertSender::Outcome& outcome : sender.take()) all.push_back(std::move(outcome));
    return all.size() >= count;
  }));
  return all;
}

}  // namespace

TEST_CASE("a webhook gets the alert as JSON, again after a refusal", "[alerts]") {
  HookServer server;
  server.answer_with({500, 200, 404, 404});
  AlertSender sender({.webhook = server.url(), .timeout_s = 600, .tries = 2, .pause_s = 0.01});
  sender.send(an_alert());
  const auto sent = outcomes_of(sender, 1);
  CHECK(sent[0].problem.is_none());
  REQUIRE(server.bodies().size() == 2);
  CHECK(test::result_error(server.bodies()[1], "alert") == "");
  CHECK(Json::parse(server.bodies()[1])["look"] == "trainctl diagnose calm");
  sender.send(an_alert());
  const auto refused = outcomes_of(sender, 1);
  const std::string address = ckpt::server_of_url(server.url());
  CHECK(refused[0].problem.text() == address + " answered with status 404");  // without the token
}

TEST_CASE("a command gets the sentence and the JSON", "[alerts]") {
  const test::TemporaryFolder dir;
  const std::string file = dir.path() + "/alert";
  AlertSender sender(
      {.command = {"/bin/sh", "-c", "printf '%s\\n%s\\n' \"$2\" \"$TRAINCTL_ALERT\" > \"$1\"", "sh", file},
       .timeout_s = 600});
  sender.send(an_alert());
  CHECK(outcomes_of(sender, 1)[0].problem.is_none());
  const std::string text = test::read_file(file);
  const size_t end = text.find('\n');
  CHECK(text.substr(0, end) == an_alert().sentence());
  CHECK(test::result_error(text.substr(end + 1), "alert") == "");
}

TEST_CASE("a command that fails or hangs is one problem", "[alerts]") {
  CHECK(run_alert_command({"/bin/sh", "-c", "echo no mail server; exit 3"}, an_alert(), 600).text() ==
        "/bin/sh ended with status 3: no mail server");
  CHECK(run_alert_command({"/bin/sh", "-c", "sleep 600"}, an_alert(), 0.2).text() ==
        "/bin/sh did not end within 0.2 s");
  CHECK(run_alert_command({"/no/such/program"}, an_alert(), 1).exists());
}

TEST_CASE("a server that never answers holds up nothing: alerts are kept, and the end does not wait for it",
          "[alerts]") {
  HookServer server(HookServer::Answers::never);
  AlertSender sender({.webhook = server.url(), .timeout_s = 600, .tries = 1});
  // More than are kept: each call returns at once, or this test would not end.
  for (size_t i = 0; i < AlertSender::kMostWaiting + 2; ++i)
    sender.send(an_alert(fmt::format("number {}", i)));
  sender.finish(0.1);
  const auto outcomes = sender.take();
  CHECK(outcomes.size() == AlertSender::kMostWaiting + 2);
  for (const AlertSender::Outcome& outcome : outcomes) CHECK(outcome.problem.exists());
}

TEST_CASE("a request ends at its deadline", "[alerts]") {
  HookServer server(HookServer::Answers::never);
  const Problem problem = ckpt::http_post({.url = server.url(), .json = "{}", .timeout_s = 0.2});
  CHECK(problem.text().starts_with("no answer from http://127.0.0.1:"));
  CHECK(problem.text().find("secret") == std::string::npos);
  CHECK(ckpt::server_of_url("https://user:word@host:8443/x?y") == "https://host:8443");
  CHECK(ckpt::server_of_url("http://host") == "http://host");
}

TEST_CASE("the disks of folders are looked at", "[alerts]") {
  const test::TemporaryFolder dir;
  AlertSender sender({.command = {"true"}, .folders = {dir.path()}});
  REQUIRE(test::eventually(60, [&] { return sender.least_free().has_value(); }));
  CHECK(sender.least_free()->second == dir.path());
  CHECK(sender.least_free()->first >= 0);
  CHECK(sender.least_free()->first <= 1);
}

TEST_CASE("a command that is given up at the end leaves no process behind", "[alerts]") {
  const test::TemporaryFolder dir;
  const std::string file = dir.path() + "/pid";
  AlertSender sender(
      {.command = {"/bin/sh", "-c", "echo $$ > \"$1.new\"; mv \"$1.new\" \"$1\"; sleep 600", "sh", file},
       .timeout_s = 600,
       .tries = 1});
  sender.send(an_alert());
  REQUIRE(test::eventually(60, [&] { return ::access(file.c_str(), R_OK) == 0; }));
  sender.finish(0.1);
  REQUIRE(sender.take().size() == 1);
  const pid_t pid = std::stoi(test::read_file(file));
  CHECK(test::eventually(60, [&] { return ::kill(pid, 0) != 0; }));
}
