#include "ckpt/folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

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
  const bool is_number = parsed.ec == std::errc() && parsed.ptr == end && step >= 0;
  if (!is_number || fmt::format("step-{:08}", step) != name) return std::nullopt;
  return step;
}

std::string new_word() {
  thread_local std::random_device random;  // a fork must not repeat them
  return fmt::format("{:08x}{:08x}", random(), random());
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
  const std::string source = dir + "/" + name,
                    target = fmt::format("{}/{}.{}", trash_root(dir), base_name(name), new_word());
  fs.rename_no_replace(source, target);
  fs.sync_directory(parent_of(source));
  fs.sync_directory(trash_root(dir));
  return target;
}

}  // namespace trainctl::ckpt
