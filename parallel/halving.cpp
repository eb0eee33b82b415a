#include "parallel/halving.h"

#include <bit>

#include "runtime/base/error.h"

namespace trainctl::parallel {

int halving_place(int owner, int ranks) {
  int place = 0;
  for (int bit = 1; bit < ranks; bit *= 2) place = 2 * place + ((owner & bit) != 0);
  return place;
}

std::vector<HalvingRound> halving_rounds(int rank, int ranks) {
  ENSURE(std::has_single_bit(unsigned(ranks)) && rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  std::vector<HalvingRound> rounds;
  Places keep{0, ranks};
  for (int bit = 1; bit < ranks; bit *= 2) {
    const int middle = (keep.begin + keep.end) / 2;
    const Places low{keep.begin, middle}, high{middle, keep.end};
    const bool is_high = rank & bit;
    keep = is_high ? high : low;
    rounds.push_back(
        {.peer = rank ^ bit, .peer_is_first = is_high, .keep = keep, .give = is_high ? low : high});
  }
  return rounds;
}

}  // namespace trainctl::parallel
