// PlacementTwin runs a stage's step with types in place of numbers: what the ranks along one axis hold of
// each tensor. An op whose rule is broken, a sum that is missing or made twice, throws
// parallel::placements::Misplaced at its own place in the model.
#pragma once
#include <map>
#include <memory>
#include <set>

#include "kernels/backend.h"
#include "parallel/placement.h"

namespace trainctl {

/// The placement of each tensor, by its address.
class Placements {
 public:
  /// rank: this rank along the axis.
  explicit Placements(int rank) : rank_(rank) {}
  int rank() const { return rank_; }
  parallel::Placement of(const kernels::Matrix& m) const;
  /// Of the tensor that holds this address.
  parallel::Placement at(const void* address) const;
  void set(const kernels::Matrix& m, parallel::Placement placement);
  /// Of a matrix whose columns were set apart from each other: they must be alike.
  parallel::Placement of_columns(const kernels::Matrix& m) const;
  /// The gradient of a table of which each rank has some of the rows: what is added to it are these rows
  /// alone.
  void set_cut_table(const void* gradient) { cut_tables_.insert(gradient); }
  bool is_cut_table(const void* gradient) const { return cut_tables_.contains(gradient); }
  /// Whether an op has read what begins there since `watch`.
  void watch(const void* address) { unread_.insert(address); }
  bool is_read(const void* address) const { return !unread_.contains(address); }
  /// Some of the rows of a tensor, until it is written again: of these alone, `placement`. Contiguous.
  void set_view(const kernels::Matrix& rows, parallel::Placement placement);
  /// `n` bytes from there hold something else; none: zeros.
  void fill(const void* address, size_t n, parallel::Placement placement);

 private:
  struct Region {
    const char* end;
    parallel::Placement placement;
  };
  int rank_;
  void forget_views(const char* begin, const char* end) {
    views_.erase(views_.lower_bound(begin), views_.lower_bound(end));
  }
  std::map<const char*, Region> regions_, views_;
  std::set<const void*> cut_tables_;
  mutable std::set<const void*> unread_;
};

/// A device whose ops follow the rules of placements. converts_biases: its products take biases in the
/// dtype of activations.
std::unique_ptr<kernels::Backend> make_placement_backend(Placements& placements, bool converts_biases);

}  // namespace trainctl
