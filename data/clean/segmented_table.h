// SegmentedTable: a hash table that grows in small parts, so that growing needs little memory of its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainctl::data {

/// Open addressing with linear probing in 64 segments of any size. A slot may be added, never removed. One
/// thread at a time.
///
/// `Slot`: default-constructed it is free; `bool is_free() const`, and `uint64_t spread() const`, a hash
/// whose highest bits are random, because they choose the place.
template <class Slot>
class SegmentedTable {
 public:
  /// The most bytes that one added slot needs: segments grow by a quarter when they are four fifths full.
  static constexpr double kMostBytes = double(sizeof(Slot)) * 1.25 / 0.8;

  SegmentedTable() : segments_(kSegments) {}

  /// Calls `visit` with each slot that may have this hash, in the order in which slots of one hash were
  /// added, until it returns true. Other slots may come in between.
  template <class Visit>
  void visit(uint64_t spread, const Visit& visit) const {
    const Segment& segment = segments_[spread >> kShift];
    if (segment.slots.empty()) return;
    for (size_t i = place(spread, segment.slots.size());; i = i + 1 == segment.slots.size() ? 0 : i + 1)
      if (segment.slots[i].is_free() || visit(segment.slots[i])) return;
  }

  void add(const Slot& slot) {
    Segment& segment = segments_[slot.spread() >> kShift];
    if (double(segment.used + 1) > kFull * double(segment.slots.size())) grow(segment);
    put(segment.slots, slot);
    ++segment.used;
  }

  /// That the slots take.
  uint64_t bytes() const {
    uint64_t slots = 0;
    for (const Segment& segment : segments_) slots += segment.slots.size();
    return slots * sizeof(Slot);
  }

 private:
  static constexpr size_t kSegments = 64;
  static constexpr int kSegmentBits = 6, kShift = 64 - kSegmentBits;
  static constexpr double kFull = 0.8, kGrowth = 1.25;
  struct Segment {
    std::vector<Slot> slots;
    size_t used = 0;
  };

  static size_t place(uint64_t spread, size_t size) {
    return size_t((unsigned __int128)(spread << kSegmentBits) * size >> 64);
  }
  static void put(std::vector<Slot>& slots, const Slot& slot) {
    size_t i = place(slot.spread(), slots.size());
    while (!slots[i].is_free()) i = i + 1 == slots.size() ? 0 : i + 1;
    slots[i] = slot;
  }
  static void grow(Segment& segment) {
    std::vector<Slot> larger(size_t(double(segment.slots.size()) * kGrowth) + 8);
    // From a free slot on: slots of one hash keep their order, also those that went around the end.
    const size_t n = segment.slots.size();
    size_t begin = 0;
    while (begin < n && !segment.slots[begin].is_free()) ++begin;
    for (size_t i = 0; i < n; ++i)
      if (const Slot& slot = segment.slots[(begin + i) % n]; !slot.is_free()) put(larger, slot);
    segment.slots = std::move(larger);
  }

  std::vector<Segment> segments_;
};

}  // namespace trainctl::data
