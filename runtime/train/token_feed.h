// TokenFeed uploads the arrays of a step's batch to the device, in one copy on its own stream, while the
// previous step computes.
#pragma once
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "kernels/backend.h"
#include "parallel/sequence_cut.h"
#include "runtime/model/batch.h"
#include "runtime/plan/rank_sizes.h"
#include "runtime/train/target_counts.h"

namespace trainctl {

class TokenFeed {
 public:
  /// Allocates two buffers for the rows of what this rank has of `sequences` sequences: one in use, one being
  /// filled.
  ///   cut                 which tokens of each micro-batch are this rank's
  ///   counts_boundaries   data.count_boundary_targets
  TokenFeed(const BatchRows& rows, int64_t sequences, const parallel::SequenceCut& cut,
            bool counts_boundaries, kernels::Backend& backend);

  /// Uploads samples: at most `sequences` sequences of seq_len + 1 tokens; whole micro-batches where
  /// sequences are cut. Work enqueued on `stream` from now on sees them. They stay valid until the call after
  /// the next one; before that call, the work of `stream` that uses them must be done.
  ///   counted   sequences whose targets count: the first ones
  void upload(const data::SampleBatch& samples, kernels::Stream& stream,
              int64_t counted = std::numeric_limits<int64_t>::max());
  /// The same with rows that are made already, of whole sequences: `rows` has seq_len elements of each.
  void upload(const PerField<std::vector<int32_t>>& rows, size_t sequences, kernels::Stream& stream);
  /// Sum of the weights of this rank's targets of the newest upload, whether or not it reads targets: their
  /// number without loss files.
  int64_t targets_weight() const { return targets_.head; }
  /// The same with those of the modules of multi-token prediction.
  const TargetCounts& targets() const { return targets_; }
  /// Of each sequence of the newest upload its source; empty: there is one.
  std::span<const int32_t> sources() const { return sources_; }
  /// targets_weight() of each source, as many as have targets here; empty: there is one.
  std::span<const int64_t> targets_of_sources() const { return targets_of_sources_; }
  /// The arrays of the newest upload from sequence `index` on, in device memory.
  PerField<const void*> arrays(int64_t index) const;

 private:
  struct Half {
    std::unique_ptr<kernels::Buffer> host, device;
    std::unique_ptr<kernels::Event> copied;
  };
  /// Calls each(row, its first byte), in the order of the rows.
  template <typename Each>
  void for_each_row(Each each) const;

  SampleTokens sample(const data::SampleBatch& samples, size_t i) const;
  /// of_sequence(row, i, out): writes the row's elements of whole sequence i.
  template <typename OfSequence>
  void upload(size_t sequences, kernels::Stream& stream, OfSequence of_sequence);
  template <typename OfSequence>
  void fill(size_t sequences, int32_t* out, OfSequence of_sequence) const;
  void count_targets(const data::SampleBatch& samples, size_t sequences);
  void count(const SampleTokens& sample, size_t token);
  void add_to_source(size_t sequence, int64_t targets);

  const BatchRows rows_;
  const int64_t sequences_;
  const parallel::SequenceCut cut_;
  const std::vector<int32_t> tokens_;  ///< SequenceCut::tokens_of this rank; empty: all, in order
  const bool counts_boundaries_;
  TargetCounts targets_;
  std::vector<int32_t> sources_;
  std::vector<int64_t> targets_of_sources_;
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Stream> copies_;
  Half halves_[2];
  int newest_ = 1;
};

}  // namespace trainctl
