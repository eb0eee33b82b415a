// Goal: recursive halving adds in the order of the balanced tree over the ranks, sends a ring's bytes in
// log2(n) messages a rank, and sends no more between nodes than a hierarchical ring.
// Method: all widths up to 64, each rank's sums as formulas; bytes counted per message, by ranks of 1, 2 and
// 8 a node.
#include "parallel/halving.h"

#include <catch2/catch.hpp>
#include <string>

#include "parallel/communicator.h"

using namespace trainctl;
using namespace trainctl::parallel;

namespace {

constexpr int kMostRanks = 64;

/// "((0+1)+(2+3))"
std::string tree_over(int begin, int end) {
  if (end - begin == 1) return std::to_string(begin);
  const int middle = (begin + end) / 2;
  return "(" + tree_over(begin, middle) + "+" + tree_over(middle, end) + ")";
}

}  // namespace

TEST_CASE("halving leaves each owner the balanced tree over all ranks", "[halving]") {
  for (int ranks = 1; ranks <= kMostRanks; ranks *= 2) {
    CAPTURE(ranks);
    std::vector<std::vector<HalvingRound>> rounds;
    std::vector<std::vector<std::string>> sums;  // [rank][place]
    for (int r = 0; r < ranks; ++r) {
      rounds.push_back(halving_rounds(r, ranks));
      sums.emplace_back(size_t(ranks), std::to_string(r));
    }
    for (size_t k = 0; k < rounds[0].size(); ++k) {
      const auto before = sums;
      for (int r = 0; r < ranks; ++r) {
        const HalvingRound& round = rounds[size_t(r)][k];
        const HalvingRound& of_peer = rounds[size_t(round.peer)][k];
        CHECK(of_peer.peer == r);
        CHECK(of_peer.give.begin == round.keep.begin);
        CHECK(of_peer.give.end == round.keep.end);
        for (int place = round.keep.begin; place < round.keep.end; ++place) {
          const std::string &mine = before[size_t(r)][size_t(place)],
                            &theirs = before[size_t(round.peer)][size_t(place)];
          sums[size_t(r)][size_t(place)] =
              round.peer_is_first ? "(" + theirs + "+" + mine + ")" : "(" + mine + "+" + theirs + ")";
        }
      }
    }
    for (int r = 0; r < ranks; ++r)
      CHECK(sums[size_t(r)][size_t(halving_place(r, ranks))] == tree_over(0, ranks));
  }
}

TEST_CASE("halving sends the bytes of a ring, also between nodes", "[halving]") {
  for (int ranks = 2; ranks <= kMostRanks; ranks *= 2)
    for (const int a_node : {1, 2, 8}) {
      if (a_node > ranks) continue;
      CAPTURE(ranks, a_node);
      int between = 0;  // parts that leave a node, of all ranks
      for (int r = 0; r < ranks; ++r) {
        int sent = 0;
        for (const HalvingRound& round : halving_rounds(r, ranks)) {
          sent += round.give.end - round.give.begin;
          if (round.peer / a_node != r / a_node) between += round.give.end - round.give.begin;
        }
        CHECK(sent == ranks - 1);  // of `ranks` parts
      }
      // A ring over the nodes sends (nodes - 1) / nodes of the vector from each node.
      const int nodes = ranks / a_node;
      CHECK(between == (nodes - 1) * ranks);
    }
}
