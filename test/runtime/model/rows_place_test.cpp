// Goal: a micro-batch has one place on every mesh, and ranks that share experts know each other's. Method:
// all small meshes of data, context and tensor ranks, with lanes one after another and at one time: what a
// rank says of a peer against what the peer says of itself; and of each step all places, once.
#include "runtime/model/sublayers/rows_place.h"

#include <catch2/catch.hpp>
#include <set>

#include "runtime/model/stage_program.h"

using namespace trainctl;

namespace {

constexpr int kRowsLanes = 8, kRowsBlocks = 4;

JobSpec rows_job(int data, int context, int blocks, int zero) {
  JobSpec job;
  job.parallelism.data = data, job.parallelism.context = context;
  job.parallelism.context_blocks = blocks, job.parallelism.lanes = kRowsLanes,
  job.parallelism.zero_stage = zero;
  job.batch.global_sequences = 16, job.batch.micro_sequences = 1;
  return job;
}

}  // namespace

TEST_CASE("each micro-batch and block has one place on every mesh", "[bits][fp8]") {
  for (const int blocks : {1, kRowsBlocks})
    for (const int data : {1, 2, 4, 8})
      for (int context = 1; context <= blocks; context *= 2)
        for (const int zero : {0, 2, 3}) {
          CAPTURE(blocks, data, context, zero);
          const StepCut cut(rows_job(data, context, blocks, zero));
          const parallel::SequenceCut sequences{.blocks = blocks, .ranks = context};
          std::multiset<std::pair<uint32_t, uint32_t>> places;
          for (int dp = 0; dp < data; ++dp)
            for (const MicroBatch& mb : micro_batches(cut, dp))
              for (int cp = 0; cp < context; ++cp)
                for (int block = 0; block < sequences.blocks_here(); ++block)
                  places.insert({mb.rows.of_block(sequences, cp, block), mb.rows.number});
          std::multiset<std::pair<uint32_t, uint32_t>> all;
          for (uint32_t place = 0; place < uint32_t(kRowsLanes * blocks); ++place)
            for (const uint32_t number : {0u, 1u}) all.insert({place, number});
          CHECK(places == all);
        }
}

TEST_CASE("ranks that share experts know which rows their peers have", "[bits][fp8]") {
  for (const int blocks : {1, kRowsBlocks})
    for (const int data : {1, 2, 4, 8})
      for (int context = 1; context <= blocks; context *= 2)
        for (const int parts : {1, 2})
          for (const int zero : {0, 2}) {
            CAPTURE(blocks, data, context, parts, zero);
            const StepCut cut(rows_job(data, context, blocks, zero));
            const parallel::SequenceCut sequences{.blocks = blocks, .ranks = context};
            const int ranks = data * context * parts;
            for (int own = 0; own < ranks; ++own)
              for (int peer = 0; peer < ranks; ++peer) {
                const auto dp = [&](int rank) { return rank / parts / context; };
                const auto cp = [&](int rank) { return rank / parts % context; };
                const std::vector<MicroBatch> mine = micro_batches(cut, dp(own)),
                                              theirs = micro_batches(cut, dp(peer));
                REQUIRE(mine.size() == theirs.size());
                for (size_t i = 0; i < mine.size(); ++i)
                  for (int block = 0; block < sequences.blocks_here(); ++block) {
                    const RowsPlace::Peer of{cp(own), own % parts, parts, peer - own};
                    const uint32_t itself = theirs[i].rows.of_block(sequences, cp(peer), block);
                    CHECK(mine[i].rows.of_source(sequences, of, block) ==
                          itself * uint32_t(parts) + uint32_t(peer % parts));
                    CHECK(mine[i].rows.number == theirs[i].rows.number);
                  }
              }
          }
}
