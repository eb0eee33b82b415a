// BytePairs merges the bytes of a piece of text into tokens: byte pair encoding.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trainctl::data {

/// The merges: which neighbouring tokens become one, and which of them first. Unchanged while pieces are
/// encoded, by any number of threads.
class BytePairs {
 public:
  /// `byte_ids`: the token of each byte. `merges`: about how many will be added.
  BytePairs(const std::array<int32_t, 256>& byte_ids, size_t merges);

  /// `left` and `right` become `id`. Smaller ranks merge first. A pair that was added before gets the new
  /// rank and id.
  void add(int32_t left, int32_t right, uint32_t rank, int32_t id);

  /// Memory of one thread.
  struct Workspace {
    std::vector<int32_t> tokens, merged, previous, next;
    std::vector<uint32_t> ranks;
    std::vector<uint64_t> queue;
  };
  /// Appends the tokens of the piece: as long as there is a pair with a merge, the one of the smallest
  /// rank, and of these the leftmost, is merged.
  void encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;  // the rank of a pair without a merge
  struct Slot {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = kNone;
    int32_t id = 0;
  };
  static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  }
  size_t place_of(uint64_t pair) const { return size_t((pair * 0x9e3779b97f4a7c15) >> shift_); }
  const Slot& find(int32_t left, int32_t right) const;
  void grow();
  void encode_short(Workspace& w, std::vector<int32_t>& ids) const;
  void encode_long(Workspace& w, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;  // open addressing; a power of two, at most half full
  size_t used_ = 0;
  int shift_ = 0;
  Slot none_;
};

}  // namespace trainctl::data
