// Goal: a simulated run loses the time that it must lose, and every nanosecond has one cause.
// Method: closed forms (saves alone; Daly's formula for exponential failures), conservation and equality over
// seeds and kinds of failures, monotony on the same failures, and the decisions of Recovery as seen from here.
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "test/runtime/simulate/simulated.h"

namespace trainctl::test {
namespace {

using namespace simulate;

constexpr double kDay = 86400;

/// Every effect, often.
FleetModel rough_fleet() {
  FleetModel fleet = small_fleet({
      {.name = "crash", .what = "a rank crashed", .events = 20, .effect = Effect::crash},
      {.name = "gpu", .what = "a GPU is broken", .events = 6, .effect = Effect::crash, .repair_s = 5000},
      {.name = "hang", .what = "a rank hangs", .events = 6, .effect = Effect::hang},
      {.name = "cable", .what = "a cable is broken", .events = 3, .effect = Effect::hang, .repair_s = 3000},
      {.name = "node",
       .what = "a node is lost",
       .events = 12,
       .per = Per::node,
       .effect = Effect::node,
       .repair_s = 7000},
      {.name = "switch",
       .what = "a switch is lost",
       .events = 2,
       .per = Per::node,
       .effect = Effect::node,
       .nodes = 2,
       .repair_s = 900},
      {.name = "sdc",
       .what = "wrong numbers",
       .events = 2,
       .effect = Effect::silent,
       .repair_s = 4000,
       .found_s = 600},
      {.name = "slow",
       .what = "a slow node",
       .events = 5,
       .effect = Effect::slow,
       .repair_s = 2000,
       .slowdown = 0.3},
      {.name = "storage",
       .what = "no storage",
       .events = 3,
       .per = Per::run,
       .effect = Effect::storage,
       .repair_s = 400},
      {.name = "planned", .what = "planned", .events = 3, .per = Per::run, .effect = Effect::planned},
  });
  fleet.ending_s = 0.1, fleet.deciding_s = 0.2, fleet.starting_s = 3, fleet.person_s = 1000;
  return fleet;
}

bool are_equal(const SimulatedRun& a, const SimulatedRun& b) {
  return a.wall == b.wall && a.time == b.time && a.steps == b.steps && a.lost_steps == b.lost_steps &&
         a.attempts == b.attempts && a.loads == b.loads && a.nodes_out == b.nodes_out && a.slowed == b.slowed;
}

/// The share of time that counts: useful work of `interval_s`, saves of `cost_s`, restarts of `restart_s`.
double daly(double interval_s, double cost_s, double restart_s, double mtbf_s) {
  return interval_s / (mtbf_s * std::exp(restart_s / mtbf_s) * std::expm1((interval_s + cost_s) / mtbf_s));
}

}  // namespace

TEST_CASE("simulation: without failures only saves and evaluations take time") {
  RunModel run = small_run();
  run.directory = {.is_made = true, .given = 10, .cost = kNsOfS / 2, .safe = kNsOfS / 2};
  run.evaluation = {100, 3 * kNsOfS};
  // 100 steps, ten saves and an evaluation are 108 s.
  const SimulatedRun result = simulated(run, small_fleet({}), 108 * 50 / kDay);
  CHECK(result.steps == 5000);
  CHECK(result.time[Cause::training] == 5000 * kNsOfS);
  CHECK(result.time[Cause::saving] == 250 * kNsOfS);
  CHECK(result.time[Cause::evaluation] == 150 * kNsOfS);
  CHECK(result.wall == 5400 * kNsOfS);
  CHECK(result.attempts == 1);

  run.total_steps = 1234;
  const SimulatedRun finished = simulated(run, small_fleet({}), 1);
  CHECK(finished.is_finished);
  CHECK(finished.steps == 1234);
  CHECK(finished.wall == (1234 + 12 * 3) * kNsOfS + 123 * kNsOfS / 2);
}

TEST_CASE("simulation: exponential failures lose what Daly's formula says") {
  RunModel run = small_run();
  run.directory = {.is_made = true, .cost = 10 * kNsOfS, .safe = 10 * kNsOfS, .load = 25 * kNsOfS};
  // Two hundred nodes: on four of them failures would meet, which looks like a broken node.
  run.widths = {{200, 1600}}, run.nodes = 200, run.gpus = 1600, run.lanes = 200;
  FleetModel fleet = small_fleet(
      {{.name = "crash", .what = "crash", .events = 24, .per = Per::run, .effect = Effect::crash}});
  fleet.starting_s = 5;
  for (const int64_t interval : {100, 268, 800}) {
    run.directory.given = interval;
    const SimulatedRun result = simulated(run, fleet, 60);  // 1440 failures, one an hour
    CAPTURE(interval);
    CHECK(result.goodput() == Approx(daly(double(interval), 10, 30.05, 3600)).epsilon(0.01));
    CHECK(result.kinds[0].interruptions > 1200);
  }
}

TEST_CASE("simulation: the best interval is that of Young and Daly") {
  RunModel run = small_run();
  run.directory = {.is_made = true, .given = 268, .cost = 10 * kNsOfS, .safe = 10 * kNsOfS};
  run.widths = {{200, 1600}}, run.nodes = 200, run.gpus = 1600, run.lanes = 200;
  const FleetModel fleet = small_fleet(
      {{.name = "crash", .what = "crash", .events = 24, .per = Per::run, .effect = Effect::crash}});
  const double young_s = std::sqrt(2 * 10 * 3600.0);
  CHECK(std::llround(young_s) == 268);
  const Survey survey = make_survey(run, fleet,
                                    {.source = {.gpus = 1600, .nodes = 200, .seed = 3},
                                     .end = ns_of(20 * kDay),
                                     .saves = {.directory = 268},
                                     .most_spares = 1});
  const SurveyRow& best = best_of(survey.directory);
  CHECK(double(best.saves.directory) > young_s / 1.5);
  CHECK(double(best.saves.directory) < young_s * 1.5);
  for (const SurveyRow& row : survey.directory) {
    CAPTURE(row.saves.directory);
    if (row.saves.directory == 268) CHECK(row.effective > best.effective - 0.002);
    if (row.saves.directory < 268 / 3 || row.saves.directory > 3 * 268)
      CHECK(row.effective < best.effective - 0.005);
  }
  // The calendar of a run decides the same from what it has seen.
  run.directory.given = -1;
  run.directory.rule = {.tier = SaveTier::directory, .automatic = true};
  const SaveSteps decided = decide_saves(run, {.directory = 2400, .observed_s = 100 * kDay}, {});
  CHECK(double(decided.directory) == Approx(young_s).epsilon(0.05));
}

TEST_CASE("simulation: every nanosecond has one cause, with every kind of failure") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    RunModel run = copying_run();
    run.spares = int(seed % 4);
    if (seed % 5 == 0) run.fault.max_restarts = 1;  // a broken GPU needs two
    if (seed % 3 == 0) run.widths = {{4, 32}};
    const SimulatedRun result = simulated(run, rough_fleet(), 3, seed);
    CAPTURE(seed);
    CHECK(std::accumulate(result.time.begin(), result.time.end(), Ns(0)) == result.wall);
    CHECK(result.wall == ns_of(3 * kDay));
    for (const Ns time : result.time) CHECK(time >= 0);
    // Steps that count are training, at the pace of their width and of slow nodes.
    const Ns steps = result.steps * run.step_time + result.slowed + result.narrowed;
    CHECK(std::abs(result.time[Cause::training] + result.time[Cause::stragglers] - steps) < 10 * kNsOfS);
    int64_t failures = 0;
    for (const KindCost& kind : result.kinds) failures += kind.failures;
    CHECK(failures > 100);
    CHECK(result.kinds[0].interruptions <= result.kinds[0].failures);
    CHECK(result.kinds[1].interruptions > result.kinds[1].failures);  // a broken GPU fails again
    // What an outage takes is charged to what began it.
    Ns charged = result.begin.cost + result.regroup.cost;
    for (const KindCost& kind : result.kinds) charged += kind.cost;
    Ns other = result.time[Cause::recomputed];
    for (size_t i = size_t(Cause::detecting); i < kTimeCauses; ++i) other += result.time[i];
    CHECK(charged == other);
    if (seed % 5 == 0) CHECK(result.persons > 0);
  }
}

TEST_CASE("simulation: a seed has one result, whether sound nodes have names or not") {
  RunModel run = copying_run();
  run.nodes = 32, run.gpus = 256, run.spares = 32, run.lanes = 32;
  run.widths = {{32, 256}};
  run.partners.resize(32);
  for (int i = 0; i < 32; ++i) run.partners[size_t(i)] = (i + 16) % 32;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const SimulatedRun once = simulated(run, rough_fleet(), 0.4, seed, 0.125);
    CAPTURE(seed);
    CHECK(are_equal(once, simulated(run, rough_fleet(), 0.4, seed, 0.125)));
    CHECK(are_equal(once, simulated(run, rough_fleet(), 0.4, seed, 0.125, {.joins_sound_nodes = false})));
    CHECK_FALSE(are_equal(once, simulated(run, rough_fleet(), 0.4, seed + 100, 0.125)));
  }
}

TEST_CASE("simulation: spares that no failure can call for take no time, and change nothing") {
  // No lost node returns, so that each failure takes another spare.
  const FleetModel fleet = small_fleet({{.name = "node",
                                         .what = "a node is lost",
                                         .events = 100,
                                         .per = Per::node,
                                         .effect = Effect::node,
                                         .repair_s = 1e8}});
  RunModel run = copying_run();
  run.spares = 1000;
  const SimulatedRun once = simulated(run, fleet, 1);
  const int out = once.nodes_out.back().second;
  CHECK(out > 50);
  CHECK(out > once.kinds[0].failures * 0.9);  // few hit a node that is out already
  CHECK(once.narrowed == 0);
  CHECK(are_equal(once, simulated(run, fleet, 1, 1, 1, {.joins_sound_nodes = false})));
  run.spares = 1 << 21;
  CHECK(are_equal(once, simulated(run, fleet, 1)));
  run.spares = out / 2;
  CHECK(simulated(run, fleet, 1).narrowed > 0);
}

TEST_CASE("simulation: a survey is the same on any number of threads") {
  const RunModel run = copying_run();
  SurveyOptions options{.source = {.gpus = 32, .nodes = 4, .seed = 5},
                        .end = ns_of(kDay),
                        .saves = {.memory = 1, .partner = 4, .directory = 100},
                        .most_spares = 4};
  const Survey one = make_survey(run, rough_fleet(), options);
  options.threads = 3;
  const Survey three = make_survey(run, rough_fleet(), options);
  REQUIRE(one.grid.size() == three.grid.size());
  CHECK(one.grid.size() > 20);
  for (size_t i = 0; i < one.grid.size(); ++i) CHECK(one.grid[i].effective == three.grid[i].effective);
  for (size_t i = 0; i < one.spares.size(); ++i) CHECK(one.spares[i].effective == three.spares[i].effective);
}

TEST_CASE("simulation: more failures never help, and more spares never harm") {
  double before = 1;
  for (const double rate : {0.0, 0.25, 1.0, 4.0}) {
    double sum = 0;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      RunModel run = copying_run();
      run.spares = 2;
      sum += simulated(run, rough_fleet(), 2, seed, rate).effective(run.step_time);
    }
    CAPTURE(rate, sum);
    CHECK(sum / 4 < before);
    before = sum / 4;
  }
  before = 0;
  for (const int spares : {0, 1, 2, 4, 8}) {
    double sum = 0;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      RunModel run = copying_run();
      run.spares = spares;
      sum += simulated(run, rough_fleet(), 4, seed).effective(run.step_time);
    }
    CAPTURE(spares, sum);
    CHECK(sum / 4 >= before - 0.002);
    before = sum / 4;
  }
}

TEST_CASE("simulation: a lost node is replaced by a spare, or the run goes on narrower until it returns") {
  const FleetModel fleet = small_fleet({{.name = "node",
                                         .what = "node",
                                         .events = 1,
                                         .per = Per::node,
                                         .effect = Effect::node,
                                         .repair_s = 3600}});
  const std::vector<Failure> once = {{.at = 1000 * kNsOfS, .place = 1, .repair = 3600 * kNsOfS}};
  RunModel run = copying_run();
  run.spares = 1;
  const SimulationOptions options{.end = 10000 * kNsOfS};
  const SimulatedRun spared = simulate::simulate(run, fleet, once, options);
  CHECK(spared.attempts == 2);
  CHECK(spared.loads[size_t(LoadFrom::partner)] == 1);
  CHECK(spared.narrowed == 0);
  CHECK(spared.spares_for(1) == 1);
  // The second copy is of a step that is divisible by four, and was safe after two seconds.
  CHECK(spared.lost_steps < 8);
  CHECK(spared.time[Cause::detecting] >= 2 * kNsOfS);

  run.spares = 0;
  const SimulatedRun narrow = simulate::simulate(run, fleet, once, options);
  CHECK(narrow.attempts == 3);  // narrower, and wide again
  CHECK(narrow.regroup.failures == 1);
  // Three replicas have two of four lanes at most: steps take twice as long.
  CHECK(seconds_of(narrow.narrowed) == Approx(1800).epsilon(0.02));

  run.widths = {{4, 32}};  // not elastic
  run.fault.wait_for_nodes_seconds = 7200;
  const SimulatedRun waited = simulate::simulate(run, fleet, once, options);
  CHECK(waited.attempts == 2);
  CHECK(seconds_of(waited.time[Cause::idle]) == Approx(3600).epsilon(0.01));
  run.fault.wait_for_nodes_seconds = 60;
  CHECK(simulate::simulate(run, fleet, once, options).persons > 0);
}

TEST_CASE("simulation: nodes that a smaller width leaves out are sound ones almost always") {
  // Of 2000 nodes a hundred or so fail, and up to thirty are out at a time. A failure must still hit a node in use.
  const FleetModel fleet = small_fleet({{.name = "node",
                                         .what = "node",
                                         .events = 120,
                                         .per = Per::run,
                                         .effect = Effect::node,
                                         .repair_s = 20000}});
  RunModel run = copying_run();
  run.nodes = 2000, run.gpus = 16000, run.lanes = 1;
  run.widths.clear();
  for (int data = 2000; data > 1900; --data) run.widths.push_back({data, 8 * data});
  run.partners.clear(), run.partner = {};
  const SimulatedRun result = simulated(run, fleet, 1);
  CHECK(result.kinds[0].failures > 90);
  CHECK(result.spares_for(0.5) > 10);
  CHECK(result.regroup.failures > 10);
  CHECK(result.kinds[0].interruptions >= result.kinds[0].failures - 5);
}

TEST_CASE("simulation: a broken GPU fails again until its node is put out") {
  FleetModel fleet =
      small_fleet({{.name = "gpu", .what = "gpu", .events = 1, .effect = Effect::crash, .repair_s = 3600}});
  fleet.starting_s = 10;
  const std::vector<Failure> once = {{.at = 1000 * kNsOfS, .place = 2, .repair = 3600 * kNsOfS}};
  RunModel run = copying_run();
  run.spares = 1;
  const SimulatedRun result = simulate::simulate(run, fleet, once, {.end = 10000 * kNsOfS});
  // Three failures within an hour (QuarantineRules), then the spare.
  CHECK(result.kinds[0].interruptions == 3);
  CHECK(result.attempts == 4);
  CHECK(result.persons == 0);
  CHECK(result.spares_for(1) == 1);
  // Its memory is still there.
  CHECK(result.loads[size_t(LoadFrom::memory)] == 3);
  // The first one followed progress, and the third found no restart left.
  run.fault.max_restarts = 2;
  CHECK(simulate::simulate(run, fleet, once, {.end = 10000 * kNsOfS}).persons == 1);

  // Its device says that it is broken: the spare comes at once, and no restart is needed.
  fleet.failures[0].effect = Effect::device;
  run.fault.max_restarts = 0;
  const SimulatedRun named = simulate::simulate(run, fleet, once, {.end = 10000 * kNsOfS});
  CHECK(named.kinds[0].interruptions == 1);
  CHECK(named.attempts == 2);
  CHECK(named.persons == 0);
  CHECK(named.spares_for(1) == 1);
  CHECK(named.loads[size_t(LoadFrom::memory)] == 1);
}

TEST_CASE("simulation: a big fleet that makes progress is never ended by the number of its failures") {
  // A failure every ten minutes, and a start takes two: failures often follow each other without progress.
  FleetModel fleet = small_fleet(
      {{.name = "gpu",
        .what = "gpu",
        .events = 120,
        .per = Per::run,
        .effect = Effect::device,
        .repair_s = 3600},
       {.name = "crash", .what = "crash", .events = 24, .per = Per::run, .effect = Effect::crash}});
  fleet.starting_s = 120;
  RunModel run = copying_run();
  run.widths = {{200, 1600}}, run.nodes = 200, run.gpus = 1600, run.lanes = 200, run.spares = 40;
  run.partners = {}, run.partner = {};
  run.fault.max_restarts = 8;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const SimulatedRun result = simulated(run, fleet, 20, seed);
    CAPTURE(seed, result.end);
    CHECK(result.attempts > 2000);
    CHECK(result.persons == 0);
  }
}

TEST_CASE("simulation: wrong numbers cost all steps since they were computed") {
  const FleetModel fleet =
      small_fleet({{.name = "sdc", .what = "sdc", .events = 1, .effect = Effect::silent}});
  RunModel run = copying_run();
  run.directory.given = 50;
  const std::vector<Failure> once = {{.at = 1020 * kNsOfS, .place = 2, .found = 100 * kNsOfS}};
  const SimulatedRun result = simulate::simulate(run, fleet, once, {.end = 2000 * kNsOfS});
  // Found after 100 s. The newest checkpoint before is that of step 1000.
  CHECK(result.lost_steps > 100);
  CHECK(result.lost_steps < 115);
  CHECK(result.loads[size_t(LoadFrom::directory)] == 1);
  // Two checkpoints are kept by number, and those of every 900 steps. Saves take a twentieth of
  // the time.
  run.directory.given = 10, run.keep_last = 2;
  CHECK(simulate::simulate(run, fleet, once, {.end = 2000 * kNsOfS}).wrong_kept == 1);
  // Nor does a run begin again that a person resumes.
  run.fault.max_restarts = 0;
  const SimulatedRun resumed = simulate::simulate(run, fleet, once, {.end = 2000 * kNsOfS});
  CHECK(resumed.persons == 1);
  CHECK(resumed.wrong_kept == 1);
  CHECK(resumed.lost_steps < 115);
  run.fault.max_restarts = copying_run().fault.max_restarts;
  run.keep_every = 900;
  const SimulatedRun kept = simulate::simulate(run, fleet, once, {.end = 2000 * kNsOfS});
  CHECK(kept.wrong_kept == 0);
  CHECK(kept.lost_steps > 150);
  CHECK(kept.lost_steps < 180);
  // Found at once it costs no more than a crash.
  const std::vector<Failure> seen = {{.at = 1020 * kNsOfS, .place = 2}};
  CHECK(simulate::simulate(run, fleet, seen, {.end = 2000 * kNsOfS}).lost_steps < 3);
}

TEST_CASE("simulation: storage that does not answer delays an attempt that begins, not one that runs") {
  const FleetModel fleet = small_fleet({
      {.name = "storage", .what = "storage", .events = 1, .effect = Effect::storage, .repair_s = 500},
      {.name = "crash", .what = "crash", .events = 1, .effect = Effect::crash},
  });
  const Failure outage{.at = 1000 * kNsOfS, .kind = 0, .repair = 500 * kNsOfS};
  const std::vector<Failure> alone = {outage}, both = {outage, {.at = 1200 * kNsOfS, .kind = 1}};
  const RunModel run = copying_run();
  const SimulationOptions options{.end = 3000 * kNsOfS};
  CHECK(simulate::simulate(run, fleet, alone, options).attempts == 1);
  const SimulatedRun result = simulate::simulate(run, fleet, both, options);
  CHECK(seconds_of(result.time[Cause::idle]) == Approx(300).epsilon(0.01));
  CHECK(result.kinds[0].cost > 299 * kNsOfS);
}

}  // namespace trainctl::test
