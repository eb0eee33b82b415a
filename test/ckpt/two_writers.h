// Runs two writers of a folder of checkpoints in all orders of their steps, on a file system in memory, and
// checks every situation. A scenario says what they do and what must hold.
#pragma once
#include <fmt/format.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "ckpt/contest.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "test/ckpt/writer_steps.h"

namespace trainctl::test {

inline constexpr const char* kRun = "r";
/// So often the other writer comes next before one has ended, at most: one is interrupted at any of its
/// steps, the other does any number of its own, and at last either goes on to its end.
inline constexpr int kSwitches = 2;
using Files = std::map<std::string, std::string>;

// ---- states of four bytes

inline const std::vector<ckpt::Tensor>& tensors() {
  static const std::vector<ckpt::Tensor> list{{"w", ckpt::Role::master, DType::f32, {1}}};
  return list;
}
inline ckpt::StateInfo info_of(int64_t step, uint64_t epoch) {
  return {.run_id = kRun, .epoch = epoch, .step = step};
}

inline ckpt::ShardReceipt write(FileSystem& fs, int64_t step, uint64_t epoch) {
  const float value = float(step) + float(epoch) / 16;
  const ckpt::ChunkData chunk{0, {0, 1, 0, 1}, &value};
  const auto saving = ckpt::directory_store(fs, kDir)->saving(info_of(step, epoch));
  saving->join();
  return ckpt::write_shard(*saving, "s.safetensors", info_of(step, epoch), tensors(), {&chunk, 1});
}
inline void publish(FileSystem& fs, int64_t step, uint64_t epoch, const ckpt::ShardReceipt& receipt) {
  ckpt::publish(fs, kDir, info_of(step, epoch), tensors(), {&receipt, 1});
}
inline void save(FileSystem& fs, int64_t step, uint64_t epoch) {
  publish(fs, step, epoch, write(fs, step, epoch));
}
inline ckpt::ShardReceipt receipt_of(int64_t step, uint64_t epoch) {
  PowerLossFileSystem fs;
  return write(fs, step, epoch);
}

/// The files of a checkpoint, as its writer alone would have left them.
inline const Files& files_of(int64_t step, uint64_t epoch) {
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
inline std::map<std::string, Place> checkpoints_in(const PowerLossFileSystem& fs) {
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
inline std::string name_of(int64_t step) { return fmt::format("step-{:08}", step); }

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
  bool has_damage = false;  ///< before: check() says what may be there
};

/// Of what lies there and who has ended, without what the writers know.
inline uint64_t key_of_place(const Situation& s) {
  std::string text;
  for (const auto& [path, content] : s.fs->files()) text += path + "\n" + content + "\n";
  for (const std::string& path : s.fs->folders()) text += path + "\n";
  for (const auto& end : s.ends) text += end ? "end " + *end + "\n" : "-\n";
  return xxh3(text);
}

inline uint64_t key_of(const Situation& s) {
  const std::array<uint64_t, 4> known{s.digests[0], s.digests[1], s.last, uint64_t(s.switches)};
  return xxh3(std::as_bytes(std::span(known)), key_of_place(s));
}

/// The writer's next step, or all of them.
inline void advance(
    Situation& s, const Scenario& scenario, Accesses& accesses, size_t writer, uint64_t steps, Omits omits,
    const std::function<void()>& changed = [] {}) {
  Steps fs(*s.fs, s.answers[writer], s.digests[writer],
           {.writer = writer == 0 ? 'a' : 'b',
            .steps = steps,
            .omits = omits,
            .accesses = &accesses,
            .has_rival = scenario.has_rivals,
            .has_damage = scenario.has_damage,
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
inline std::string look(const Situation& s, const Scenario& scenario) {
  const auto now = checkpoints_in(*s.fs);
  for (const auto& [path, place] : now)
    if (path.starts_with("step-") && path != name_of(place.first) && !scenario.has_damage)
      return path + " is not whole";
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

inline Situation begin(const Scenario& scenario, bool no_replace) {
  Situation s;
  PowerLossFileSystem fs;
  for (const std::string& folder : {kDir, kSaving, kTrash, kEpochs}) fs.make_directory(folder);
  scenario.before(fs);
  s.fs = fs.after_power_loss(Survival::everything, 0);
  if (!no_replace) s.fs->refuse_rename_no_replace();
  return s;
}
inline Situation copy_of(const Situation& s) {
  return {s.fs->copy(), s.answers, s.digests, s.ends, s.last, s.switches, s.order};
}

struct Explored {
  std::string violation;
  size_t situations = 0, ends = 0;
};

inline bool answers_empty(const Situation& s) { return s.answers[0].empty() && s.answers[1].empty(); }

/// All orders of the steps of both writers, as far as `accesses` knows them.
inline Explored explore(const Scenario& scenario, Accesses& accesses, Omits omits, bool no_replace,
                        int switches) {
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
inline Explored explore(const Scenario& scenario, Omits omits = Omits::nothing, bool no_replace = true,
                        int switches = kSwitches) {
  Accesses accesses;
  explore(scenario, accesses, omits, no_replace, 1);  // finds most of them
  return explore(scenario, accesses, omits, no_replace, switches);
}

/// The first writer stops for good at any of its steps, the second must succeed.
inline std::string freeze(const Scenario& scenario, Omits omits = Omits::nothing) {
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

}  // namespace trainctl::test
