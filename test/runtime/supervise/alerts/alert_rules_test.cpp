// Goal: each cause of an alert is found, once while it lasts, also by a supervisor that comes after another,
// and only where it is asked for. Method: the rules alone, with events, steps and times by hand; the keys
// that one gives are what the next gets.
#include <catch2/catch.hpp>

#include "runtime/base/record.h"
#include "runtime/run/record/journal.h"
#include "runtime/supervise/alerts/alert_rules.h"
#include "test/support/json_schema.h"

using namespace trainctl;

namespace {

AlertsSpec spec_of() {
  AlertsSpec spec;
  spec.command = {"true"};
  spec.silence_seconds = 60;
  return spec;
}

AlertRules rules_of(const AlertsSpec& spec = spec_of(), std::set<std::string> sent = {}) {
  return AlertRules(spec,
                    {.run_id = "calm-7F3K", .directory = "/runs/calm", .host = "login0", .name = "calm"},
                    std::move(sent));
}

StepLine step_line(int64_t step, double loss = 2, double unix_s = 0) {
  StepLine line;
  line.step = step;
  line.loss = loss;
  line.tokens = step * 1000;
  line.unix_s = unix_s;
  return line;
}

}  // namespace

TEST_CASE("a failure alerts once for its cause, whatever the rank, step and restart", "[alerts]") {
  AlertRules rules = rules_of();
  rules.step(step_line(17), 100);
  CHECK(!rules.event(EventKind::failure, R"({"cause":"rank 3 was killed by signal 9"})", 5));
  const auto first = rules.event(
      EventKind::restart,
      R"({"reason":"rank 3 was killed by signal 9 while: backward; restart 1 of 3","from_step":12})", 5);
  REQUIRE(first);
  CHECK(first->cause == AlertCause::failure);
  CHECK(first->step == 17);
  CHECK(first->sentence() ==
        "run calm-7F3K: rank 3 was killed by signal 9 while: backward; restart 1 of 3; going on from step 12 "
        "(step 17); look: trainctl diagnose calm");
  const Json json = record_json(*first);
  CHECK(test::schema_errors(test::result_schema("alert"), json) == std::vector<std::string>{});
  const char* same =
      R"({"reason":"rank 1 was killed by signal 9 while: forward; restart 2 of 3","from_step":14})";
  CHECK(!rules.event(EventKind::restart, same, 6));
  CHECK(rules.event(EventKind::restart, R"({"reason":"the disk is full","from_step":14})", 8));
  // That the run does not go on is another piece of news, once.
  const char* end = R"({"state":"failed","reason":"rank 1 was killed by signal 9"})";
  CHECK(rules.event(EventKind::end, end, 7)->text == "the run has failed: rank 1 was killed by signal 9");
  CHECK(!rules.event(EventKind::end, end, 8));
  // Another supervisor knows it from the events.
  const std::string line = event_line(
      1, EventKind::alert_sent, dump_json(Json{{"key", first->key}, {"step", 17}, {"text", first->text}}));
  AlertRules next = rules_of(spec_of(), sent_keys({"damaged", line}));
  next.event(EventKind::failure, "{}", 9);
  CHECK(!next.event(EventKind::restart, same, 9));
  CHECK(next.event(EventKind::end, R"({"state":"failed","reason":"three times in vain"})", 9));
}

TEST_CASE("a rank that computed wrongly once alerts once; what ends the attempt alerts as a failure",
          "[alerts]") {
  AlertRules rules = rules_of();
  const char* once = R"({"answer":"go_on","ranks":[3],"step":16,"text":"rank 3 computed wrongly once"})";
  const auto first = rules.event(EventKind::replay_differs, once, 5);
  REQUIRE(first);
  CHECK(first->cause == AlertCause::corruption);
  CHECK(first->text == "rank 3 computed wrongly once");
  CHECK(!rules.event(EventKind::replay_differs, once, 6));
  CHECK(rules.event(EventKind::replay_differs, R"({"answer":"go_on","ranks":[4],"text":"rank 4"})", 7));
  CHECK(!rules.event(EventKind::replay_differs, R"({"answer":"put_out","ranks":[5],"text":"rank 5"})", 8));
  CHECK(rules.event(EventKind::replicas_judged, R"({"step":7,"text":"rank 1 held other bits"})", 9)->text ==
        "rank 1 held other bits");
  const char* lost = R"({"step":24,"text":"no state of step 16 or before is left"})";
  const auto alert = rules.event(EventKind::state_not_verified, lost, 10);
  REQUIRE(alert);
  CHECK(alert->cause == AlertCause::corruption);
  CHECK(alert->text == "no state of step 16 or before is left");
}

TEST_CASE("the end alerts where the run has finished, not where a person stopped it", "[alerts]") {
  AlertRules rules = rules_of();
  CHECK(!rules.event(EventKind::end, R"({"state":"stopped","step":7,"reason":"on request"})", 1));
  const auto finished = rules.event(EventKind::end, R"({"state":"finished","step":20})", 1);
  REQUIRE(finished);
  CHECK(finished->text == "the run has finished step 20");
}

TEST_CASE("spikes and divergences alert once each", "[alerts]") {
  AlertRules rules = rules_of();
  const char* spike = R"({"of":"loss","first":51,"first_value":9.5,"text":"the loss rose"})";
  CHECK(rules.event(EventKind::loss_spike, spike, 1));
  CHECK(!rules.event(EventKind::loss_spike, spike, 2));
  CHECK(rules.event(EventKind::loss_divergence, spike, 3)->cause == AlertCause::divergence);
  CHECK(rules.event(EventKind::loss_spike, R"({"of":"loss","first":51,"first_value":8,"text":"x"})", 4));
}

TEST_CASE("a loss above its limit and a rate below its own alert", "[alerts]") {
  AlertsSpec spec = spec_of();
  spec.loss_above = 5;
  spec.tokens_per_s_below = 500;  // a step has 1000 tokens
  AlertRules rules = rules_of(spec);
  CHECK(rules.step(step_line(1, 4.9, 1), 1).empty());
  const auto above = rules.step(step_line(2, 5.1, 2), 2);
  REQUIRE(above.size() == 1);
  CHECK(above[0].cause == AlertCause::loss);
  CHECK(rules.step(step_line(3, 6, 3), 3).empty());
  CHECK(rules.step(step_line(4, NAN, 4), 4).empty());
  int alerts = 0;
  double now_s = 4;
  for (int64_t step = 5; step <= 200; ++step) {
    now_s += step <= 100 ? 1 : 3;  // 1000, then 333 tokens/s
    const auto found = rules.step(step_line(step, 2, now_s), now_s);
    for (const Alert& alert : found) {
      CHECK(alert.cause == AlertCause::rate);
      CHECK(step > 100);
    }
    alerts += int(found.size());
  }
  CHECK(alerts == 1);
}

TEST_CASE("silence counts from the last step or the start, and not where nothing is to be trained",
          "[alerts]") {
  AlertRules rules = rules_of();
  CHECK(rules.tick(true, 1000).empty());
  CHECK(rules.tick(true, 1059).empty());
  rules.step(step_line(8), 1059);
  CHECK(rules.tick(true, 1118).empty());
  CHECK(rules.tick(false, 1300).empty());  // it is saving and stopping
  CHECK(rules.tick(true, 1301).empty());
  const auto silent = rules.tick(true, 1361);
  REQUIRE(silent.size() == 1);
  CHECK(silent[0].cause == AlertCause::silence);
  CHECK(silent[0].text == "no step has ended for 1m 0s");
  CHECK(rules.tick(true, 2000).empty());
  rules.event(EventKind::start, "{}", 2000);
  CHECK(rules.tick(true, 2070).empty());  // after the same step: the same cause
  rules.step(step_line(9), 2071);
  CHECK(rules.tick(true, 2140).size() == 1);
}

TEST_CASE("an alert from before the first step names no step", "[alerts]") {
  AlertRules rules = rules_of();
  CHECK(rules.tick(true, 1000).empty());
  const auto silent = rules.tick(true, 1060);
  REQUIRE(silent.size() == 1);
  CHECK(silent[0].sentence() == "run calm-7F3K: no step has ended for 1m 0s; look: trainctl diagnose calm");
  CHECK(silent[0].key.find('0') == std::string::npos);
  const Json json = record_json(silent[0]);
  CHECK(!json.contains("step"));
  CHECK(test::schema_errors(test::result_schema("alert"), json) == std::vector<std::string>{});
}

TEST_CASE("little goodput alerts once an hour is known, and steps that are trained again do not count",
          "[alerts]") {
  // 150 steps, one every `interval` seconds, of which it took `seconds`. After step 29 the run goes back each
  // time, or not.
  const auto alerts_of = [](double interval, double seconds, bool goes_back, double limit) {
    AlertsSpec spec = spec_of();
    spec.silence_seconds = 1e6;
    spec.goodput_below_percent = limit;
    AlertRules rules = rules_of(spec);
    std::vector<std::pair<int, std::string>> alerts;
    for (int i = 1; i <= 150; ++i) {
      StepLine line = step_line(goes_back ? i % 30 : i);
      line.step_s = seconds;
      rules.step(line, interval * i);
      for (const Alert& alert : rules.tick(true, interval * i)) {
        CHECK(alert.cause == AlertCause::goodput);
        alerts.emplace_back(i, alert.text);
      }
    }
    return alerts;
  };
  CHECK(alerts_of(60, 30.5, false, 50).empty());
  CHECK(alerts_of(60, 29.5, false, 0).empty());
  const auto slow = alerts_of(60, 29.5, false, 50);
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].first == 61);
  CHECK(slow[0].second == "49.6 % of the last 1h 0m went into steps that count, less than 50 %");
  CHECK(alerts_of(60, 59, false, 50).empty());
  CHECK(alerts_of(60, 59, true, 50).size() == 1);
  CHECK(alerts_of(5400, 5300, false, 90).empty());  // of long steps more than an hour is taken
}

TEST_CASE("goodput below its limit alerts once while it lasts, and again once it was kept for an hour",
          "[alerts]") {
  AlertsSpec spec = spec_of();
  spec.silence_seconds = 1e6;
  spec.goodput_below_percent = 50;
  int64_t step = 0;
  double now_s = 0;
  /// A step a minute, of which it took so many seconds: the minutes, from 1, of `minutes` that alert.
  const auto alerts_of = [&](AlertRules& rules, int minutes, const std::vector<double>& seconds) {
    std::vector<int> alerts;
    for (int i = 1; i <= minutes; ++i) {
      StepLine line = step_line(++step);
      line.step_s = seconds[size_t(i) % seconds.size()];
      rules.step(line, now_s += 60);
      for (const Alert& alert : rules.tick(true, now_s)) {
        CHECK(alert.key == "goodput below");
        alerts.push_back(i);
      }
    }
    return alerts;
  };
  AlertRules rules = rules_of(spec);
  CHECK(alerts_of(rules, 300, {20}).size() == 1);
  CHECK(alerts_of(rules, 31, {59}).empty());
  CHECK(alerts_of(rules, 200, {1}).empty());  // it was kept for less than an hour
  CHECK(alerts_of(rules, 200, {59}).empty());
  const std::vector<int> again = alerts_of(rules, 200, {1});
  REQUIRE(again.size() == 1);
  CHECK(again[0] > 1);
  // A goodput that passes its limit with each second step, or nearly so, is one cause.
  CHECK(alerts_of(rules, 200, {59}).empty());
  CHECK(alerts_of(rules, 600, {2, 58.5, 40, 19}).size() == 1);
  // To the next supervisor it is not news, and then it is.
  AlertRules next = rules_of(spec, {"goodput below"});
  CHECK(alerts_of(next, 200, {20}).empty());
  CHECK(alerts_of(next, 200, {59}).empty());
  CHECK(alerts_of(next, 200, {20}).size() == 1);
}

TEST_CASE("loss, rate and disk beyond a limit alert again once it was kept for an hour", "[alerts]") {
  AlertsSpec spec = spec_of();
  spec.loss_above = 5;
  AlertRules rules = rules_of(spec);
  CHECK(rules.step(step_line(1, 6, 1), 1).size() == 1);
  CHECK(rules.step(step_line(2, 4, 2), 3600).empty());
  CHECK(rules.step(step_line(3, 6, 3), 3600.5).empty());
  CHECK(rules.step(step_line(4, NAN, 4), 9000).empty());
  CHECK(rules.step(step_line(5, 6, 5), 9001).empty());
  CHECK(rules.step(step_line(6, 4, 6), 12602).empty());
  CHECK(rules.step(step_line(7, 6, 7), 12603).size() == 1);
  CHECK(rules.disk(0.04, "/runs", 1));
  CHECK(!rules.disk(0.06, "/runs", 3600));
  CHECK(!rules.disk(0.04, "/runs", 3601));
  CHECK(!rules.disk(0.06, "/runs", 7201));
  CHECK(rules.disk(0.04, "/runs", 7202));
  spec.loss_above = 0;
  spec.tokens_per_s_below = 500;  // a step has 1000 tokens
  AlertRules slow = rules_of(spec);
  int64_t step = 0;
  double now_s = 0;
  const auto rate_alerts = [&](int steps, double seconds) {
    size_t alerts = 0;
    for (int i = 0; i < steps; ++i) {
      now_s += seconds;
      alerts += slow.step(step_line(++step, 2, now_s), now_s).size();
    }
    return alerts;
  };
  CHECK(rate_alerts(100, 3) == 1);
  CHECK(rate_alerts(3000, 1) == 0);
  CHECK(rate_alerts(100, 3) == 0);  // less than an hour between
  CHECK(rate_alerts(3700, 1) == 0);
  CHECK(rate_alerts(100, 3) == 1);
}

TEST_CASE("a checkpoint that is damaged or suspect alerts once", "[alerts]") {
  AlertRules rules = rules_of();
  const char* damaged = R"({"step":12,"first":"a shard is 3 bytes short"})";
  const auto alert = rules.event(EventKind::checkpoint_damaged, damaged, 1);
  REQUIRE(alert);
  CHECK(alert->cause == AlertCause::corruption);
  CHECK(alert->text == "checkpoint step 12 is damaged and does not count: a shard is 3 bytes short");
  CHECK(!rules.event(EventKind::checkpoint_damaged, damaged, 2));
  const auto suspect =
      rules.event(EventKind::checkpoint_suspect, R"({"step":12,"reason":"three attempts failed"})", 3);
  REQUIRE(suspect);
  CHECK(suspect->text == "checkpoint step 12 is not used: three attempts failed");
}

TEST_CASE("a GPU that is too hot alerts once, and names its rank and node", "[alerts]") {
  AlertsSpec spec = spec_of();
  StepLine line = step_line(1, 2, 1);
  line.gpus = GpuSpread{.temperature_c = Spread<double>{.min = 60, .median = 70, .max = 91, .max_rank = 5}};
  CHECK(rules_of(spec).step(line, 1).empty());  // no limit is the default
  spec.temperature_above_c = 90;
  AlertRules rules = rules_of(spec);
  CHECK(rules.step(step_line(1, 2, 1), 1).empty());  // without a GPU
  const auto alerts = rules.step(line, 2);
  REQUIRE(alerts.size() == 1);
  CHECK(alerts[0].cause == AlertCause::temperature);
  CHECK(alerts[0].text == "the GPU of rank 5 is at 91 degrees Celsius, above 90");
  CHECK(rules.step(line, 3).empty());
  line.gpus->temperature_c->max_node = "n1";
  CHECK(rules_of(spec).step(line, 1)[0].text == "the GPU of rank 5 on n1 is at 91 degrees Celsius, above 90");
  line.gpus->temperature_c->max = 90;
  CHECK(rules_of(spec).step(line, 1).empty());
}

TEST_CASE("a disk that is nearly full alerts once a folder", "[alerts]") {
  AlertRules rules = rules_of();
  CHECK(!rules.disk(0.05, "/runs", 1));
  CHECK(rules.disk(0.049, "/runs", 1)->text == "4.9 % of the disk of /runs is free");
  CHECK(!rules.disk(0.01, "/runs", 2));
  CHECK(rules.disk(0.01, "/ckpt", 2));
}

TEST_CASE("only the causes that are asked for alert, and none without a place to send to", "[alerts]") {
  for (const AlertCause cause : {AlertCause::failure, AlertCause::finished}) {
    AlertsSpec spec = spec_of();
    spec.on = {cause};
    AlertRules rules = rules_of(spec);
    rules.event(EventKind::failure, "{}", 1);
    CHECK(rules.event(EventKind::restart, R"({"reason":"x"})", 1).has_value() ==
          (cause == AlertCause::failure));
    CHECK(rules.event(EventKind::end, R"({"state":"finished"})", 1).has_value() ==
          (cause == AlertCause::finished));
  }
  AlertsSpec nowhere = spec_of();
  nowhere.command.clear();
  CHECK(!rules_of(nowhere).event(EventKind::end, R"({"state":"finished"})", 1));
}

TEST_CASE("a run that failed, was resumed and fails in the same way alerts again", "[alerts]") {
  const auto of = [](EventKind kind, const Json& fields) { return event_line(1, kind, dump_json(fields)); };
  const std::string sent = of(EventKind::alert_sent, {{"key", "failure end x"}});
  for (const char* state : {"failed", "finished", "stopped"}) {
    const std::string end = of(EventKind::end, {{"state", state}});
    const size_t kept = std::string(state) == "stopped" ? 1 : 0;
    CHECK(sent_keys({end, sent}).size() == kept);
    CHECK(sent_keys({end, sent, of(EventKind::supervisor, Json::object())}).size() == kept);
  }
  CHECK(sent_keys({sent}).size() == 1);
}
