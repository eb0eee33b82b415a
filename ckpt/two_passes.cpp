#include "ckpt/two_passes.h"

namespace trainctl::ckpt {
namespace {

constexpr size_t kNowhere = SIZE_MAX;

}  // namespace

TwoPasses::TwoPasses(const StateInfo& state, const ShardLayout& layout, ChunkSource& source)
    : state_(state),
      source_(source),
      entries_(layout.receipt.entries),
      chunks_(layout.chunks),
      at_{kNowhere, kNowhere} {
  hashing_ = std::async(std::launch::async, [this] { hash(); });
}

TwoPasses::~TwoPasses() { ends_ = true; }

void TwoPasses::set_hashes(std::vector<ShardReceipt::Entry>& entries) {
  if (hashing_.valid()) hashing_.get();
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].hash = entries_[i].hash;
    entries[i].content_hash = entries_[i].content_hash;
  }
}

void TwoPasses::hash() {
  EntryHashes hashes(state_, entries_);
  for (size_t i = chunks_.size(); i-- > 0 && !ends_;)
    read(hashing, i, chunks_[i], [&](size_t, std::span<const std::byte> piece) { hashes.update(i, piece); });
  hashes.finish(entries_);
}

void TwoPasses::Passing::read(std::span<const std::span<const std::byte>> chunks, const Take& take) {
  for (size_t i = 0; i < chunks.size(); ++i)
    both_.read(writing, i, chunks[i], [&](size_t, std::span<const std::byte> piece) { take(i, piece); });
}

/// Waits while the other pass is in the chunk.
void TwoPasses::read(Pass pass, size_t number, std::span<const std::byte> chunk,
                     const ChunkSource::Take& take) {
  const auto be_at = [&](size_t place) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return place == kNowhere || at_[1 - pass] != place; });
    at_[pass] = place;
    changed_.notify_all();
  };
  be_at(number);
  try {
    source_.read({&chunk, 1}, take);
  } catch (...) {
    be_at(kNowhere);
    throw;
  }
  be_at(kNowhere);
}

}  // namespace trainctl::ckpt
