#include "runtime/run/record/save_collector.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {

void SaveCollector::expect(const ckpt::StateInfo& state) {
  state_ = state;
  tensors_.clear();
  receipts_.assign(size_t(options_.ranks), {});
  handed_in_.assign(size_t(options_.ranks), false);
  failure_.clear();
}

std::optional<SaveOutcome> SaveCollector::published(int64_t step) const {
  const std::string folder = ckpt::step_directory(options_.directory, step);
  if (!fs_.is_directory(folder)) return std::nullopt;
  try {
    return SaveOutcome{.ok = true, .step = step, .message = ckpt::Checkpoint::open(fs_, folder)->root_hash()};
  } catch (const std::exception& error) {
    return SaveOutcome{.step = step, .message = error.what()};
  }
}

Problem SaveCollector::adopt(const ckpt::StateInfo& state) {
  if (!fs_.is_directory(ckpt::saving_directory(options_.directory, state))) return begin(state);
  expect(state);
  under_way_ = true;
  return Problem::none();
}

Problem SaveCollector::begin(const ckpt::StateInfo& state) {
  expect(state);
  try {
    ckpt::prepare_saving(fs_, options_.directory, state_);
  } catch (const std::exception& error) {
    under_way_ = false;
    return Problem(error.what());
  }
  under_way_ = true;
  return Problem::none();
}

bool SaveCollector::add(int rank, ckpt::ShardReceipt receipt, const std::string& failure) {
  ENSURE(under_way_ && rank >= 0 && rank < options_.ranks, "rank {} handed in a shard outside a save", rank);
  ENSURE(!handed_in_[size_t(rank)], "rank {} handed in twice for step {}", rank, state_.step);
  handed_in_[size_t(rank)] = true;
  receipts_[size_t(rank)] = std::move(receipt);
  if (!failure.empty() && failure_.empty())
    failure_ = fmt::format("rank {} could not write its shard: {}", rank, failure);
  return std::find(handed_in_.begin(), handed_in_.end(), false) == handed_in_.end();
}

SaveOutcome SaveCollector::finish() {
  SaveOutcome outcome;
  outcome.step = state_.step;
  under_way_ = false;
  if (!failure_.empty()) {
    outcome.message = failure_;
    remove_saving_directory();
    return outcome;
  }
  // A rank that owned nothing sends an empty receipt: there is no file to list.
  std::erase_if(receipts_, [](const ckpt::ShardReceipt& receipt) { return receipt.file.empty(); });
  for (const ckpt::ShardReceipt& receipt : receipts_) outcome.bytes += receipt.file_bytes;
  try {
    outcome.message = ckpt::publish(fs_, options_.directory, state_, tensors_, receipts_, options_.must_hold);
    outcome.ok = true;
    options_.must_hold();
  } catch (const RunTaken& taken) {
    // What lies in the saving directory belongs to the supervisor that has the run now.
    outcome.taken = true;
    outcome.message = taken.what();
    return outcome;
  } catch (const std::exception& error) {
    outcome.message = error.what();
    remove_saving_directory();
    return outcome;
  }
  try {
    outcome.removed_steps =
        ckpt::retain(fs_, options_.directory, options_.keep_last, options_.keep_every_steps, "");
  } catch (const std::exception& error) {
    outcome.warning = error.what();
  }
  return outcome;
}

std::vector<int> SaveCollector::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; under_way_ && rank < options_.ranks; ++rank)
    if (!handed_in_[size_t(rank)]) ranks.push_back(rank);
  return ranks;
}

void SaveCollector::abandon() {
  if (!under_way_) return;
  under_way_ = false;
  remove_saving_directory();
}

void SaveCollector::remove_saving_directory() {
  try {
    fs_.remove_tree(ckpt::saving_directory(options_.directory, state_));
  } catch (const std::exception&) {
    // The next save or start cleans .saving/; a full or broken disk must not turn a failed save into a failed
    // run.
  }
}

}  // namespace trainctl
