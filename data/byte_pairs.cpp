#include "data/byte_pairs.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace trainctl::data {
namespace {

// Up to here a scan over all pairs for each merge is faster than a heap.
constexpr size_t kShort = 96;

}  // namespace

BytePairs::BytePairs(const std::array<int32_t, 256>& byte_ids, size_t merges) : byte_ids_(byte_ids) {
  slots_.resize(std::bit_ceil(std::max<size_t>(2 * merges, 64)));
  shift_ = 64 - std::countr_zero(slots_.size());
}

const BytePairs::Slot& BytePairs::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t i = place_of(pair);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].pair == pair) return slots_[i];
    if (slots_[i].pair == none_.pair) return none_;
  }
}

void BytePairs::add(int32_t left, int32_t right, uint32_t rank, int32_t id) {
  const uint64_t pair = pair_of(left, right);
  if (2 * (used_ + 1) > slots_.size()) grow();
  size_t i = place_of(pair);
  while (slots_[i].pair != pair && slots_[i].pair != none_.pair) i = (i + 1) & (slots_.size() - 1);
  used_ += slots_[i].pair == none_.pair;
  slots_[i] = {pair, rank, id};
}

void BytePairs::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  --shift_;
  for (const Slot& slot : old) {
    if (slot.pair == none_.pair) continue;
    size_t i = place_of(slot.pair);
    while (slots_[i].pair != none_.pair) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
}

void BytePairs::encode(std::string_view piece, Workspace& w, std::vector<int32_t>& ids) const {
  const size_t n = piece.size();
  if (n == 0) return;
  w.tokens.resize(n);
  w.merged.resize(n);
  w.ranks.resize(n);
  for (size_t i = 0; i < n; ++i) w.tokens[i] = byte_ids_[uint8_t(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) {
    const Slot& slot = find(w.tokens[i], w.tokens[i + 1]);
    w.ranks[i] = slot.rank;
    w.merged[i] = slot.id;
  }
  w.ranks[n - 1] = kNone;
  n <= kShort ? encode_short(w, ids) : encode_long(w, ids);
}

void BytePairs::encode_short(Workspace& w, std::vector<int32_t>& ids) const {
  int32_t *tokens = w.tokens.data(), *merged = w.merged.data();
  uint32_t* ranks = w.ranks.data();
  size_t n = w.tokens.size();
  const auto look = [&](size_t i) {
    const Slot& slot = find(tokens[i], tokens[i + 1]);
    ranks[i] = slot.rank;
    merged[i] = slot.id;
  };
  while (true) {
    size_t best = 0;
    for (size_t i = 1; i < n; ++i) best = ranks[i] < ranks[best] ? i : best;
    if (ranks[best] == kNone) break;
    tokens[best] = merged[best];
    std::copy(tokens + best + 2, tokens + n, tokens + best + 1);
    std::copy(ranks + best + 2, ranks + n, ranks + best + 1);
    std::copy(merged + best + 2, merged + n, merged + best + 1);
    --n;
    if (best + 1 < n)
      look(best);
    else
      ranks[best] = kNone;
    if (best > 0) look(best - 1);
  }
  ids.insert(ids.end(), tokens, tokens + n);
}

/// The tokens are a list, linked by `previous` and `next`; the queue holds (rank, place), also of pairs
/// that are gone.
void BytePairs::encode_long(Workspace& w, std::vector<int32_t>& ids) const {
  const int32_t n = int32_t(w.tokens.size());
  w.previous.resize(size_t(n));
  w.next.resize(size_t(n));
  w.queue.clear();
  const auto later = std::greater<uint64_t>();
  for (int32_t i = 0; i < n; ++i) {
    w.previous[size_t(i)] = i - 1;
    w.next[size_t(i)] = i + 1;
    if (w.ranks[size_t(i)] != kNone) w.queue.push_back(uint64_t(w.ranks[size_t(i)]) << 32 | uint32_t(i));
  }
  std::make_heap(w.queue.begin(), w.queue.end(), later);
  const auto look = [&](int32_t i) {
    const int32_t right = w.next[size_t(i)];
    const Slot& slot = right < n ? find(w.tokens[size_t(i)], w.tokens[size_t(right)]) : none_;
    w.ranks[size_t(i)] = slot.rank;
    w.merged[size_t(i)] = slot.id;
    if (slot.rank == kNone) return;
    w.queue.push_back(uint64_t(slot.rank) << 32 | uint32_t(i));
    std::push_heap(w.queue.begin(), w.queue.end(), later);
  };
  while (!w.queue.empty()) {
    std::pop_heap(w.queue.begin(), w.queue.end(), later);
    const size_t i = uint32_t(w.queue.back());
    const uint32_t rank = uint32_t(w.queue.back() >> 32);
    w.queue.pop_back();
    if (w.ranks[i] != rank) continue;
    const size_t right = size_t(w.next[i]);
    w.tokens[i] = w.merged[i];
    w.next[i] = w.next[right];
    w.ranks[right] = kNone;
    w.tokens[right] = -1;
    if (w.next[i] < n) w.previous[size_t(w.next[i])] = int32_t(i);
    look(int32_t(i));
    if (w.previous[i] >= 0) look(w.previous[i]);
  }
  for (int32_t i = 0; i < n; i = w.next[size_t(i)]) ids.push_back(w.tokens[size_t(i)]);
}

}  // namespace trainctl::data
