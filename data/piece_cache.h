// PieceCache remembers the ids of short pieces of text. Text repeats its words, so most pieces are found
// here.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace trainctl::data {

/// Of one thread. Holds what was used last, as far as it fits: two places for each hash.
class PieceCache {
 public:
  static constexpr size_t kLongestPiece = 24, kMostIds = 9;
  struct Key {
    uint64_t words[3];
    uint64_t hash;
    uint8_t length;
  };

  /// 2^`bits` places of 64 bytes.
  explicit PieceCache(int bits) : shift_(64 - bits), entries_(size_t(1) << bits) {}

  /// Of 1 to kLongestPiece bytes: the bytes, some of them twice.
  static Key key_of(std::string_view piece) {
    const char* p = piece.data();
    const size_t n = piece.size();
    Key key{{0, 0, 0}, 0, uint8_t(n)};
    if (n >= 8) {
      key.words[0] = load<uint64_t>(p);
      key.words[1] = load<uint64_t>(p + n - 8);
      if (n > 16) key.words[2] = load<uint64_t>(p + 8);
    } else if (n >= 4) {
      key.words[0] = load<uint32_t>(p) | uint64_t(load<uint32_t>(p + n - 4)) << 32;
    } else {
      key.words[0] = uint8_t(p[0]) | uint64_t(uint8_t(p[n / 2])) << 8 | uint64_t(uint8_t(p[n - 1])) << 16;
    }
    uint64_t h = (key.words[0] ^ n) * 0x9e3779b97f4a7c15;
    h = (h ^ h >> 32 ^ key.words[1]) * 0xd6e8feb86659fd93;
    h = (h ^ h >> 32 ^ key.words[2]) * 0x9e3779b97f4a7c15;
    key.hash = h;
    return key;
  }

  /// Appends the ids of the piece and returns true, if they are here.
  bool find(const Key& key, std::vector<int32_t>& ids) const {
    const size_t place = size_t(key.hash >> shift_);
    const Entry* entry = &entries_[place];
    if (!is_of(*entry, key)) {
      entry = &entries_[place ^ 1];
      if (!is_of(*entry, key)) return false;
    }
    const size_t at = ids.size();
    ids.resize(at + entry->count);
    std::memcpy(ids.data() + at, entry->ids, entry->count * sizeof(int32_t));
    return true;
  }

  /// Remembers at most kMostIds ids in place of the older of two entries.
  void keep(const Key& key, std::span<const int32_t> ids) {
    if (ids.size() > kMostIds) return;
    const size_t place = size_t(key.hash >> shift_);
    if (entries_[place].length != 0) entries_[place ^ 1] = entries_[place];
    Entry& entry = entries_[place];
    std::memcpy(entry.words, key.words, sizeof entry.words);
    entry.length = key.length;
    entry.count = uint8_t(ids.size());
    std::memcpy(entry.ids, ids.data(), ids.size_bytes());
  }

 private:
  struct alignas(64) Entry {
    uint64_t words[3] = {};
    uint8_t length = 0, count = 0;  // length 0: empty
    int32_t ids[kMostIds] = {};
  };
  static_assert(sizeof(Entry) == 64);
  template <typename T>
  static T load(const char* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  static bool is_of(const Entry& entry, const Key& key) {
    return entry.length == key.length && std::memcmp(entry.words, key.words, sizeof entry.words) == 0;
  }

  int shift_;
  std::vector<Entry> entries_;
};

}  // namespace trainctl::data
