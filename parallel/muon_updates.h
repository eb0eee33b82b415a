// MuonUpdates updates the matrices of a rank whose rule is muon: those whose momentum is with it, one after
// another. All ranks of a tensor group hold parts of the same matrices; each gathers the whole, computes the
// same update, and applies its own part.
#pragma once
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "parallel/sharded_memory.h"

namespace trainctl::parallel {

class MuonUpdates {
 public:
  /// Takes the memory of MuonScratch. tensor: null where no other rank is along that axis. All must outlive
  /// this object.
  MuonUpdates(const sharding::ShardedMemory& memory, Communicator* tensor, kernels::Backend& backend,
              kernels::Stream& stream);
  /// Updates moments, master weights and compute copies. Waits for the stream once for each matrix.
  void step(const MuonStep& step);

 private:
  /// The chunks [begin, end) of ShardedMemory, all of one use.
  struct Owned {
    int use = 0;
    size_t begin = 0, end = 0;
  };
  void update(const Owned& owned, const MuonStep& step);
  void take_direction(const Owned& owned, const MuonStep& step);
  void gather(const ParamLayout& layout);
  /// Both [n, m]; returns the one that has the result.
  kernels::Matrix orthogonal(kernels::Matrix x, kernels::Matrix other);
  void apply(const Owned& owned, const std::vector<kernels::Matrix>& sections, const MuonStep& step);
  kernels::PackedWeight& weight(int64_t n, int64_t k);
  kernels::Matrix first(int64_t rows, int64_t cols) const;
  kernels::Matrix second(int64_t rows, int64_t cols) const;
  kernels::Matrix gram(int which, int64_t side) const;

  const sharding::ShardedMemory& memory_;
  Communicator* const tensor_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  const MuonOptions options_;
  std::vector<Owned> owned_;
  std::unique_ptr<kernels::Buffer> scratch_, squares_;  // squares: host, of the sections of a matrix
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<kernels::PackedWeight>> weights_;
};

}  // namespace trainctl::parallel
