#include "runtime/run/saves/save_collector.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/folders.h"
#include "runtime/base/error.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {

std::optional<CollectedSave> SaveCollector::add(int rank, const Control::HandedIn& part) {
  ENSURE(rank >= 0 && rank < ranks_, "rank {} of {}", rank, ranks_);
  CollectedSave& save = saves_[part.number];
  if (save.receipts.empty()) {
    save.number = part.number;
    save.state = part.state;
    save.receipts.resize(size_t(ranks_));
    save.handed_in.assign(size_t(ranks_), false);
  }
  if (save.handed_in[size_t(rank)]) return std::nullopt;
  save.handed_in[size_t(rank)] = true;
  if (part.state.step != save.state.step && save.failure.empty())
    save.failure =
        fmt::format("rank {} handed in step {}, others step {}", rank, part.state.step, save.state.step);
  if (rank == 0) {
    save.state = part.state;
    save.tensors = part.tensors;
  }
  save.receipts[size_t(rank)] = part.receipt;
  save.cpu_s += part.cpu_s;
  if (!part.failure.empty() && save.failure.empty())
    save.failure = fmt::format("rank {} could not write its shard: {}", rank, part.failure);
  if (std::find(save.handed_in.begin(), save.handed_in.end(), false) != save.handed_in.end())
    return std::nullopt;
  return std::move(saves_.extract(part.number).mapped());
}

std::optional<int64_t> SaveCollector::oldest() const {
  return saves_.empty() ? std::nullopt : std::optional(saves_.begin()->first);
}

std::optional<CollectedSave> SaveCollector::take(int64_t number) {
  auto node = saves_.extract(number);
  return node.empty() ? std::nullopt : std::optional(std::move(node.mapped()));
}

std::optional<SaveOutcome> SaveFolder::published(int64_t step, uint64_t epoch) const {
  const std::string folder = ckpt::step_directory(options_.directory, step);
  if (!fs_.is_directory(folder)) return std::nullopt;
  try {
    const auto checkpoint = ckpt::Checkpoint::open(fs_, folder);
    if (checkpoint->state().epoch != epoch) return std::nullopt;
    fs_.sync_directory(options_.directory);  // the earlier one may have died before it did
    return SaveOutcome{.ok = true, .step = step, .message = checkpoint->root_hash()};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

SaveOutcome SaveFolder::publish(const CollectedSave& save) const {
  ENSURE(save.receipts.size() == save.handed_in.size(), "{} receipts of {} ranks", save.receipts.size(),
         save.handed_in.size());
  ENSURE(std::find(save.handed_in.begin(), save.handed_in.end(), false) == save.handed_in.end(),
         "step {} is not complete", save.state.step);
  SaveOutcome outcome;
  outcome.step = save.state.step;
  outcome.cpu_s = save.cpu_s;
  if (!save.failure.empty()) {
    outcome.message = save.failure;
    remove(save.state);
    return outcome;
  }
  // A rank that owned nothing sends an empty receipt: there is no file to list.
  std::vector<ckpt::ShardReceipt> receipts = save.receipts;
  std::erase_if(receipts, [](const ckpt::ShardReceipt& receipt) { return receipt.file.empty(); });
  for (const ckpt::ShardReceipt& receipt : receipts) outcome.bytes += receipt.file_bytes;
  try {
    outcome.message =
        ckpt::publish(fs_, options_.directory, save.state, save.tensors, receipts, options_.must_hold);
    outcome.ok = true;
    options_.must_hold();
  } catch (const RunTaken& taken) {
    // What lies in the saving directory belongs to the supervisor that has the run now.
    outcome.taken = true;
    outcome.message = taken.what();
    return outcome;
  } catch (const std::exception& error) {
    outcome.message = error.what();
    remove(save.state);
    return outcome;
  }
  return outcome;
}

void SaveFolder::remove_all() const {
  try {
    options_.must_hold();
    ckpt::remove_saves(fs_, options_.directory, options_.epoch);
  } catch (const std::exception&) {
    // As below; or another supervisor has the run, and what lies there is its own.
  }
}

void SaveFolder::remove(const ckpt::StateInfo& state) const {
  try {
    ckpt::remove_save(fs_, options_.directory, state);
  } catch (const std::exception&) {
    // A save of a later epoch cleans .saving/; a full or broken disk must not turn a failed save into a
    // failed run.
  }
}

}  // namespace trainctl
