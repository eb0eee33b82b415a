// The parameters of one rank: compute copies and gradients of its part of the model, summed over lanes and the
// dp axis in a fixed order, and the optimizer state of the chunks it owns (ZeRO-0: of all its chunks, ZeRO-1:
// its share).
//
//   backward      gradients accumulate per lane
//   merge_lane    finished lanes merge pairwise (a binary counter), so that a rank's lanes form a subtree of the
//                 run's one tree over all lanes
//   reduce        a layer is complete: its chunks are packed and sent to their owners in buckets, during the
//                 backward
//   sum           owners add the dp ranks' sums as the upper part of the same tree; replicas under sequence
//                 parallelism add over tp; a tied embedding adds its two uses
//   step          AdamW on own chunks
//   gather        compute copies travel to everyone in buckets, during the next forward pass, which awaits each
//                 layer's just before it uses them
//
// Flat order: the chunks of a group are sorted by owner, each owner's last layer first (the order in which
// gradients become ready), each chunk contiguous. Neighbouring chunks have different owners, so that every
// bucket is exchanged by all ranks at once.
// Source: ZeRO, arXiv:1910.02054; lanes: balanced-tree summation at every width.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "parallel/layout.h"

namespace trainctl::parallel {

/// One use of a parameter by this rank's part of the model.
struct ParamUse {
  enum Tie { untied, tied_first, tied_second };
  int param = 0;                  ///< index into the model's table
  ParamLayout layout;
  DType dtype = DType::f32;       ///< of the compute copy
  float weight_decay = 0;
  bool joined = false;            ///< stands directly behind the use before it, as one taller matrix
  bool partial_over_tp = false;   ///< each tp rank holds a part of the gradient's sum (norms under sequence parallelism)
  bool counted = true;            ///< this rank's copy is the one that is saved and whose gradient norm counts
  Tie tie = untied;               ///< the embedding (first) and the head (second) that share one parameter
};

struct ShardingOptions {
  int zero_stage = 1;
  int lanes_per_rank = 1;         ///< power of two
  int64_t bucket_elements = 1 << 20;
  int tp = 1, tp_rank = 0;
  bool fast_reduction = false;    ///< the dp group makes the sums itself where it can (Communicator::reduces), in an order of its own
};

/// Memory in bytes by purpose; what the plan prints and the constructor takes.
struct ShardingBytes {
  size_t weights = 0, gradients = 0, optimizer = 0, communication = 0;
  int64_t state_boxes = 0;        ///< chunks whose optimizer state is here
  size_t total() const { return weights + gradients + optimizer + communication; }
};

class ShardedParams {
 public:
  /// uses: in forward order. grids[param]: chunk grid of each parameter of the table. Communicators must outlive this;
  /// tied_peer is null unless another stage holds the other use of the tied parameter (then it has 2 members, first stage first).
  ShardedParams(std::vector<ParamUse> uses, const std::vector<std::vector<Box>>& grids, ShardingOptions options,
                Communicator& dp, Communicator& tp, Communicator* tied_peer, kernels::Backend& backend,
                kernels::Stream& stream);
  ~ShardedParams();

  /// options.fast_reduction: the dp group will make the sums itself.
  static ShardingBytes plan(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
                            const ShardingOptions& options, int dp, int dp_rank, bool has_tied_peer);

  int use_count() const;
  /// Compute copy [local rows, cols]; of a tied second use on the same rank: the first one's.
  kernels::Matrix weight(int use) const;
  /// Gradient f32 into which micro-batches of this rank's lane `lane` accumulate.
  kernels::Matrix gradient(int use, int lane) const;
  /// Zeroes the gradients into which `lane` accumulates, of uses [begin, end).
  void zero_gradient(int use, int lane);

  /// Lane `lane` (0..lanes_per_rank-1, in order) has its whole gradient of uses [begin, end): adds it to
  /// those of the lanes before.
  void merge_lane(int begin, int end, int lane);
  /// All lanes of uses [begin, end) are merged: starts the dp reduction of every bucket that is full. Once in
  /// a step for every use, last uses first.
  void reduce(int begin, int end);
  /// Waits for the reductions of all uses; afterwards own chunks hold the sum over all lanes.
  void finish_reduction();

  /// squares[first_chunk[param] + chunk] = sum of squares of the gradient of each chunk that this rank counts; others untouched.
  void add_gradient_squares(std::span<const int64_t> first_chunk, std::span<double> squares);
  /// AdamW on the chunks whose state is here, after finish_reduction.
  void step(const kernels::AdamWStep& step);
  /// The compute copies of uses [begin, end) begin their way to everyone, in buckets; once for every use
  /// after a step, first uses first.
  void gather(int begin, int end);
  /// Compute copies from the master weights as they are (after init or load), on their way to everyone.
  void publish();
  /// Work given to the stream from now on sees the new compute copies of uses [0, end). Every use is awaited before it is read.
  void await(int end);

  /// A chunk whose optimizer state is here: each pointer is [box.count()] f32 on the device.
  struct StateChunk {
    int param = 0, chunk = 0;
    Box box;
    float *master = nullptr, *first_moment = nullptr, *second_moment = nullptr;
    const float* gradient = nullptr;
    int64_t gradient_stride = 0;
    bool saved_here = false;      ///< this rank writes it to checkpoints (exactly one rank does)
  };
  const std::vector<StateChunk>& state_chunks() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainctl::parallel
