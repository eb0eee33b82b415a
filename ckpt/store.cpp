// What all stores share: texts, the newest checkpoint, retention.
#include "ckpt/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ckpt/contest.h"
#include "ckpt/manifest.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {

std::unique_ptr<NewFile> StoredFiles::replace(const std::string& name, uint64_t) {
  throw Error(ErrorCode::kUsage,
              fmt::format("{}/{} cannot be replaced in its place: copy the checkpoint to a "
                          "folder and repair it there",
                          where(), name));
}

std::string StoredFiles::read_text(const std::string& name) {
  const auto file = open(name);
  std::string text(file->size(), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void SavingFiles::put_text(const std::string& name, const std::string& text) {
  const auto file = put(name, text.size());
  file->append(std::as_bytes(std::span(text)));
  file->finish();
}

bool holds(Store& store, const StateInfo& state, const std::string& root) {
  auto files = store.open(state.step);
  return files && is_equal(std::move(files), state.epoch, root);
}

bool is_equal(std::unique_ptr<StoredFiles> there, uint64_t epoch, const std::string& root) {
  const std::string where = there->where();
  std::optional<CommitId> commit;
  try {
    commit = read_commit(there->read_text(kCommitName));
    const auto checkpoint = Checkpoint::open(std::move(there));
    if (checkpoint->state().epoch == epoch && checkpoint->root_hash() == root) return true;
    if (checkpoint->state().epoch < epoch) return false;
  } catch (const Error&) {
    // It does not open. What a newer epoch saved is not for this one to replace, damaged or not.
    if (!commit || commit->epoch <= epoch) return false;
  }
  throw Error(ErrorCode::kCheckpoint, fmt::format("{} was already saved by attempt {} with other content; "
                                                  "this writer has attempt {} and is out of date",
                                                  where, commit->epoch, epoch));
}

std::unique_ptr<Checkpoint> open_latest(
    Store& store, int64_t max_step,
    const std::function<void(const std::string&, const std::string&)>& skipped) {
  for (const int64_t step : store.list()) {
    if (max_step >= 0 && step > max_step) continue;
    auto files = store.open(step);
    if (!files) continue;
    const std::string where = files->where();
    try {
      return Checkpoint::open(std::move(files));
    } catch (const Error& error) {
      if (skipped) skipped(where, error.what());
    }
  }
  return nullptr;
}

namespace {

/// The checkpoint that Retention::keep_upto keeps.
std::optional<int64_t> kept_upto(Store& store, const Retention& retention) {
  std::optional<int64_t> there;
  if (!retention.keep_upto) return there;
  for (const int64_t step : store.list()) {
    if (step > *retention.keep_upto) continue;
    try {
      const auto files = store.open(step);
      if (!files) continue;
      if (!retention.counts || retention.counts(*files)) return step;
    } catch (const Error&) {
      continue;
    }
    if (!there) there = step;
  }
  return there;
}

}  // namespace

std::vector<int64_t> retain(Store& store, const Retention& retention) {
  // Only what opens counts towards the number to keep: a damaged checkpoint must not push a good one out.
  const int keep = std::max(retention.keep_last, 2);
  store.restore();
  const std::optional<int64_t> kept = kept_upto(store, retention);
  std::vector<uint64_t> good;  // the epochs that saved them
  std::vector<int64_t> removed;
  bool is_newest = true;
  for (const int64_t step : store.list()) {
    const bool may_be_useless = !std::exchange(is_newest, false) && retention.is_useless;
    if (int(good.size()) < keep) {
      try {
        auto files = store.open(step);
        if (files && may_be_useless && retention.is_useless(*files)) {
          if (store.remove(step, retention.current_epoch)) removed.push_back(step);
          continue;
        }
        if (!files || (retention.counts && !retention.counts(*files))) continue;
        good.push_back(Checkpoint::open(std::move(files))->state().epoch);
      } catch (const Error&) {
        // Kept while it is newer than the checkpoints that count, as evidence of what happened.
      }
    } else if (step != kept && (retention.keep_every_steps <= 0 || step % retention.keep_every_steps != 0)) {
      if (store.remove(step, retention.current_epoch)) removed.push_back(step);
    }
  }
  store.clean(retention, good);
  return removed;
}

}  // namespace trainctl::ckpt
