#include "data/packing.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/base/error.h"

namespace trainctl::data {

std::vector<PackedSample> pack_window(std::span<const TokenRange> documents, uint64_t room) {
  ENSURE(room >= 2, "room for {} tokens", room);
  std::vector<PackedSample> samples;
  std::vector<TokenRange> rests;
  for (TokenRange rest : documents) {
    for (; rest.tokens > room; rest.first += room - 1, rest.tokens -= room - 1)
      samples.push_back({{rest.first, room}});
    if (rest.tokens >= 2) rests.push_back(rest);
  }
  std::stable_sort(rests.begin(), rests.end(),
                   [](const TokenRange& a, const TokenRange& b) { return a.tokens > b.tokens; });
  std::set<std::pair<uint64_t, size_t>> free;  // tokens, and the sample that has room for them
  for (const TokenRange& rest : rests) {
    uint64_t left = room;
    size_t sample = samples.size();
    if (const auto fullest = free.lower_bound({rest.tokens, 0}); fullest != free.end()) {
      std::tie(left, sample) = *fullest;
      free.erase(fullest);
    } else {
      samples.emplace_back();
    }
    samples[sample].push_back(rest);
    if (left - rest.tokens >= 2) free.insert({left - rest.tokens, sample});
  }
  return samples;
}

Packing::Packing(uint64_t windows, uint64_t room, Window window) : room_(room), window_(std::move(window)) {
  for (uint64_t w = 0; w < windows; ++w) {
    const std::vector<PackedSample> samples = pack_window(window_(w), room_);
    before_.push_back(before_.back() + samples.size());
    for (const PackedSample& sample : samples)
      for (const TokenRange& range : sample) tokens_ += range.tokens;
  }
}

PackedSample Packing::sample(uint64_t index) const {
  ENSURE(index < samples(), "sample {} of {}", index, samples());
  const auto window = std::upper_bound(before_.begin(), before_.end(), index) - before_.begin() - 1;
  return pack_window(window_(uint64_t(window)), room_)[size_t(index - before_[size_t(window)])];
}

double Packing::padding() const {
  return samples() == 0 ? 0 : 1 - double(tokens_) / (double(samples()) * double(room_));
}

}  // namespace trainctl::data
