// Goal: the parts of the simulator are right: times of steps, kept states, what the supervisor sees, fleet files.
// Method: the closed forms of the clock against a loop over all steps; states by hand; each mistake of a file.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/simulate/detection.h"
#include "runtime/simulate/render.h"
#include "test/runtime/simulate/simulated.h"

namespace trainctl::test {
namespace {

using namespace simulate;

/// What parse_fleet says about the known fleet with one text replaced.
std::string complaint(const std::string& what, const std::string& by) {
  std::string text(known_fleet_text("llama3"));
  const size_t at = text.find(what);
  REQUIRE(at != text.npos);
  text.replace(at, what.size(), by);
  try {
    parse_fleet(text, "f.json");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("attempt clock: closed forms are the sums over all steps") {
  const Pauses pauses{.directory = {6, 50}, .memory = {4, 7}, .evaluation = {5, 30}};
  AttemptClock clock(1000, 17, 100, pauses);
  clock.change_pace(1950, 160);  // in step 26 or so
  clock.change_pace(3100, 90);
  clock.change_pace(3105, 110);  // before the next step begins
  Ns now = 1000, step_time = 100;
  std::vector<std::pair<Ns, Ns>> changes = {{1950, 160}, {3100, 90}, {3105, 110}};
  std::vector<Ns> ends;
  for (int64_t step = 18; step < 80; ++step) {
    while (!changes.empty() && changes.front().first < now)
      step_time = changes.front().second, changes.erase(changes.begin());
    now += step_time;
    ends.push_back(now);
    CAPTURE(step);
    CHECK(clock.end_of(step) == now);
    CHECK(clock.steps_at(now) == step);
    CHECK(clock.steps_at(now - 1) == step - 1);
    now += step % 6 == 0 ? 50 : step % 4 == 0 ? 7 : 0;
    if (step % 5 == 0) now += 30;
  }
  CHECK(clock.steps_at(0) == 17);
  CHECK(clock.saved_at(ends[0], 6, 10) == -1);
  CHECK(clock.saved_at(ends[24 - 18] + 9, 6, 10) == 18);
  CHECK(clock.saved_at(ends[24 - 18] + 10, 6, 10) == 24);
  CHECK(clock.saved_at(ends[35 - 18], 6, 10) == 30);
}

TEST_CASE("kept states: the nearest whole one is chosen") {
  KeptStates kept({.partners = {2, 3, 0, 1}, .keep_last = 2});
  kept.begins(1, 0);
  CHECK(kept.choose({}, {}).from == LoadFrom::nothing);
  kept.published(100);
  kept.copied({109, 1}, false);
  kept.copied({104, 1}, true);
  CHECK(kept.choose({}, {}).from == LoadFrom::memory);
  CHECK(kept.choose({}, {}).state.step == 109);
  CHECK(kept.choose({}, {{109, 1}}).state.step == 104);
  CHECK(kept.choose(103, {}).from == LoadFrom::directory);
  kept.lose(1);
  CHECK(kept.choose({}, {}).from == LoadFrom::partner);
  CHECK(kept.choose({}, {}).state.step == 104);
  kept.lose(0);  // not the partner of 1
  CHECK(kept.choose({}, {}).from == LoadFrom::partner);
  kept.lose(3);
  CHECK(kept.choose({}, {}).from == LoadFrom::directory);
  CHECK(kept.choose({}, {}).state.step == 100);
  // The run goes back: later states are of another line.
  kept.copied({120, 1}, true);
  kept.begins(2, 100);
  CHECK(kept.choose({}, {}).state.step == 100);
  for (const int64_t step : {110, 120, 130}) kept.published(step);
  CHECK(kept.choose(119, {}).from == LoadFrom::nothing);  // two are kept
}

TEST_CASE("detection: what Supervision takes a failure for, and when") {
  FaultSpec fault;
  fault.node_silence_seconds = 3, fault.collective_timeout_seconds = 40;
  const Detection crash = detect(Effect::crash, fault), hang = detect(Effect::hang, fault),
                  node = detect(Effect::node, fault);
  CHECK(crash.code == ErrorCode::kHardware);
  const Detection device = detect(Effect::device, fault);
  CHECK(device.code == ErrorCode::kDevice);
  CHECK(device.evidence == crash.evidence);
  CHECK(crash.evidence == 0);
  CHECK(crash.collecting > 0);
  CHECK(crash.collecting < kNsOfS / 2);
  CHECK(hang.code == ErrorCode::kHang);
  CHECK(seconds_of(hang.evidence) == Approx(40));
  CHECK(seconds_of(node.evidence) == Approx(3));
  CHECK(node.is_lost_node);
  CHECK_FALSE(hang.is_lost_node);
}

TEST_CASE("failures: as many as the rates say, and the same of every length") {
  const FleetModel fleet = parse_fleet(known_fleet_text("llama3"), "llama3");
  const FailureSource source{.gpus = 16384, .nodes = 2048, .seed = 7};
  const auto failures = draw_failures(fleet, source, ns_of(540 * 86400.0));
  CHECK(double(failures.size()) == Approx(4660).epsilon(0.05));
  const auto half = draw_failures(fleet, source, ns_of(270 * 86400.0));
  REQUIRE(half.size() < failures.size());
  for (size_t i = 0; i < half.size(); ++i) {
    REQUIRE(half[i].at == failures[i].at);
    REQUIRE(half[i].place == failures[i].place);
    REQUIRE((failures[i].place >= 0 && failures[i].place < 2048));
    REQUIRE((i == 0 || half[i - 1].at <= half[i].at));
  }
  CHECK(draw_failures(fleet, {.gpus = 16384, .nodes = 2048, .rate_times = 0}, ns_of(1e6)).empty());
}

TEST_CASE("fleet files: each mistake is named with its place") {
  CHECK(complaint("\"events\": 148", "\"events\": -1") ==
        "f.json: failures[0].events = -1 is impossible in its unit; use 0 to 1e+09");
  CHECK(complaint("\"events\": 148, ", "") == "f.json: failures[0].events is missing");
  CHECK(complaint("\"events\": 148", "\"events\": \"many\"") == "f.json: failures[0].events is not a number");
  CHECK(complaint("\"repair_hours\": 24}", "\"repair_minutes\": 24}") ==
        "f.json: failures[0].repair_minutes is not known: give it in the unit of repair_hours\n"
        "f.json: failures[0].repair_hours is missing");
  CHECK(
      complaint("\"effect\": \"crash\"", "\"effect\": \"boom\"") ==
      "f.json: failures[2].effect must be one of crash, device, hang, node, silent, slow, storage, planned");
  CHECK(complaint("\"kind\": \"hbm\"", "\"kind\": \"gpu\"") ==
        "f.json: failures[1].kind = gpu is there twice");
  CHECK(complaint("\"days\": 54", "\"days\": 0") ==
        "f.json: observed.days = 0 is impossible in its unit; use 0.01 to 36500");
  CHECK(complaint("\"gpus\": 16384", "\"gpus\": 4") ==
        "f.json: observed.gpus_per_node = 8 is above gpus = 4");
  CHECK(complaint("\"version\": 1", "\"version\": 2") ==
        "f.json: version = 2 is impossible in its unit; use 1 to 1");
  CHECK(
      complaint("\"effect\": \"silent\", \"repair_hours\": 24, \"found_after_minutes\": 30",
                "\"effect\": \"slow\", \"repair_hours\": 0") ==
      "f.json: failures[9].slowdown is missing\n"
      "f.json: failures[9].repair_hours = 0 is impossible where effect is slow: it says how long that lasts");
  CHECK(complaint("\"effect\": \"crash\"", "\"effect\": \"crash\", \"nodes\": 4") ==
        "f.json: failures[2].nodes = 4 needs effect = node: only nodes fail together");
  CHECK(complaint("{", "[").find("f.json: ") == 0);
  CHECK_THROWS_AS(parse_fleet("[]", "f.json"), Error);
}

TEST_CASE("cost: dollars a trillion tokens, of all GPUs of the fleet") {
  SimulationReport report{.run = small_run(), .fleet_gpus = 40, .price = Price{"USD", "2026-11-01", 2}};
  report.result.wall = ns_of(3600);
  report.result.steps = 1000;
  report.run.total_steps = 24000;
  CHECK(report.gpu_hours() == 40);
  CHECK(report.cost_per_trillion_tokens() == Approx(80e6));  // 80 dollars for a million tokens
  CHECK(report.days_for_job() == Approx(1));
}

TEST_CASE("energy: of the mesh's GPUs, in all and a trillion tokens") {
  SimulationReport report{.run = small_run(), .fleet_gpus = 40};
  report.result.wall = ns_of(3600);
  report.result.steps = 1000;
  CHECK_FALSE(simulation_json(report).contains("energy"));
  CHECK(render_simulation(report).find("Energy") == std::string::npos);
  report.power = Power{"h100", 700, 0.4, 1.2, 1.5};
  CHECK(report.kwh() == 48);  // 32 of the 40 GPUs
  const OrderedJson energy = simulation_json(report)["energy"];
  CHECK(energy["kwh"] == 48.0);
  CHECK(energy["kwh_per_trillion_tokens"].get<double>() == Approx(48e6));
  CHECK(render_simulation(report).find("Energy   48 kWh for the simulated time, 48 GWh per trillion tokens, "
                                       "without spare nodes, at the limit of 700 W a board") !=
        std::string::npos);
  report.result.steps = 0;
  CHECK(simulation_json(report)["energy"]["kwh_per_trillion_tokens"].is_null());
  CHECK(render_simulation(report).find("simulated time, without spare") != std::string::npos);
}

}  // namespace trainctl::test
