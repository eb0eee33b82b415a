// Checkpoints of steps that a run will write again after it went back: set aside, listed, and later
// removed (see retain).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "ckpt/contest.h"
#include "ckpt/folders.h"
#include "ckpt/manifest.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace trainctl::ckpt {
namespace {

constexpr const char* kPrefix = "superseded-e";

/// Bytes of the shards, as COMMIT has them; 0 if it cannot be read.
uint64_t bytes_of_checkpoint(FileSystem& fs, const std::string& checkpoint) {
  try {
    const Json commit = try_parse_json(fs.read_text(checkpoint + "/" + kCommitName));
    return commit.is_object() ? commit.value("bytes", uint64_t(0)) : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

Superseded look_at(FileSystem& fs, const std::string& path, uint64_t epoch) {
  Superseded found{.path = path, .epoch = epoch, .steps = list_steps(fs, path)};
  for (const int64_t step : found.steps) found.bytes += bytes_of_checkpoint(fs, step_directory(path, step));
  return found;
}

Superseded begin_and_set_aside(FileSystem& fs, const std::string& dir, const EpochBegin& begin,
                               bool needs_source) {
  // From the mark on no older epoch publishes a later step, and what was published before is listed below.
  // Nor does its retention remove anything from here on.
  mark_epoch(fs, dir, begin);
  sweep_saving(fs, dir, [&](const std::string& name) {
    const auto saving = saving_name(name);
    return saving && saving->epoch >= begin.epoch;
  });
  restore_moved(fs, dir);
  empty_trash(fs, dir);
  bool has_source = fs.exists(step_directory(dir, begin.step));
  if (needs_source && !has_source) {
    // A retention that is out of date may have moved it away a moment ago.
    restore_moved(fs, dir);
    has_source = fs.exists(step_directory(dir, begin.step));
  }
  if (needs_source && !has_source) {
    withdraw_mark(fs, dir, begin);
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}, from which attempt {} begins, was removed meanwhile; resume the run again",
                            step_directory(dir, begin.step), begin.epoch));
  }
  bool moved = false;
  for (const int64_t later : list_steps(fs, dir))
    if (later > begin.step) moved = set_aside(fs, dir, later, begin.epoch) || moved;
  return moved ? look_at(fs, superseded_directory(dir, begin.epoch), begin.epoch) : Superseded{};
}

}  // namespace

std::optional<uint64_t> superseding_epoch(const std::string& name) {
  const std::string prefix = kPrefix;
  if (!name.starts_with(prefix)) return std::nullopt;
  uint64_t epoch = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + prefix.size(), end, epoch);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return epoch;
}

std::string superseded_directory(const std::string& dir, uint64_t epoch) {
  return fmt::format("{}/{}{}", dir, kPrefix, epoch);
}

Superseded supersede(FileSystem& fs, const std::string& dir, const EpochBegin& begin) {
  if (!fs.is_directory(dir)) return {};
  return fs.exists(step_directory(dir, begin.step)) ? supersede_from_here(fs, dir, begin)
                                                    : begin_and_set_aside(fs, dir, begin, false);
}

Superseded supersede_from_here(FileSystem& fs, const std::string& dir, const EpochBegin& begin) {
  return begin_and_set_aside(fs, dir, begin, true);
}

std::string text_of(const Superseded& s) {
  const std::string steps = s.steps.empty()       ? ""
                            : s.steps.size() == 1 ? fmt::format(" (step {})", s.steps[0])
                                                  : fmt::format(" (steps {} to {})", s.steps.back(), s.steps.front());
  return fmt::format("{}{}, {} in {}", count_of(int64_t(s.steps.size()), "checkpoint"), steps, size_text(s.bytes), s.path);
}

std::vector<Superseded> list_superseded(FileSystem& fs, const std::string& dir) {
  std::vector<Superseded> found;
  if (!fs.is_directory(dir)) return found;
  for (const std::string& name : fs.list(dir))
    if (const auto epoch = superseding_epoch(name)) found.push_back(look_at(fs, dir + "/" + name, *epoch));
  std::sort(found.begin(), found.end(), [](const Superseded& a, const Superseded& b) { return a.epoch < b.epoch; });
  return found;
}

}  // namespace trainctl::ckpt
