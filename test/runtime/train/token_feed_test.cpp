// Goal: where sequences are cut, a rank gets the rows of its tokens and no others, in their order, and counts
// the weights of its own targets. Method: random samples of documents with weights, through a feed of whole
// sequences and through one of each rank; positions without documents are places in the sequence.
#include "runtime/train/token_feed.h"

#include <catch2/catch.hpp>
#include <random>

using namespace trainctl;
using parallel::SequenceCut;

namespace {

constexpr int64_t kFeedLength = 16, kFeedSequences = 4;  // two micro-batches of two
constexpr BatchRows kAllRows{.first = true, .last = true, .documents = true, .cuts = true, .weights = true};

data::SampleBatch random_samples(bool documents, bool weights) {
  std::mt19937 random(8);
  data::SampleBatch samples;
  for (int64_t s = 0; s < kFeedSequences; ++s) {
    int32_t start = 0;
    for (int32_t t = 0; t <= kFeedLength; ++t) {
      samples.tokens.push_back(int32_t(random() % 90));
      if (random() % 4 == 0) start = t;
      if (documents) samples.document_starts.push_back(start);
      if (weights) samples.weights.push_back(uint8_t(random() % 3));
    }
  }
  return samples;
}

struct FeedRows {
  PerField<std::vector<int32_t>> of;  ///< bits, of the micro-batch from sequence `first` on
  int64_t weight = 0;
};

FeedRows rows_of_feed(const BatchRows& rows, const SequenceCut& cut, const data::SampleBatch& samples,
                      int64_t first) {
  const auto backend = kernels::make_cpu_backend(1);
  const auto stream = backend->create_stream();
  TokenFeed feed(rows, kFeedSequences, cut, false, *backend);
  CHECK(backend->allocated_bytes() == token_bytes(rows, kFeedSequences, cut.tokens_here()));
  feed.upload(samples, *stream);
  stream->synchronize();
  FeedRows result{.weight = feed.targets_weight()};
  const PerField<const void*> arrays = feed.arrays(first);
  for (const BatchRow& row : kBatchRows) {
    if (!rows.has(row)) continue;
    const auto* const begin = static_cast<const int32_t*>(arrays[row.field]);
    result.of[row.field].assign(begin, begin + cut.rows());
  }
  return result;
}

}  // namespace

TEST_CASE("a rank is fed the rows of its part of each sequence", "[context]") {
  for (const bool weights : {false, true}) {
    BatchRows rows = kAllRows;
    rows.weights = weights;
    const data::SampleBatch samples = random_samples(true, weights);
    for (const int64_t first : {0, 2}) {
      const SequenceCut uncut{.sequences = 2, .seq_len = kFeedLength};
      const FeedRows whole = rows_of_feed(rows, uncut, samples, first);
      for (const int ranks : {1, 2, 4}) {
        int64_t weight = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          CAPTURE(weights, first, ranks, rank);
          const SequenceCut cut{
              .blocks = 4, .ranks = ranks, .rank = rank, .sequences = 2, .seq_len = kFeedLength};
          const FeedRows own = rows_of_feed(rows, cut, samples, first);
          const std::vector<int32_t> tokens = cut.tokens_of(rank);
          for (const BatchRow& row : kBatchRows) {
            if (!rows.has(row)) continue;
            std::vector<int32_t> expected;
            for (const int32_t token : tokens) expected.push_back(whole.of[row.field][size_t(token)]);
            CHECK(own.of[row.field] == expected);
          }
          weight += own.weight;
        }
        CHECK(weight == whole.weight);
      }
    }
  }
}

TEST_CASE("a cut sequence without documents has the positions of its tokens", "[context]") {
  const BatchRows rows{.cuts = true};
  CHECK(rows.bytes_per_token() == 4);
  const SequenceCut cut{.blocks = 2, .ranks = 2, .rank = 1, .sequences = 2, .seq_len = kFeedLength};
  const FeedRows own = rows_of_feed(rows, cut, random_samples(false, false), 0);
  CHECK(own.of[BatchField::positions] ==
        std::vector<int32_t>{4, 5, 6, 7, 4, 5, 6, 7, 8, 9, 10, 11, 8, 9, 10, 11});
}
