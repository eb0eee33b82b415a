#include "runtime/machine/burn_in_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

std::string bits_of(uint64_t difference) {
  std::vector<int> bits;
  for (int bit = 0; bit < 64; ++bit)
    if (difference >> bit & 1) bits.push_back(bit);
  return bits.size() > 8 ? fmt::format("{} bits", bits.size()) : fmt::format("bit {}", fmt::join(bits, ", "));
}

/// The bits that each product must have, as far as one place shows it: the reference's, else its own most
/// frequent ones.
std::vector<std::optional<uint64_t>> own_bits(const PlaceResult& place) {
  std::vector<std::optional<uint64_t>> right;
  for (const ProductBits& bits : place.products) {
    right.push_back(bits.expected);
    if (bits.expected || bits.times.empty()) continue;
    const auto most = [](const auto& a, const auto& b) { return a.second < b.second; };
    right.back() = std::max_element(bits.times.begin(), bits.times.end(), most)->first;
  }
  return right;
}

}  // namespace

std::string wrong_product(const PlaceResult& place, const std::vector<std::optional<uint64_t>>& right) {
  for (size_t i = 0; i < place.products.size(); ++i) {
    const ProductBits& bits = place.products[i];
    int all = 0, good = 0;
    for (const auto& [hash, times] : bits.times) {
      all += times;
      if (right[i] && hash == *right[i]) good += times;
    }
    if (!right[i])
      return fmt::format("{} has other bits than elsewhere, and no bits are those of most", bits.product);
    if (good == all) continue;
    return fmt::format("{} of {} results of {} have other bits than {}{}", all - good, all, bits.product,
                       bits.expected ? "the reference" : "most results",
                       bits.first_wrong.empty() ? "" : ", " + bits.first_wrong);
  }
  return "";
}

std::string wrong_memory(const MemoryResult& m) {
  if (!m.first_wrong) return "";
  return fmt::format(
      "{}, the first at byte {:#x} of {} in the pattern `{}`: {:#018x} instead of {:#018x} ({})",
      count_of(int64_t(m.wrong_words), "wrong word"), m.first_wrong->byte, memory_text(double(m.bytes)),
      m.first_wrong->pattern, m.first_wrong->found, m.first_wrong->expected,
      bits_of(m.first_wrong->found ^ m.first_wrong->expected));
}

std::string failure_of(const PlaceResult& place) {
  if (place.place.kind != BurnInPlace::gpu) return "";
  if (place.has_failed) return "failed: " + place.problem.substr(0, place.problem.find('\n'));
  return place.problem.starts_with("did not answer") ? "did not finish: " + place.problem : "";
}

std::string wrong_place(const PlaceResult& place) {
  std::string wrong = wrong_product(place, own_bits(place));
  if (wrong.empty()) wrong = wrong_memory(place.memory);
  if (wrong.empty()) wrong = failure_of(place);
  return wrong.empty() ? "" : place.place.name() + ": " + wrong;
}

}  // namespace trainctl
