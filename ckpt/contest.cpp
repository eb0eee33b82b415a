#include "ckpt/contest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "ckpt/folders.h"
#include "ckpt/manifest.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"

namespace trainctl::ckpt {
namespace {

constexpr const char* kMovedPrefix = "moved-";
/// Each try is lost to another writer's rename. So many in a row are no coincidence.
constexpr int kContestTries = 100;
/// A folder that was away a moment ago may be there again; one that cannot be moved stays.
constexpr int kFailures = 3;

std::string epochs_root(const std::string& dir) { return dir + "/.epochs"; }

std::vector<std::string> names_in(FileSystem& fs, const std::string& folder) {
  return fs.is_directory(folder) ? fs.list(folder) : std::vector<std::string>{};
}

template <typename T>
std::optional<T> number_of(const std::string& text, int base = 10) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value, base);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(value) : std::nullopt;
}

struct Mark {
  uint64_t epoch = 0, run = 0;
  int64_t step = 0;
};

std::string name_of_mark(const Mark& mark) {
  return fmt::format("e{}-from-{:08}-{:016x}", mark.epoch, mark.step, mark.run);
}

std::string path_of_mark(const std::string& dir, const EpochBegin& begin) {
  return epochs_root(dir) + "/" +
         name_of_mark({.epoch = begin.epoch, .run = xxh3(begin.run_id), .step = begin.step});
}

std::optional<Mark> mark_of(const std::string& name) {
  const size_t from = name.find("-from-"), hash = name.rfind('-');
  if (!name.starts_with("e") || from == std::string::npos || hash <= from + 5) return std::nullopt;
  const auto epoch = number_of<uint64_t>(name.substr(1, from - 1));
  const auto step = number_of<int64_t>(name.substr(from + 6, hash - from - 6));
  const auto run = number_of<uint64_t>(name.substr(hash + 1), 16);
  if (!epoch || !step || !run) return std::nullopt;
  return Mark{.epoch = *epoch, .run = *run, .step = *step};
}

std::vector<Mark> marks_of(FileSystem& fs, const std::string& dir, const std::string& run_id) {
  std::vector<Mark> marks;
  for (const std::string& name : names_in(fs, epochs_root(dir)))
    if (const auto mark = mark_of(name); mark && mark->run == xxh3(run_id)) marks.push_back(*mark);
  return marks;
}

/// The step of a name that take_away gave.
std::optional<int64_t> moved_step(const std::string& name) {
  const std::string prefix = kMovedPrefix;
  return name.starts_with(prefix) ? step_of_name(name.substr(prefix.size(), name.rfind('.') - prefix.size()))
                                  : std::nullopt;
}

/// Of a checkpoint whose COMMIT cannot be read: it is older than every other.
uint64_t epoch_of(FileSystem& fs, const std::string& path) {
  const auto commit = commit_of(fs, path);
  return commit ? commit->epoch : 0;
}

/// Another checkpoint of this step was set aside before: of the two the later epoch's is kept.
bool set_aside_again(FileSystem& fs, const std::string& dir, int64_t step, uint64_t epoch,
                     const std::string& there) {
  const std::string moved = take_away(fs, dir, step);
  if (moved.empty()) return false;
  if (epoch_of(fs, moved) >= epoch) return put_back(fs, dir, moved, step), false;
  if (epoch_of(fs, moved) > epoch_of(fs, there)) {
    move_to_trash(fs, dir, there.substr(dir.size() + 1));
    if (try_move(fs, moved, there)) return true;
  }
  discard_moved(fs, dir, moved);
  return true;
}

/// Others may remove it at the same time.
void remove_for_all(FileSystem& fs, const std::string& path) {
  try {
    fs.remove_tree(path);
  } catch (const Error&) {
    if (fs.exists(path)) throw;
  }
}

void discard_quietly(FileSystem& fs, const std::string& dir, const std::string& path) {
  try {
    move_to_trash(fs, dir, path.substr(dir.size() + 1));
  } catch (const Error&) {
    // The next restore_moved finds it.
  }
}

}  // namespace

std::optional<CommitId> read_commit(const std::string& text) try {
  const Json commit = try_parse_json(text);
  if (!commit.is_object()) return std::nullopt;
  return CommitId{.run_id = commit.at("run_id").get<std::string>(),
                  .epoch = commit.at("epoch").get<uint64_t>(),
                  .step = commit.at("step").get<int64_t>(),
                  .root = commit.at("root").get<std::string>()};
} catch (const JsonError&) {
  return std::nullopt;
}

std::optional<CommitId> commit_of(FileSystem& fs, const std::string& path) {
  try {
    return read_commit(fs.read_text(path + "/" + kCommitName));
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<SavingName> saving_name(const std::string& name) {
  const size_t dot = name.find(".e");
  if (dot == std::string::npos) return std::nullopt;
  const auto step = step_of_name(name.substr(0, dot));
  const size_t word = std::min(name.find('.', dot + 2), name.size());
  const auto epoch = number_of<uint64_t>(name.substr(dot + 2, word - dot - 2));
  if (!step || !epoch) return std::nullopt;
  return SavingName{*step, *epoch, word < name.size() ? name.substr(word + 1) : ""};
}

std::vector<std::string> claims_of(FileSystem& fs, const std::string& dir, int64_t step, uint64_t epoch) {
  std::vector<std::string> claims;
  for (const std::string& name : names_in(fs, saving_root(dir)))
    if (const auto saving = saving_name(name);
        saving && saving->step == step && saving->epoch == epoch && !saving->claim.empty())
      claims.push_back(name);
  return claims;
}

// ---- epochs

std::optional<EpochBegin> epoch_against(FileSystem& fs, const std::string& dir, const std::string& run_id,
                                        uint64_t epoch, int64_t step) {
  std::optional<EpochBegin> latest;
  for (const Mark& mark : marks_of(fs, dir, run_id))
    if (mark.epoch > epoch && mark.step < step && (!latest || mark.epoch > latest->epoch))
      latest = {run_id, mark.epoch, mark.step};
  return latest;
}

bool has_newer_epoch(FileSystem& fs, const std::string& dir, const std::string& run_id, uint64_t epoch) {
  const std::vector<Mark> marks = marks_of(fs, dir, run_id);
  return std::any_of(marks.begin(), marks.end(), [&](const Mark& mark) { return mark.epoch > epoch; });
}

void mark_epoch(FileSystem& fs, const std::string& dir, const EpochBegin& begin) {
  const auto check = [&] {
    if (has_newer_epoch(fs, dir, begin.run_id, begin.epoch))
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format("a newer attempt of this run than {} has begun in {}; this supervisor is out of date",
                      begin.epoch, dir));
  };
  check();
  const std::string root = epochs_root(dir);
  make_durable_directory(fs, root);
  const std::string own = path_of_mark(dir, begin);
  fs.make_directory(own);
  fs.sync_directory(root);
  try {
    check();
  } catch (const Error&) {
    remove_for_all(fs, own);
    throw;
  }
  // An older epoch that began later leaves behind no more than this one.
  for (const Mark& mark : marks_of(fs, dir, begin.run_id))
    if (mark.epoch < begin.epoch && mark.step >= begin.step)
      remove_for_all(fs, root + "/" + name_of_mark(mark));
}

void withdraw_mark(FileSystem& fs, const std::string& dir, const EpochBegin& begin) {
  remove_for_all(fs, path_of_mark(dir, begin));
  fs.sync_directory(epochs_root(dir));
}

// ---- saves under way

void sweep_saving(FileSystem& fs, const std::string& dir,
                  const std::function<bool(const std::string&)>& is_kept) {
  int failures = 0;
  for (int i = 0; i < kContestTries; ++i) {
    bool is_clean = true;
    for (const std::string& name : names_in(fs, saving_root(dir))) {
      if (moved_step(name) || is_kept(name)) continue;
      is_clean = false;
      try {
        move_to_trash(fs, dir, ".saving/" + name);
      } catch (const Error&) {
        // Claimed or given back since it was listed: the next round finds it under its other name.
        if (fs.exists(saving_root(dir) + "/" + name) && ++failures > kFailures) throw;
      }
    }
    if (is_clean) return;
  }
  throw Error(ErrorCode::kIo,
              fmt::format("saves come and go in {}: another writer is at work", saving_root(dir)));
}

void empty_trash(FileSystem& fs, const std::string& dir) {
  for (const std::string& name : names_in(fs, trash_root(dir)))
    remove_for_all(fs, trash_root(dir) + "/" + name);
}

// ---- published checkpoints

bool try_move(FileSystem& fs, const std::string& from, const std::string& to) {
  for (int failures = 0;; ++failures) {
    try {
      fs.rename_no_replace(from, to);
      return true;
    } catch (const Error&) {
      const bool is_free = fs.exists(from) && !fs.exists(to);
      if (is_free && failures == kFailures) throw;
      if (!is_free) return false;
    }
  }
}

void discard_moved(FileSystem& fs, const std::string& dir, const std::string& path) {
  try {
    move_to_trash(fs, dir, path.substr(dir.size() + 1));
  } catch (const Error&) {
    if (fs.exists(path)) throw;
  }
}

std::string take_away(FileSystem& fs, const std::string& dir, int64_t step) {
  make_durable_directory(fs, saving_root(dir));
  const std::string from = step_directory(dir, step),
                    to = fmt::format("{}/{}{}.{}", saving_root(dir), kMovedPrefix, base_name(from),
                                     new_word());
  return try_move(fs, from, to) ? to : "";
}

void put_back(FileSystem& fs, const std::string& dir, const std::string& path, int64_t step) {
  const std::string target = step_directory(dir, step);
  std::string winner = path;
  std::vector<std::string> losers;
  for (int i = 0; i < kContestTries; ++i) {
    if (try_move(fs, winner, target)) break;
    if (!fs.exists(winner)) break;  // another has put it back
    if (epoch_of(fs, target) >= epoch_of(fs, winner)) {
      losers.push_back(winner);
      break;
    }
    const std::string there = take_away(fs, dir, step);
    if (there.empty()) continue;
    const bool is_newer = epoch_of(fs, there) >= epoch_of(fs, winner);
    losers.push_back(is_newer ? winner : there);
    if (is_newer) winner = there;
  }
  fs.sync_directory(dir);
  fs.sync_directory(saving_root(dir));
  for (const std::string& loser : losers) discard_quietly(fs, dir, loser);
  const auto commit = commit_of(fs, target);
  if (!commit) return;
  if (const auto newer = epoch_against(fs, dir, commit->run_id, commit->epoch, step))
    set_aside(fs, dir, step, newer->epoch);
}

void try_put_back(FileSystem& fs, const std::string& dir, const std::string& path, int64_t step) {
  try {
    put_back(fs, dir, path, step);
  } catch (const Error&) {
    // restore_moved finds it.
  }
}

void restore_moved(FileSystem& fs, const std::string& dir) {
  for (const std::string& name : names_in(fs, saving_root(dir)))
    if (const auto step = moved_step(name)) put_back(fs, dir, saving_root(dir) + "/" + name, *step);
  // A writer that was out of date died before it had looked at what it set aside.
  for (const std::string& name : names_in(fs, dir)) {
    const auto epoch = superseding_epoch(name);
    if (!epoch) continue;
    const std::string aside = dir + "/" + name;
    for (const int64_t step : list_steps(fs, aside))
      if (epoch_of(fs, step_directory(aside, step)) >= *epoch) {
        put_back(fs, dir, step_directory(aside, step), step);
        fs.sync_directory(aside);
      }
  }
}

bool set_aside(FileSystem& fs, const std::string& dir, int64_t step, uint64_t epoch) {
  const std::string from = step_directory(dir, step), aside = superseded_directory(dir, epoch),
                    to = step_directory(aside, step);
  if (epoch_of(fs, from) >= epoch) return false;
  make_durable_directory(fs, aside);
  if (fs.exists(to)) return set_aside_again(fs, dir, step, epoch, to);
  if (!try_move(fs, from, to)) return false;
  if (epoch_of(fs, to) >= epoch) {
    put_back(fs, dir, to, step);
    fs.sync_directory(aside);
    return false;
  }
  fs.sync_directory(aside);
  fs.sync_directory(dir);
  return true;
}

}  // namespace trainctl::ckpt
