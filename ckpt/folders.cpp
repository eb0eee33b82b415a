#include "ckpt/folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "ckpt/manifest.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }
std::string saving_root(const std::string& dir) { return dir + "/.saving"; }
std::string trash_root(const std::string& dir) { return dir + "/.trash"; }

std::string saving_directory(const std::string& dir, const StateInfo& state) {
  return fmt::format("{}/step-{:08}.e{}", saving_root(dir), state.step, state.epoch);
}

std::string step_directory(const std::string& dir, int64_t step) { return fmt::format("{}/step-{:08}", dir, step); }

std::string shard_file_name(int index, int count) {
  return fmt::format("shard-{:05}-of-{:05}.safetensors", index, count);
}

std::optional<int64_t> step_of_name(const std::string& name) {
  if (name.rfind("step-", 0) != 0) return std::nullopt;
  int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + 5, end, step);
  // Only the one spelling that step_directory gives.
  if (parsed.ec != std::errc() || parsed.ptr != end || fmt::format("step-{:08}", step) != name) return std::nullopt;
  return step;
}

std::vector<int64_t> list_steps(FileSystem& fs, const std::string& dir) {
  std::vector<int64_t> steps;
  if (!fs.is_directory(dir)) return steps;
  for (const std::string& name : fs.list(dir))
    if (const auto step = step_of_name(name)) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

void make_durable_directory(FileSystem& fs, const std::string& path) {
  if (fs.is_directory(path)) return;
  make_durable_directory(fs, parent_of(path));
  fs.make_directory(path);
  fs.sync_directory(parent_of(path));
}

std::string move_to_trash(FileSystem& fs, const std::string& dir, const std::string& name) {
  make_durable_directory(fs, trash_root(dir));
  std::string target;
  for (int attempt = 0;; ++attempt) {
    target = fmt::format("{}/{}.{}", trash_root(dir), base_name(name), attempt);
    if (!fs.exists(target)) break;
  }
  const std::string source = dir + "/" + name;
  fs.rename_no_replace(source, target);
  fs.sync_directory(parent_of(source));
  fs.sync_directory(trash_root(dir));
  return target;
}

void prepare_saving(FileSystem& fs, const std::string& dir, const StateInfo& state) {
  make_durable_directory(fs, dir);
  // `dir` may have been made without a sync of its parent, which makes its name durable.
  fs.sync_directory(parent_of(dir));
  make_durable_directory(fs, saving_root(dir));
  const std::string saving = saving_directory(dir, state);
  if (fs.exists(saving)) fs.remove_tree(move_to_trash(fs, dir, ".saving/" + base_name(saving)));
  fs.make_directory(saving);
  fs.sync_directory(saving_root(dir));
}

namespace {

/// Superseded checkpoints go when `keep` checkpoints of the line that replaced them are safe. `epochs` are those of the checkpoints kept.
void remove_superseded(FileSystem& fs, const std::string& dir, const std::vector<uint64_t>& epochs, int keep) {
  for (const std::string& name : fs.list(dir)) {
    const auto epoch = superseding_epoch(name);
    if (epoch && std::count_if(epochs.begin(), epochs.end(), [&](uint64_t e) { return e >= *epoch; }) >= keep)
      move_to_trash(fs, dir, name);
  }
}

}  // namespace

std::vector<int64_t> retain(FileSystem& fs, const std::string& dir, int keep_last, int64_t keep_every_steps,
                            const std::string& current_saving) {
  // Only what opens counts towards the number to keep: a damaged checkpoint must not push a good one out.
  const int keep = std::max(keep_last, 2);
  std::vector<uint64_t> good;  // the epochs that saved them
  std::vector<int64_t> removed;
  for (const int64_t step : list_steps(fs, dir)) {
    if (int(good.size()) < keep) {
      try {
        good.push_back(Checkpoint::open(fs, step_directory(dir, step))->state().epoch);
      } catch (const Error&) {
        // Kept while it is newer than the checkpoints that count, as evidence of what happened.
      }
    } else if (keep_every_steps <= 0 || step % keep_every_steps != 0) {
      move_to_trash(fs, dir, base_name(step_directory(dir, step)));
      removed.push_back(step);
    }
  }
  if (fs.is_directory(dir)) remove_superseded(fs, dir, good, keep);
  if (fs.is_directory(trash_root(dir)))
    for (const std::string& name : fs.list(trash_root(dir))) fs.remove_tree(trash_root(dir) + "/" + name);
  if (fs.is_directory(saving_root(dir)))
    for (const std::string& name : fs.list(saving_root(dir)))
      if (saving_root(dir) + "/" + name != current_saving) fs.remove_tree(saving_root(dir) + "/" + name);
  return removed;
}

}  // namespace trainctl::ckpt
