// StateDigests: numbers of a rank's state by which runs, and replicas within a run, are compared bit for bit.
//
// The digest of the state is a sum modulo 2^64 over all elements that checkpoints have of it, of the number
// of the tensor, the index in the tensor and the bits (kernels/digest.h). One rank counts each element, the
// one that saves it. So the sum over the ranks is the same on every mesh.
//
// Replicas are ranks that hold the same part of the parameters: their compute copies and, where each of them
// updates all that it holds, their state. Each adds its own digest times a factor, and the factors of all
// replicas of a part have the sum 0. So one number over all ranks is 0 if all replicas agree.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/sharded_params.h"

namespace trainctl::parallel {

struct StateDigest {
  uint64_t value = 0;
  uint64_t form = 0;  ///< of which tensors, in which dtypes: digests of several forms are never compared
  void add(const StateDigest& other) { value += other.value, form += other.form; }
  bool operator==(const StateDigest&) const = default;
};

/// What ranks add up.
struct DigestSums {
  StateDigest state;
  uint64_t disagreement = 0;  ///< over all ranks 0: all replicas agree
  void add(const DigestSums& other) {
    state.add(other.state);
    disagreement += other.disagreement;
  }
};

/// What this rank holds together with its replicas along some axes.
struct Replica {
  AxisSet axes = 0;
  bool is_state = false;  ///< else compute copies
  uint64_t digest = 0;
};

class StateDigests {
 public:
  /// All arguments must outlive this.
  StateDigests(const ShardedParams& params, const AxisLines& lines, kernels::Backend& backend,
               kernels::Stream& stream);
  /// Enqueues the digests of the compute copies, all of which must be there; with ZeRO-3 there are none to
  /// compare.
  void read_copies();
  /// Enqueues the digests of the state.
  void read_state();
  /// The same of a state that nothing has changed since read_state: has_rested() compares both.
  void read_resting_state();
  bool has_rested() const;

  // After the first two, when the stream has come to its end:
  DigestSums sums() const;
  /// At most kMostReplicas.
  std::vector<Replica> replicas() const;
  static constexpr size_t kMostReplicas = 16;

 private:
  struct Part {
    Replica of;
    uint64_t factor = 0;
    std::vector<size_t> numbers;  ///< of copies or of the state
  };
  Part& part(AxisSet axes, bool is_state);
  void read_state_into(uint64_t* numbers);
  uint64_t digest_of(const Part& part) const;

  const ShardedParams& params_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  const AxisLines lines_;
  std::vector<kernels::DigestBox> copies_, state_;
  std::vector<size_t> first_of_chunk_;  ///< in state_: of each chunk of the state, and the end
  std::vector<size_t> counted_;  ///< of state_: this rank saves it
  uint64_t form_ = 0;
  std::vector<Part> parts_;
  uint64_t* numbers_of(bool is_state) const {
    return static_cast<uint64_t*>(numbers_->data()) + (is_state ? copies_.size() : 0);
  }
  std::unique_ptr<kernels::Buffer> numbers_;  ///< host: of copies_, of state_, of state_ as it rests
};

/// By which replica `rank` of `size` multiplies what it compares: the factors of all have the sum 0, so that
/// the sum of their products is 0 if all agree.
uint64_t replica_factor(uint64_t rank, uint64_t size);

/// Replicas of the same part, on several ranks.
struct ReplicaOfRank {
  int rank = 0;
  uint64_t part = 0;  ///< the same on all ranks that hold it
  bool is_state = false;
  uint64_t digest = 0;
};
/// Who holds other bits than the other replicas.
struct Disagreement {
  std::vector<int> ranks;  ///< ascending; those in doubt if it is not decided
  bool is_decided = false;
  bool is_state = false;
  int replicas = 0;  ///< of the part
  uint64_t part = 0;
};
/// By majority: of the first part whose replicas do not agree, a decided one before others. No ranks: all
/// agree.
Disagreement find_disagreement(std::vector<ReplicaOfRank> replicas);

}  // namespace trainctl::parallel
