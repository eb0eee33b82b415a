// RowsPlace: which rows of a step a micro-batch has. What is rounded at random takes its random numbers
// from that, so that they are the same on every mesh. Pure.
#pragma once
#include <cstdint>

#include "kernels/weight_rounding.h"
#include "parallel/sequence_cut.h"

namespace trainctl {

struct RowsPlace {
  uint32_t step = 0, number = 0;  ///< of the micro-batch among those of its lane
  int64_t lane = 0;               ///< among all lanes of the step
  int64_t next = 0;               ///< from it to the lane that the next data-parallel rank computes meanwhile

  /// The random numbers of a product in this micro-batch of all lanes; see kernels::Fp4Noise.
  uint64_t tensor(uint64_t product) const {
    return kernels::mixed_bits(product ^
                               kernels::mixed_bits((uint64_t(step) << 32) + number + 0x9e3779b97f4a7c15u));
  }
  /// Of block `block` of those of context rank `context`; the next block's follows.
  uint32_t of_block(const parallel::SequenceCut& cut, int context, int block) const {
    return uint32_t(lane * cut.blocks + context * cut.blocks_here() + block);
  }
  /// One of the ranks that share experts. They are neighbours among tensor (where `parts` of them send
  /// tokens), context and data-parallel ranks.
  struct Peer {
    int context = 0, tensor = 0, parts = 1;  ///< of this rank
    int distance = 0;                        ///< from this rank to the peer
  };
  uint32_t of_source(const parallel::SequenceCut& cut, const Peer& peer, int block) const {
    const int64_t along = int64_t(cut.ranks) * peer.parts;  // ranks with one lane
    const int64_t at =
        int64_t(peer.context) * peer.parts + (peer.parts > 1 ? peer.tensor : 0) + peer.distance;
    const int64_t data = (at >= 0 ? at : at - along + 1) / along, rest = at - data * along;
    RowsPlace of = *this;
    of.lane += data * next;
    return of.of_block(cut, int(rest / peer.parts), block) * uint32_t(peer.parts) +
           uint32_t(rest % peer.parts);
  }
};

}  // namespace trainctl
