// What all stores share: texts, the newest checkpoint, retention.
#include "ckpt/store.h"

#include <fmt/format.h>

#include <algorithm>

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
  if (!files) return false;
  const std::string target = files->where();
  std::unique_ptr<Checkpoint> existing;
  try {
    existing = Checkpoint::open(std::move(files));
  } catch (const Error&) {
    return false;
  }
  if (existing->state().epoch < state.epoch) return false;
  if (existing->state().epoch == state.epoch && existing->root_hash() == root) return true;
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format(
          "{} was already saved by epoch {} with other content; this writer has epoch {} and is out of date",
          target, existing->state().epoch, state.epoch));
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

std::vector<int64_t> retain(Store& store, const Retention& retention) {
  // Only what opens counts towards the number to keep: a damaged checkpoint must not push a good one out.
  const int keep = std::max(retention.keep_last, 2);
  std::vector<uint64_t> good;  // the epochs that saved them
  std::vector<int64_t> removed;
  for (const int64_t step : store.list()) {
    if (int(good.size()) < keep) {
      try {
        auto files = store.open(step);
        if (!files || (retention.counts && !retention.counts(*files))) continue;
        good.push_back(Checkpoint::open(std::move(files))->state().epoch);
      } catch (const Error&) {
        // Kept while it is newer than the checkpoints that count, as evidence of what happened.
      }
    } else if (retention.keep_every_steps <= 0 || step % retention.keep_every_steps != 0) {
      store.remove(step);
      removed.push_back(step);
    }
  }
  store.clean(retention, good);
  return removed;
}

}  // namespace trainctl::ckpt
