// Goal: a cut of sequences gives each token to one rank, the blocks of a rank are those that more ranks would
// have one after another, and all blocks have equally much causal attention. Method: every number of blocks
// and ranks up to 16; pure.
#include "parallel/sequence_cut.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

using trainctl::parallel::SequenceCut;

TEST_CASE("a cut gives each token to one rank, and fewer ranks have the same blocks in order", "[cut]") {
  for (int blocks = 1; blocks <= 16; blocks *= 2)
    for (const int64_t sequences : {1, 3})
      for (int ranks = 1; ranks <= blocks; ranks *= 2) {
        CAPTURE(blocks, sequences, ranks);
        const SequenceCut cut{
            .blocks = blocks, .ranks = ranks, .sequences = sequences, .seq_len = int64_t{6} * blocks};
        std::vector<int32_t> all, of_blocks;
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<int32_t> tokens = cut.tokens_of(rank);
          CHECK(int64_t(tokens.size()) == cut.rows());
          all.insert(all.end(), tokens.begin(), tokens.end());
        }
        SequenceCut widest = cut;
        widest.ranks = blocks;
        for (int rank = 0; rank < blocks; ++rank) {
          const std::vector<int32_t> tokens = widest.tokens_of(rank);
          CHECK(int64_t(tokens.size()) == cut.block_rows());
          of_blocks.insert(of_blocks.end(), tokens.begin(), tokens.end());
        }
        CHECK(all == of_blocks);
        std::sort(all.begin(), all.end());
        std::vector<int32_t> each(static_cast<size_t>(sequences * cut.seq_len));
        std::iota(each.begin(), each.end(), 0);
        CHECK(all == each);
      }
}

TEST_CASE("a rank's rows are chunk by chunk, those of a chunk sequence by sequence", "[cut]") {
  const SequenceCut cut{.blocks = 2, .ranks = 2, .sequences = 2, .seq_len = 8};
  CHECK(cut.tokens_of(0) == std::vector<int32_t>{0, 1, 8, 9, 6, 7, 14, 15});
  CHECK(cut.tokens_of(1) == std::vector<int32_t>{2, 3, 10, 11, 4, 5, 12, 13});
  CHECK(cut.chunk(1, 0, 0) == 1);
  CHECK(cut.chunk(1, 0, 1) == 2);
  const SequenceCut whole{.sequences = 2, .seq_len = 3};
  CHECK_FALSE(whole.exists());
  CHECK(whole.tokens_of(0) == std::vector<int32_t>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("all blocks have equally much causal attention", "[cut]") {
  const SequenceCut cut{.blocks = 8, .ranks = 8, .seq_len = 64};
  int64_t first = 0;
  for (int rank = 0; rank < 8; ++rank) {
    int64_t keys = 0;
    for (const int32_t token : cut.tokens_of(rank)) keys += token + 1;
    if (rank == 0) first = keys;
    CHECK(keys == first);
  }
  CHECK(8 * first == 64 * 65 / 2);
}
