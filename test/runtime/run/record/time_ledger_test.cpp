// Goal: every second of a run has one cause: the causes add up to the wall time whatever happened and
// whatever the records lack, and a known history has known numbers.
// Method: histories made by hand with their numbers worked out; then made-up histories, plausible and not,
// from seeds, with clocks that differ and supervisors that die.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "runtime/base/json.h"
#include "runtime/run/record/time_ledger.h"
#include "runtime/run/views/prometheus.h"
#include "test/support/seed.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using Catch::Matchers::Contains;

namespace {

Json event_at(double t, const char* kind, Json fields = Json::object()) {
  fields["t"] = t;
  fields["kind"] = kind;
  return fields;
}

/// A step of a second that ends at `t`; a tenth of it is a bubble, a twentieth waits for slower ranks.
StepLine step_at(double t, uint64_t epoch, int64_t step, double evaluation_s = 0, double saving_s = 0) {
  Phases phases{.communication_s = 0.3, .pipeline_s = 0.1, .stragglers_s = 0.05};
  phases.evaluation_s = evaluation_s;
  phases.checkpoint_s = saving_s;
  return {.unix_s = t, .attempt = epoch, .step = step, .step_s = 1, .phases = phases};
}

Json parts(double starting, double first_step, double stepping, double detecting, double ending,
           const char* outcome) {
  return {{"epoch", 1},
          {"outcome", outcome},
          {"starting_s", starting},
          {"first_step_s", first_step},
          {"stepping_s", stepping},
          {"detecting_s", detecting},
          {"ending_s", ending}};
}

double end_of(const TimeLedger& ledger) { return ledger.attempts.back().end_unix_s; }

void check_adds_up(const TimeLedger& ledger, double wall_s) {
  CHECK(ledger.wall_s() == Approx(wall_s).margin(test::tolerance::kUnixTimes));
  double ranks = 0, at = ledger.attempts.empty() ? 0 : ledger.attempts.front().begin_unix_s;
  for (const AttemptTime& attempt : ledger.attempts) {
    CHECK(attempt.begin_unix_s == Approx(at).margin(test::tolerance::kUnixTimes));  // no gap
    at = attempt.end_unix_s;
    CHECK(attempt.seconds.sum() == Approx(at - attempt.begin_unix_s).margin(test::tolerance::kUnixTimes));
    for (const double seconds : attempt.seconds) CHECK(seconds >= 0);
    ranks += attempt.ranks * (attempt.end_unix_s - attempt.begin_unix_s);
  }
  CHECK(ledger.rank_seconds().sum() == Approx(ranks).margin(test::tolerance::kUnixTimes));
}

/// Launched at 1000 with 4 ranks; 10 steps from 1006 on; a rank is killed in step 11; again from step 6,
/// loaded within 2 s; steps until 1035; stopped for 100 s; resumed for two steps with 2 ranks.
TimeRecords known_history() {
  TimeRecords records;
  const auto take = [&](const Json& event) { records.event(event); };
  take(event_at(1000, "supervisor"));
  take(event_at(1001, "start", {{"epoch", 1}, {"ranks", 4}, {"from_step", 0}, {"waited_s", 0.25}}));
  take(event_at(1003, "ranks_up"));
  // Steps end at 1007 .. 1016; the evidence comes at 1018.5, the ranks are gone at 1019.
  take(event_at(1019, "attempt", parts(2, 4, 9, 2.5, 0.5, "kWorker")));
  take(event_at(1019, "failure", {{"code", 1}}));
  take(event_at(1020, "restart", {{"lost_steps", 4}}));
  take(event_at(1021, "start",
                {{"epoch", 2}, {"ranks", 4}, {"from_step", 6}, {"tier", "directory"}, {"waited_s", 0.5}}));
  take(event_at(1022, "ranks_up"));
  take(event_at(1025.5, "loaded", {{"seconds", 2.0}}));
  // Steps 7 to 14 end at 1027 .. 1036, with an evaluation of 1.5 s and a save of 0.5 s before the last one.
  take(event_at(1038, "checkpoint", {{"step", 14}}));
  take(event_at(1039, "attempt", parts(1, 5, 9, 3, 0, "ended")));
  take(event_at(1040, "end", {{"state", "stopped"}, {"exit_code", 75}, {"waited_s", 0}}));
  take(event_at(1140, "supervisor"));
  take(event_at(1141, "start",
                {{"epoch", 3}, {"ranks", 2}, {"from_step", 14}, {"tier", "directory"}, {"waited_s", 0}}));
  take(event_at(1142, "ranks_up"));
  take(event_at(1143, "loaded", {{"seconds", 0.5}}));
  take(event_at(1146, "attempt", parts(1, 2, 1, 1, 0, "ended")));
  take(event_at(1147, "end", {{"state", "finished"}, {"exit_code", 0}, {"waited_s", 0}}));
  for (int step = 7; step <= 10; ++step) records.step(step_at(1006 + step, 1, step), false);
  for (int step = 1; step <= 6; ++step) records.step(step_at(1006 + step, 1, step), true);
  for (int step = 7; step <= 13; ++step) records.step(step_at(1020 + step, 2, step), true);
  records.step(step_at(1036, 2, 14, 1.5, 0.5), true);
  for (int step = 15; step <= 16; ++step) records.step(step_at(1129 + step, 3, step), true);
  return records;
}

}  // namespace

TEST_CASE("the ledger of a known history: a killed rank, a resume, a stop", "[ledger]") {
  const TimeRecords records = known_history();
  const TimeLedger ledger = ledger_of(records, NAN);
  check_adds_up(ledger, 147);
  REQUIRE(ledger.attempts.size() == 3);
  const auto& first = ledger.attempts[0].seconds;
  CHECK(ledger.attempts[0].end_unix_s == 1019);
  CHECK(first[TimeCause::idle] == Approx(0.25));
  CHECK(first[TimeCause::starting] == Approx(0.75 + 2 + 3));
  CHECK(first[TimeCause::recomputed] == Approx(4));
  CHECK(first[TimeCause::bubble] == Approx(0.6));
  CHECK(first[TimeCause::stragglers] == Approx(0.3));
  CHECK(first[TimeCause::training] == Approx(6 - 0.9));
  CHECK(first[TimeCause::detecting] == Approx(2.5));
  CHECK(first[TimeCause::recovering] == Approx(0.5));
  CHECK(ledger.attempts[0].lost_steps == 4);
  CHECK(ledger.lost_steps == 4);
  const auto& second = ledger.attempts[1].seconds;
  CHECK(second[TimeCause::idle] == Approx(0.5));
  CHECK(second[TimeCause::recovering] == Approx(1.5));
  CHECK(second[TimeCause::loading] == Approx(2));
  CHECK(second[TimeCause::evaluation] == Approx(1.5));
  CHECK(second[TimeCause::saving] == Approx(0.5 + 2));  // the last save is published at 1038
  CHECK(second[TimeCause::training] + second[TimeCause::bubble] + second[TimeCause::stragglers] == Approx(8));
  CHECK(second[TimeCause::starting] == Approx(1 + 2 + 1 + 1));
  const auto& third = ledger.attempts[2].seconds;
  CHECK(third[TimeCause::stopped] == 100);
  CHECK(ledger.supervised_s() == Approx(47));
  CHECK(ledger.goodput() == Approx((6 + 8 + 2) / 47.0));
  CHECK(ledger.seconds()[TimeCause::unknown] == 0);
  CHECK(ledger.rank_seconds().sum() == Approx(4 * 40 + 2 * 107.0));
  CHECK_THAT(ledger_text(ledger), Contains("goodput 34.0 % of 47s; ") && Contains("steps done again 8.5 %"));
  const std::string page = prometheus_text({.run_id = "r"}, &ledger);
  CHECK_THAT(page, Contains("trainctl_time_seconds{run=\"r\",cause=\"recomputed\"} 4\n") &&
                       Contains("trainctl_rank_seconds{run=\"r\",cause=\"stopped\"} 200\n"));
}

TEST_CASE("the ledger of a run that goes on ends now; what older records lack is unknown", "[ledger]") {
  TimeRecords records;
  records.event(event_at(1000, "supervisor"));
  CHECK(ledger_of(records, 1002).seconds()[TimeCause::starting] == Approx(2));
  records.event(event_at(1001, "start", {{"epoch", 1}, {"ranks", 2}}));
  records.event(event_at(1002, "ranks_up"));
  for (int step = 1; step <= 4; ++step) records.step(step_at(1004 + step, 1, step), true);
  TimeLedger ledger = ledger_of(records, 1009);
  check_adds_up(ledger, 9);
  CHECK(ledger.goodput() == Approx(5.0 / 9));  // the fifth step is under way
  CHECK(ledger_of(records, NAN).wall_s() == Approx(8));
  CHECK(std::isnan(ledger_of({}, NAN).goodput()));
  CHECK(ledger_text({}) == "");

  // Neither the time of loading, nor waits for nodes, nor whom ranks waited for.
  TimeRecords old;
  old.event(event_at(1000, "supervisor"));
  old.event(event_at(1001, "start", {{"epoch", 1}, {"ranks", 2}}));
  old.event(event_at(1004, "attempt", parts(1, 1, 0, 1, 0, "kWorker")));
  old.event(event_at(1010, "start", {{"epoch", 2}, {"ranks", 2}, {"tier", "directory"}}));
  old.event(event_at(1011, "ranks_up"));
  old.event(event_at(1013, "loaded"));
  old.event(event_at(1020, "attempt", parts(1, 4, 5, 0, 0, "ended")));
  for (int step = 1; step <= 6; ++step) {
    StepLine line = step_at(1014 + step, 2, step);
    line.phases->pipeline_s = line.phases->stragglers_s = NAN;
    old.step(line, true);
  }
  ledger = ledger_of(old, NAN);
  check_adds_up(ledger, 20);
  CHECK(ledger.seconds()[TimeCause::unknown] == Approx(6 + 3 + 6 * 0.3));
  CHECK(ledger.seconds()[TimeCause::recovering] == 0);
}

TEST_CASE("an attempt that ends so that another one follows: what lies between is recovery", "[ledger]") {
  for (const char* why : {"regroup", "loss_rollback"}) {
    CAPTURE(why);
    TimeRecords records;
    records.event(event_at(1000, "supervisor"));
    records.event(event_at(1000, "start", {{"epoch", 1}, {"ranks", 2}, {"waited_s", 0}}));
    for (int step = 1; step <= 10; ++step) records.step(step_at(1002 + step, 1, step), true);
    records.event(event_at(1012, why));
    records.event(event_at(1013, "checkpoint", {{"step", 10}}));
    records.event(event_at(1015, "attempt", parts(2, 1, 9, 3, 0, "ended")));
    records.event(event_at(1017, "start", {{"epoch", 2}, {"ranks", 2}, {"waited_s", 0.5}}));
    const TimeLedger ledger = ledger_of(records, NAN);
    check_adds_up(ledger, 17);
    CHECK(ledger.seconds()[TimeCause::saving] == Approx(1));
    CHECK(ledger.seconds()[TimeCause::recovering] == Approx(2 + 1.5));
    CHECK(ledger.seconds()[TimeCause::idle] == Approx(0.5));
    CHECK(ledger.seconds()[TimeCause::starting] == Approx(2));
  }
}

TEST_CASE("a supervisor that died: its attempt ends with its last sign, or goes on with the next one",
          "[ledger]") {
  for (const bool attaches : {false, true}) {
    CAPTURE(attaches);
    TimeRecords records;
    records.event(event_at(1000, "supervisor"));
    records.event(event_at(1001, "start", {{"epoch", 1}, {"ranks", 2}, {"waited_s", 0}}));
    records.event(event_at(1002, "ranks_up"));
    records.event(event_at(1100, "supervisor"));
    records.event(event_at(1100, "takeover"));
    const int last = attaches ? 150 : 10;
    for (int step = 1; step <= last; ++step) records.step(step_at(1002 + step, 1, step), true);
    if (attaches) {
      records.event(event_at(1101, "attached", {{"seconds", 1}}));
      records.event(event_at(1153, "attempt", parts(0.5, 0.5, 50, 1, 0, "ended")));
    } else {
      records.event(event_at(1101, "start", {{"epoch", 2}, {"ranks", 2}, {"waited_s", 0}}));
      records.event(event_at(1103, "attempt", parts(2, 0, 0, 0, 0, "ended")));
    }
    records.event(event_at(1160, "end"));
    const TimeLedger ledger = ledger_of(records, NAN);
    check_adds_up(ledger, 160);
    const ByCause<double> all = ledger.seconds();
    CHECK(all[TimeCause::stopped] == Approx(attaches ? 0 : 1100 - 1012));
    CHECK(all[TimeCause::training] + all[TimeCause::bubble] + all[TimeCause::stragglers] ==
          Approx(attaches ? 150 : 10));
    CHECK(ledger.attempts.size() == (attaches ? 1 : 2));
  }
}

TEST_CASE("made-up histories: no cause is negative, and they add up to the wall time", "[ledger]") {
  for (const uint64_t seed : test::test_seeds(2000)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    const auto number = [&](double most) { return most * double(random() >> 11) * 0x1p-53; };
    const auto chance = [&](double share) { return number(1) < share; };
    static constexpr const char* kKinds[] = {"supervisor", "start",    "ranks_up", "loaded",
                                             "attempt",    "attempt",  "end",      "failure",
                                             "checkpoint", "attached", "regroup",  "quarantine"};
    TimeRecords records;
    double t = 1e9, first = NAN, newest = -INFINITY, last_step_t = -INFINITY;
    uint64_t epoch = 0;
    int64_t step = 0;
    const double apart_s = chance(0.3) ? number(4) - 2 : 0;  // the clock of rank 0
    const int count = 1 + int(number(40));
    for (int i = 0; i < count; ++i) {
      t += chance(0.1) ? -number(0.5) : number(20);
      const char* kind = i == 0 && chance(0.8) ? "supervisor" : kKinds[random() % std::size(kKinds)];
      Json fields = Json::object();
      if (std::string_view(kind) == "start") fields = {{"epoch", ++epoch}, {"ranks", 1 + random() % 8}};
      if (std::string_view(kind) == "attempt")
        fields =
            parts(number(5), number(5), number(9), number(5), number(2), chance(0.5) ? "ended" : "kWorker");
      if (chance(0.5)) fields["waited_s"] = number(30);
      if (chance(0.5)) fields["seconds"] = number(9);
      if (chance(0.3)) fields["tier"] = "directory";
      records.event(event_at(t, kind, fields));
      if (std::isnan(first) && std::string_view(kind) != "quarantine" && std::string_view(kind) != "failure")
        first = t;
      if (!std::isnan(first)) newest = std::max(newest, t);
      if (epoch == 0 || chance(0.6)) continue;
      for (int k = int(number(6)); k > 0; --k) {
        t += number(2);
        step = chance(0.1) ? 1 + int64_t(number(double(step))) : step + 1;
        StepLine line = step_at(t + apart_s, epoch, step, chance(0.2) ? number(3) : 0, number(0.5));
        if (chance(0.1)) line.phases.reset();
        if (chance(0.1)) line.step_s = NAN;
        last_step_t = std::max(last_step_t, line.unix_s);
        records.step(line, chance(0.8));
      }
    }
    if (std::isnan(first)) continue;
    const double now = newest + number(50);
    const TimeLedger ended = ledger_of(records, NAN), lives = ledger_of(records, now);
    if (!ended.attempts.empty()) {
      check_adds_up(ended, end_of(ended) - ended.attempts.front().begin_unix_s);
      CHECK(ended.attempts.front().begin_unix_s >= first);
      CHECK(end_of(ended) <= std::max(newest, last_step_t) + test::tolerance::kUnixTimes);
    }
    if (!lives.attempts.empty()) check_adds_up(lives, end_of(lives) - lives.attempts.front().begin_unix_s);
    for (const double seconds : lives.seconds()) CHECK(seconds >= 0);
  }
}
