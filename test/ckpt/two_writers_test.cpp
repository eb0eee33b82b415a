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
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

#include "ckpt/contest.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "test/ckpt/writer_steps.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr const char* kRun = "r";
/// So often the other writer comes next before one has ended, at most: one is interrupted at any of its
/// steps, the other does any number of its own, and at last either goes on to its end.
constexpr int kSwitches = 2;
using Files = std::map<std::string, std::string>;

// ---- states of four bytes

const std::vector<ckpt::Tensor>& tensors() {
  static const std::vector<ckpt::Tensor> list{{"w", ckpt::Role::master, DType::f32, {1}}};
  return list;
}
ckpt::StateInfo info_of(int64_t step, uint64_t epoch) {
  return {.run_id = kRun, .epoch = epoch, .step = step};
}

ckpt::ShardReceipt write(FileSystem& fs, int64_t step, uint64_t epoch) {
  const float value = float(step) + float(epoch) / 16;
  const ckpt::ChunkData chunk{0, {0, 1, 0, 1}, &value};
  const auto saving = ckpt::directory_store(fs, kDir)->saving(info_of(step, epoch));
  saving->join();
  return ckpt::write_shard(*saving, "s.safetensors", info_of(step, epoch), tensors(), {&chunk, 1});
}
void publish(FileSystem& fs, int64_t step, uint64_t epoch, const ckpt::ShardReceipt& receipt) {
  ckpt::publish(fs, kDir, info_of(step, epoch), tensors(), {&receipt, 1});
}
void save(FileSystem& fs, int64_t step, uint64_t epoch) { publish(fs, step, epoch, write(fs, step, epoch)); }
ckpt::ShardReceipt receipt_of(int64_t step, uint64_t epoch) {
  PowerLossFileSystem fs;
  return write(fs, step, epoch);
}

/// The files of a checkpoint, as its writer alone would have left them.
const Files& files_of(int64_t step, uint64_t epoch) {
  static std::map<std::pair<int64_t, uint64_t>, Files> known;
  Files& files = known[{step, epoch}];
  if (!files.empty()) return files;
  PowerLossFileSystem fs;
  save(fs, step, epoch);
  for (const auto& [path, content] : fs.files()) files[path.substr(path.rfind('/') + 1)] = content;
  return files;
}

// ---- what is there

using Place = std::pair<int64_t, uint64_t>;  // step, epoch
/// The folders that hold a checkpoint, by path below kDir, with the epoch; 0: it is none, or a mixture.
std::map<std::string, Place> checkpoints_in(const PowerLossFileSystem& fs) {
  std::map<std::string, Files> folders;
  for (const auto& [path, content] : fs.files())
    folders[path.substr(kDir.size() + 1, path.rfind('/') - kDir.size() - 1)]
           [path.substr(path.rfind('/') + 1)] = content;
  std::map<std::string, Place> found;
  for (const auto& [path, files] : folders) {
    const auto text = files.find("COMMIT");
    const auto commit = text == files.end() ? std::nullopt : ckpt::read_commit(text->second);
    const bool is_whole = commit && files == files_of(commit->step, commit->epoch);
    found[path] = is_whole ? Place{commit->step, commit->epoch} : Place{0, 0};
  }
  return found;
}
std::string name_of(int64_t step) { return fmt::format("step-{:08}", step); }

struct Situation {
  std::unique_ptr<PowerLossFileSystem> fs;
  std::array<Answers, 2> answers;
  std::array<uint64_t, 2> digests{};
  std::array<std::optional<std::string>, 2> ends;  ///< "": the writer succeeded; else what it reported
  size_t last = 0;                                 ///< the writer of the last step
  int switches = 0;                                ///< so often the other one came next
  std::string order;                               ///< the writers of the steps so far
  bool succeeded(int writer) const { return ends[size_t(writer)] == ""; }
};

struct Scenario {
  std::string name;
  std::function<void(FileSystem&)> before;
  std::array<std::function<void(FileSystem&)>, 2> writers;
  /// "" or what is wrong, at any moment, of what the next supervisor finds.
  std::function<std::string(const Situation&, const std::map<std::string, Place>&)> check;
  /// And at the end.
  std::function<std::string(const Situation&, const std::map<std::string, Place>&)> check_end;
  bool has_rivals = false;
};

/// Of what lies there and who has ended, without what the writers know.
uint64_t key_of_place(const Situation& s) {
  std::string text;
  for (const auto& [path, content] : s.fs->files()) text += path + "\n" + content + "\n";
  for (const std::string& path : s.fs->folders()) text += path + "\n";
  for (const auto& end : s.ends) text += end ? "end " + *end + "\n" : "-\n";
  return xxh3(text);
}

uint64_t key_of(const Situation& s) {
  const std::array<uint64_t, 4> known{s.digests[0], s.digests[1], s.last, uint64_t(s.switches)};
  return xxh3(std::as_bytes(std::span(known)), key_of_place(s));
}

/// The writer's next step, or all of them.
void advance(
    Situation& s, const Scenario& scenario, Accesses& accesses, size_t writer, uint64_t steps, Omits omits,
    const std::function<void()>& changed = [] {}) {
  Steps fs(*s.fs, s.answers[writer], s.digests[writer],
           {.writer = writer == 0 ? 'a' : 'b',
            .steps = steps,
            .omits = omits,
            .accesses = &accesses,
            .has_rival = scenario.has_rivals,
            .changed = changed});
  try {
    scenario.writers[writer](fs);
    s.ends[writer] = "";
  } catch (const Suspended&) {
  } catch (const Error& error) {
    s.ends[writer] = error.what();
  }
}

/// Checks a situation. "" or what is wrong.
std::string look(const Situation& s, const Scenario& scenario) {
  const auto now = checkpoints_in(*s.fs);
  for (const auto& [path, place] : now)
    if (path.starts_with("step-") && path != name_of(place.first)) return path + " is not whole";
  const auto next = s.fs->copy();
  ckpt::restore_moved(*next, kDir);
  const auto later = checkpoints_in(*next);
  if (const std::string what = scenario.check(s, later); !what.empty()) return what;
  if (!s.ends[0] || !s.ends[1]) return "";
  for (const auto& [path, place] : now)
    if (path.starts_with(".saving/moved-")) return path + " is not put back";
  const auto durable = checkpoints_in(*s.fs->after_power_loss(Survival::nothing, 0));
  for (const auto& [path, place] : now)
    if (path.starts_with("step-") && (!durable.count(path) || durable.at(path) != place))
      return path + " is not durable";
  return scenario.check_end(s, now);
}

Situation begin(const Scenario& scenario, bool no_replace) {
  Situation s;
  PowerLossFileSystem fs;
  for (const std::string& folder : {kDir, kSaving, kTrash, kEpochs}) fs.make_directory(folder);
  scenario.before(fs);
  s.fs = fs.after_power_loss(Survival::everything, 0);
  if (!no_replace) s.fs->refuse_rename_no_replace();
  return s;
}
Situation copy_of(const Situation& s) {
  return {s.fs->copy(), s.answers, s.digests, s.ends, s.last, s.switches, s.order};
}

struct Explored {
  std::string violation;
  size_t situations = 0, ends = 0;
};

bool answers_empty(const Situation& s) { return s.answers[0].empty() && s.answers[1].empty(); }

/// All orders of the steps of both writers, as far as `accesses` knows them.
Explored explore(const Scenario& scenario, Accesses& accesses, Omits omits, bool no_replace, int switches) {
  Explored result;
  std::unordered_set<uint64_t> seen;
  std::vector<Situation> open;
  open.push_back(begin(scenario, no_replace));
  std::unordered_set<uint64_t> looked_at;
  const auto look_once = [&](const Situation& s) {
    if (!result.violation.empty() || !looked_at.insert(key_of_place(s)).second) return;
    result.violation = look(s, scenario);
    if (!result.violation.empty())
      result.violation += fmt::format("; a: {}; b: {}; steps: {}", s.ends[0].value_or("stopped"),
                                      s.ends[1].value_or("stopped"), s.order);
  };
  while (!open.empty() && result.violation.empty()) {
    if (accesses.take_grown()) return explore(scenario, accesses, omits, no_replace, switches);
    const Situation s = std::move(open.back());
    open.pop_back();
    if (!seen.insert(key_of(s)).second) continue;
    ++result.situations;
    look_once(s);
    if (s.ends[0] && s.ends[1]) ++result.ends;
    for (size_t w = 0; w < 2; ++w) {
      const bool is_switch = w != s.last && !answers_empty(s) && !s.ends[1 - w];
      if (s.ends[w] || (is_switch && s.switches == switches)) continue;
      Situation next = copy_of(s);
      next.switches += is_switch;
      next.last = w;
      next.order += w == 0 ? 'a' : 'b';
      // A writer that is left alone has one way to go on.
      if (s.ends[1 - w])
        advance(next, scenario, accesses, w, ~uint64_t(0), omits, [&] { look_once(next); });
      else
        advance(next, scenario, accesses, w, 1, omits, [&] { look_once(next); });
      open.push_back(std::move(next));
    }
  }
  return accesses.take_grown() ? explore(scenario, accesses, omits, no_replace, switches) : result;
}
Explored explore(const Scenario& scenario, Omits omits = Omits::nothing, bool no_replace = true,
                 int switches = kSwitches) {
  Accesses accesses;
  explore(scenario, accesses, omits, no_replace, 1);  // finds most of them
  return explore(scenario, accesses, omits, no_replace, switches);
}

/// The first writer stops for good at any of its steps, the second must succeed.
std::string freeze(const Scenario& scenario, Omits omits = Omits::nothing) {
  Accesses accesses;
  explore(scenario, accesses, Omits::nothing, true, 1);  // which are steps
  for (uint64_t steps = 0;; ++steps) {
    Situation s = begin(scenario, true);
    advance(s, scenario, accesses, 0, steps, omits);
    const bool is_over = s.ends[0].has_value();
    advance(s, scenario, accesses, 1, ~uint64_t(0), omits);
    if (!s.succeeded(1)) return fmt::format("a stops after step {}, b: {}", steps, *s.ends[1]);
    if (const std::string what = look(s, scenario); !what.empty()) return what;
    if (is_over) return "";
  }
}

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
}
