// Goal: two supervisors that both take themselves for the writer of a folder of checkpoints, an older and a
// newer one or two of the same epoch, never lose a checkpoint of the newest epoch, never publish a mixture,
// and never bring back what the run has left behind; whichever of their steps come in whichever order, and
// also if either is killed at any step. Method: exhaustive. Every call to the file system is a step. All
// orders of the steps of two writers with so many changes from one to the other as kSwitches says are run
// on a file system in memory, equal situations once: a writer is run again from its beginning with the
// answers that it had, then does one step more. What must hold is checked in every situation, after
// everything that lies about was put back as the next supervisor does it. Then the same with file systems
// that leave out a step of the protocol: each omission must be seen.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>

#include "ckpt/contest.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "test/ckpt/two_writers.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

// ---- the scenarios

using Found = std::map<std::string, Place>;
bool is_at(const Found& found, const std::string& path, Place place) {
  const auto at = found.find(path);
  return at != found.end() && at->second == place;
}
bool is_anywhere(const Found& found, Place place) {
  return std::any_of(found.begin(), found.end(), [&](const auto& f) {
    return f.second == place && !f.first.starts_with(".trash") && !f.first.starts_with(".saving/step-");
  });
}
std::string at_end(bool holds, const std::string& what) { return holds ? "" : what; }

/// Epoch 4 goes back to step 10 and saves step 20 while a supervisor of epoch 3 saves that step.
Scenario newer_epoch(bool has_older, bool is_late) {
  const auto receipt3 = receipt_of(20, 3), receipt4 = receipt_of(20, 4);
  return {.name = fmt::format("newer epoch{}{}", has_older ? ", older checkpoint" : "",
                              is_late ? ", ranks of the older one write" : ""),
          .before =
              [=](FileSystem& fs) {
                save(fs, 10, 2);
                if (has_older) save(fs, 20, 2);
                if (!is_late) write(fs, 20, 3);
                write(fs, 20, 4);
              },
          .writers = {[=](FileSystem& fs) {
                        if (is_late) write(fs, 20, 3);
                        publish(fs, 20, 3, receipt3);
                      },
                      [=](FileSystem& fs) {
                        ckpt::supersede(fs, kDir, {kRun, 4, 10});
                        publish(fs, 20, 4, receipt4);
                      }},
          .check =
              [](const Situation& s, const Found& found) {
                if (!is_at(found, name_of(10), {10, 2})) return "step 10 is lost";
                return s.succeeded(1) && !is_at(found, name_of(20), {20, 4}) ? "epoch 4's step is lost" : "";
              },
          .check_end =
              [](const Situation& s, const Found& found) {
                if (!s.succeeded(1)) return "epoch 4 failed: " + *s.ends[1];
                return at_end(!s.succeeded(0) || is_anywhere(found, {20, 3}), "epoch 3's step is lost");
              }};
}

/// The ranks of an epoch are attached to by a second supervisor while the first is in a save.
Scenario same_epoch(bool has_older) {
  const auto receipt = receipt_of(20, 3);
  const auto writer = [=](FileSystem& fs) { publish(fs, 20, 3, receipt); };
  return {.name = has_older ? "same epoch, older checkpoint" : "same epoch",
          .before =
              [=](FileSystem& fs) {
                if (has_older) save(fs, 20, 2);
                write(fs, 20, 3);
              },
          .writers = {writer, writer},
          .check =
              [=](const Situation& s, const Found& found) {
                const bool is_saved = is_at(found, name_of(20), {20, 3});
                if ((s.succeeded(0) || s.succeeded(1)) && !is_saved) return "the step is lost";
                return has_older && !is_saved && !is_at(found, name_of(20), {20, 2})
                           ? "the older step is lost"
                           : "";
              },
          .check_end =
              [](const Situation& s, const Found&) {
                return at_end(s.succeeded(0) || s.succeeded(1),
                              "both failed: " + s.ends[0].value_or("") + "; " + s.ends[1].value_or(""));
              },
          .has_rivals = true};
}

/// Both publish step 20; nothing told epoch 3 that there is an epoch 4.
Scenario both_publish() {
  const auto receipt3 = receipt_of(20, 3), receipt4 = receipt_of(20, 4);
  return {.name = "both publish",
          .before =
              [](FileSystem& fs) {
                save(fs, 20, 2);
                write(fs, 20, 3);
                write(fs, 20, 4);
              },
          .writers = {[=](FileSystem& fs) { publish(fs, 20, 3, receipt3); },
                      [=](FileSystem& fs) { publish(fs, 20, 4, receipt4); }},
          .check =
              [](const Situation& s, const Found& found) {
                if (!found.count(name_of(20))) return "no step 20";
                return s.succeeded(1) && !is_at(found, name_of(20), {20, 4}) ? "epoch 4's step is lost" : "";
              },
          .check_end =
              [](const Situation& s, const Found&) {
                return at_end(s.succeeded(1), "epoch 4 failed: " + s.ends[1].value_or(""));
              }};
}

/// Epoch 3's retention while epoch 4 goes back to step 10 and saves.
Scenario retention() {
  const auto receipt4 = receipt_of(20, 4);
  return {.name = "retention",
          .before =
              [](FileSystem& fs) {
                for (const int64_t step : {10, 20, 30}) save(fs, step, 3);
                write(fs, 20, 4);
              },
          .writers = {[](FileSystem& fs) {
                        ckpt::retain(*ckpt::directory_store(fs, kDir), {.current_epoch = 3});
                      },
                      [=](FileSystem& fs) {
                        ckpt::supersede(fs, kDir, {kRun, 4, 10});
                        publish(fs, 20, 4, receipt4);
                      }},
          .check =
              [](const Situation& s, const Found& found) {
                if (!is_anywhere(found, {30, 3})) return "step 30 is lost";
                if (!s.succeeded(1)) return "";
                if (!is_at(found, name_of(20), {20, 4})) return "epoch 4's step is lost";
                return "";
              },
          .check_end = [](const Situation& s, const Found& found) -> std::string {
            // Or epoch 4 came too late: its step 10 was removed before it had begun.
            const bool has_source = is_at(found, name_of(10), {10, 3});
            if (s.succeeded(1)) return at_end(is_at(found, name_of(20), {20, 4}), "epoch 4's step is lost");
            return at_end(!has_source && is_at(found, name_of(30), {30, 3}), "epoch 4 failed: " + *s.ends[1]);
          }};
}

/// Epoch 4 has chosen step 10 to go on from; epoch 3's retention removes it at any moment. If epoch 4 finds
/// that, it chooses the newest.
///   looks_again   it says that it goes on from there; else it looks no more after its choice
Scenario chosen_source(bool looks_again) {
  const auto begin = [=](FileSystem& fs, int64_t step) {
    if (looks_again)
      ckpt::supersede_from_here(fs, kDir, {kRun, 4, step});
    else
      ckpt::supersede(fs, kDir, {kRun, 4, step});
  };
  return {
      .name = "chosen source",
      .before =
          [](FileSystem& fs) {
            for (const int64_t step : {10, 20, 30}) save(fs, step, 3);
          },
      .writers = {[](FileSystem& fs) {
                    ckpt::retain(*ckpt::directory_store(fs, kDir), {.current_epoch = 3});
                  },
                  [=](FileSystem& fs) {
                    if (!fs.exists(ckpt::step_directory(kDir, 10))) return begin(fs, 30);
                    try {
                      begin(fs, 10);
                    } catch (const Error&) {
                      begin(fs, 30);
                    }
                  }},
      .check =
          [](const Situation& s, const Found& found) {
            if (!is_anywhere(found, {30, 3})) return "step 30 is lost";
            const bool has_source = is_at(found, name_of(10), {10, 3}) || is_at(found, name_of(30), {30, 3});
            return s.succeeded(1) && !has_source ? "what epoch 4 goes on from is lost" : "";
          },
      .check_end =
          [](const Situation& s, const Found&) {
            return at_end(s.succeeded(1), "epoch 4 failed: " + s.ends[1].value_or(""));
          }};
}

/// A supervisor that begins epoch 4 is overtaken by epoch 5.
Scenario two_beginnings() {
  const auto receipt5 = receipt_of(20, 5);
  return {.name = "two beginnings",
          .before =
              [](FileSystem& fs) {
                for (const int64_t step : {10, 20}) save(fs, step, 2);
                write(fs, 20, 5);
              },
          .writers = {[](FileSystem& fs) {
                        ckpt::supersede(fs, kDir, {kRun, 4, 10});
                      },
                      [=](FileSystem& fs) {
                        ckpt::supersede(fs, kDir, {kRun, 5, 10});
                        publish(fs, 20, 5, receipt5);
                      }},
          .check =
              [](const Situation& s, const Found& found) {
                if (!is_at(found, name_of(10), {10, 2})) return "step 10 is lost";
                if (!is_anywhere(found, {20, 2})) return "what was set aside is lost";
                return s.succeeded(1) && !is_at(found, name_of(20), {20, 5}) ? "epoch 5's step is lost" : "";
              },
          .check_end =
              [](const Situation& s, const Found&) {
                return at_end(s.succeeded(1), "epoch 5 failed: " + s.ends[1].value_or(""));
              }};
}

/// One supervisor saves while its caretaker removes older checkpoints.
Scenario save_and_retention() {
  const auto receipt = receipt_of(30, 3);
  return {.name = "save and retention",
          .before =
              [](FileSystem& fs) {
                for (const int64_t step : {10, 20}) save(fs, step, 3);
                write(fs, 30, 3);
              },
          .writers = {[=](FileSystem& fs) { publish(fs, 30, 3, receipt); },
                      [](FileSystem& fs) {
                        ckpt::retain(*ckpt::directory_store(fs, kDir), {.current_epoch = 3});
                      }},
          .check =
              [](const Situation& s, const Found& found) {
                if (!is_at(found, name_of(20), {20, 3})) return "step 20 is lost";
                return s.succeeded(0) && !is_at(found, name_of(30), {30, 3}) ? "step 30 is lost" : "";
              },
          .check_end =
              [](const Situation& s, const Found&) {
                return at_end(s.succeeded(0) && s.succeeded(1), "failed: " + *s.ends[0] + *s.ends[1]);
              }};
}

std::vector<Scenario> scenarios() {
  return {newer_epoch(false, false),
          newer_epoch(true, false),
          newer_epoch(false, true),
          same_epoch(false),
          same_epoch(true),
          both_publish(),
          retention(),
          chosen_source(true),
          two_beginnings(),
          save_and_retention()};
}

}  // namespace

TEST_CASE("two writers, all orders of their steps", "[two_writers]") {
  for (const bool no_replace : {true, false})
    for (const Scenario& scenario : scenarios()) {
      if (!no_replace && scenario.name.ends_with("older checkpoint")) continue;  // many, and no other calls
      const Explored result = explore(scenario, Omits::nothing, no_replace);
      INFO(scenario.name << (no_replace ? "" : ", no flags of rename") << ": " << result.situations
                         << " situations, " << result.ends << " ends");
      CHECK(result.violation == "");
      CHECK(result.ends > 1);
    }
}

TEST_CASE("a writer that stops for good does not cost the other its save", "[two_writers]") {
  for (const Scenario& scenario : scenarios()) {
    if (scenario.name == "retention") continue;  // it may have removed what the other begins from
    INFO(scenario.name);
    CHECK(freeze(scenario) == "");
  }
}

TEST_CASE("each step of the protocol that is left out is seen", "[two_writers]") {
  struct Mutant {
    Omits omits;
    Scenario scenario;
    int switches = kSwitches;
  };
  const Mutant mutants[] = {
      {Omits::claim, same_epoch(false)},
      {Omits::own_claim, same_epoch(false)},
      {Omits::fence, newer_epoch(false, false)},
      {Omits::mark, newer_epoch(false, true)},
      {Omits::mark_before_fence, newer_epoch(false, true), 3},
      {Omits::look_after_move, both_publish()},
      {Omits::put_back, both_publish()},
      {Omits::put_back, retention()},
      {Omits::put_back, newer_epoch(true, false)},
      {Omits::sync_of_folder, newer_epoch(true, false)},
  };
  for (const Mutant& mutant : mutants) {
    INFO(int(mutant.omits) << " " << mutant.scenario.name);
    CHECK(explore(mutant.scenario, mutant.omits, true, mutant.switches).violation != "");
  }
  CHECK(freeze(same_epoch(false), Omits::take_over) != "");
  CHECK(explore(chosen_source(false)).violation != "");
}
