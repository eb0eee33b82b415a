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
#include "ckpt/repair.h"
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

/// A folder of another place, with step 20 of epoch 3.
PowerLossFileSystem& elsewhere() {
  static PowerLossFileSystem fs;
  if (!fs.exists(ckpt::step_directory(kDir, 20))) save(fs, 20, 3);
  return fs;
}
ckpt::CopyReport copy_from_elsewhere(FileSystem& fs) {
  return ckpt::copy(*ckpt::Checkpoint::open(elsewhere(), ckpt::step_directory(kDir, 20)),
                    *ckpt::directory_store(fs, kDir));
}

/// Both copy the same checkpoint into the folder, the second one perhaps after it began epoch 4 from there.
Scenario two_copies(bool is_newer) {
  return {.name = is_newer ? "two copies, newer epoch" : "two copies",
          .before = [](FileSystem& fs) { save(fs, 10, 2); },
          .writers = {[](FileSystem& fs) { copy_from_elsewhere(fs); },
                      [=](FileSystem& fs) {
                        if (is_newer) ckpt::supersede(fs, kDir, {kRun, 4, 20});
                        copy_from_elsewhere(fs);
                      }},
          .check =
              [](const Situation& s, const Found& found) {
                if (!is_at(found, name_of(10), {10, 2})) return "step 10 is lost";
                const bool is_copied = s.succeeded(0) || s.succeeded(1);
                return is_copied && !is_at(found, name_of(20), {20, 3}) ? "the copy is lost" : "";
              },
          .check_end =
              [](const Situation& s, const Found&) {
                return at_end(s.succeeded(0) || s.succeeded(1),
                              "both failed: " + *s.ends[0] + "; " + *s.ends[1]);
              },
          .has_rivals = true};
}

/// Step 20 of the folder has a damaged shard: its last byte is another one, or missing.
void save_damaged(FileSystem& fs, bool is_cut) {
  save(fs, 20, 3);
  const std::string path = ckpt::step_directory(kDir, 20) + "/s.safetensors";
  std::string bytes = fs.read_text(path);
  if (is_cut)
    bytes.pop_back();
  else
    bytes.back() = char(bytes.back() ^ 1);
  fs.remove_file(path);
  const auto file = fs.create(path);
  file->write_at(0, std::as_bytes(std::span(bytes)));
  file->sync();
  fs.sync_directory(ckpt::step_directory(kDir, 20));
}
void repair_from_elsewhere(FileSystem& fs) {
  const auto in = [](FileSystem& place) { return ckpt::directory_store(place, kDir)->open(20); };
  std::vector<std::unique_ptr<ckpt::StoredFiles>> sources;
  sources.push_back(in(elsewhere()));
  const auto damaged = in(fs);
  if (!damaged) throw Error(ErrorCode::kIo, "step 20 is away");
  ckpt::repair(*damaged, sources);
}
/// What lies in a folder below kDir, without what a repair has left over.
Files files_in(const Situation& s, const std::string& folder) {
  Files files;
  for (const auto& [path, content] : s.fs->files())
    if (path.starts_with(kDir + "/" + folder + "/") && !path.ends_with(".repair"))
      files[path.substr(path.rfind('/') + 1)] = content;
  return files;
}
bool is_good(const Situation& s, const std::string& folder) { return files_in(s, folder) == files_of(20, 3); }
/// All names, and every byte of all but the shard.
bool is_no_mixture(const Situation& s) {
  Files files = files_in(s, name_of(20)), good = files_of(20, 3);
  if (files.empty()) return true;  // away for a moment
  files["s.safetensors"].resize(good["s.safetensors"].size());
  files["s.safetensors"].back() = good["s.safetensors"].back();
  return files == good;
}

/// One repairs a checkpoint that does not open in its place, the other copies a good one there.
Scenario repair_and_copy_to_it() {
  return {.name = "repair and copy to it",
          .before = [](FileSystem& fs) { save_damaged(fs, true); },
          .writers = {repair_from_elsewhere, [](FileSystem& fs) { copy_from_elsewhere(fs); }},
          .check =
              [](const Situation& s, const Found&) {
                if (!is_no_mixture(s)) return "a mixture";
                return s.succeeded(1) && !is_good(s, name_of(20)) ? "the copy is not good" : "";
              },
          .check_end =
              [](const Situation& s, const Found&) {
                return at_end(s.succeeded(1) && is_good(s, name_of(20)), "the copy failed: " + *s.ends[1]);
              },
          .has_rivals = true,
          .has_damage = true};
}

/// One repairs a checkpoint, the other copies it to a store. It copies good bytes or none.
Scenario repair_and_copy_of_it() {
  static const std::string store = kDir + "/store";
  return {
      .name = "repair and copy of it",
      .before = [](FileSystem& fs) { save_damaged(fs, false); },
      .writers = {repair_from_elsewhere,
                  [](FileSystem& fs) {
                    ckpt::copy(*ckpt::Checkpoint::open(fs, ckpt::step_directory(kDir, 20)),
                               *ckpt::directory_store(fs, store));
                  }},
      .check =
          [](const Situation& s, const Found&) {
            const std::string copy = "store/" + name_of(20);
            if (!is_no_mixture(s)) return "a mixture";
            if (s.succeeded(0) && !is_good(s, name_of(20))) return "the repair is lost";
            if (s.succeeded(1) && !is_good(s, copy)) return "the copy is lost";
            return !files_in(s, copy).empty() && !is_good(s, copy) ? "damage was copied" : "";
          },
      .check_end = [](const Situation& s,
                      const Found&) { return at_end(s.succeeded(0), "the repair failed: " + *s.ends[0]); },
      .has_damage = true};
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
          save_and_retention(),
          two_copies(false),
          two_copies(true),
          repair_and_copy_to_it(),
          repair_and_copy_of_it()};
}

}  // namespace

TEST_CASE("two writers, all orders of their steps", "[two_writers][all]") {
  for (const bool no_replace : {true, false})
    for (const Scenario& scenario : scenarios()) {
      // Many, and no other calls.
      const bool is_long = scenario.name.ends_with("older checkpoint") || scenario.has_damage;
      if (!no_replace && is_long) continue;
      const Explored result = explore(scenario, Omits::nothing, no_replace);
      INFO(scenario.name << (no_replace ? "" : ", no flags of rename") << ": " << result.situations
                         << " situations, " << result.ends << " ends");
      CHECK(result.violation == "");
      CHECK(result.ends > 1);
    }
}

TEST_CASE("a writer that stops for good does not cost the other its save", "[two_writers]") {
  for (const Scenario& scenario : scenarios()) {
    // It may have removed what the other begins from; and what is damaged is not copied.
    if (scenario.name == "retention" || scenario.name == "repair and copy of it") continue;
    INFO(scenario.name);
    CHECK(freeze(scenario) == "");
  }
}

TEST_CASE("each step of the protocol that is left out is seen", "[two_writers][all]") {
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
      {Omits::claim, two_copies(false)},
  };
  for (const Mutant& mutant : mutants) {
    INFO(int(mutant.omits) << " " << mutant.scenario.name);
    CHECK(explore(mutant.scenario, mutant.omits, true, mutant.switches).violation != "");
  }
  CHECK(freeze(same_epoch(false), Omits::take_over) != "");
  CHECK(explore(chosen_source(false)).violation != "");
}
