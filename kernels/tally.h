// A backend that counts: which ops on which shapes, how many FLOPs, how many bytes of arguments. Over a real
// backend it counts what that one does. Alone it is the tally twin: nothing is computed, its memory is
// addresses that nothing may touch, and a model of any size runs on it within milliseconds, so that what a
// step costs is counted and not written down a second time.
#pragma once
#include <compare>
#include <map>
#include <memory>
#include <string_view>

#include "kernels/backend.h"

namespace trainctl::kernels {

/// An op and the shape that decides what it costs. Products: [m, k] times [k, n]. Attention: m rows, n =
/// query heads * head_dim, k = the longest distance (seq_len). Everything else: m x n elements.
struct OpShape {
  std::string_view op;
  int64_t m = 0, n = 0, k = 0;
  auto operator<=>(const OpShape&) const = default;
};
/// FLOPs of products and attention, 2 for a multiplication and an addition; causal attention is counted as
/// half of the full one. bytes: of all arguments. Whole numbers; doubles because a step of a large model has
/// more than 2^64.
struct OpCount {
  uint64_t calls = 0;
  double flops = 0, bytes = 0;
  bool operator==(const OpCount&) const = default;
};

/// Copies between host and device are no ops. One thread.
struct WorkTally {
  std::map<OpShape, OpCount> ops;
  double flops() const;
  double attention_flops() const;   ///< the part of flops()
};

/// Counts into `tally`, which must outlive the result.
std::unique_ptr<Backend> make_counting_backend(std::unique_ptr<Backend> real, WorkTally& tally);

/// The twin without memory. bias: as Backend::bias_dtype.
std::unique_ptr<Backend> make_tally_backend(WorkTally& tally, bool bias_in_activation_dtype = false);

}  // namespace trainctl::kernels
