// Backends that count ops by shape, their FLOPs and the bytes of their arguments. The counting backend wraps
// a real backend and counts its ops. The tally backend (the twin) computes nothing: its buffers are addresses
// without memory, so a model of any size runs on it within milliseconds. So the cost of a step is counted,
// not computed by separate formulas.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace trainctl::kernels {

/// flops: those of products and attention; a multiplication and an addition are 2. Causal attention counts as
/// half of full attention. attention_flops: attention's part of them. bytes: the size of all arguments.
/// apart_bytes: what products move before or after they multiply. They are whole numbers, in doubles because a
/// step of a large model has more than 2^64.
struct OpCount {
  uint64_t calls = 0;
  double flops = 0, attention_flops = 0, bytes = 0, apart_bytes = 0;
  bool operator==(const OpCount&) const = default;
};

/// The counts of a backend. Copies between host and device are not counted. One thread.
struct WorkTally {
  std::map<OpShape, OpCount> ops;
  double flops() const;
  double attention_flops() const;   ///< the part of flops()
};

/// Wraps `real` and counts its ops into `tally`, which must outlive the result.
std::unique_ptr<Backend> make_counting_backend(std::unique_ptr<Backend> real, WorkTally& tally);

/// The seconds of every call, by shape.
using OpSeconds = std::map<OpShape, std::vector<double>>;
/// A counting backend that times each op: it waits for the device behind every one.
std::unique_ptr<Backend> make_timing_backend(std::unique_ptr<Backend> real, WorkTally& tally,
                                             OpSeconds& seconds);

/// The tally twin. Counts into `tally`, which must outlive the result. `bias_in_activation_dtype`: whether
/// bias_dtype() is the activation dtype, as on the device that the twin simulates.
std::unique_ptr<Backend> make_tally_backend(WorkTally& tally, bool bias_in_activation_dtype = false);

}  // namespace trainctl::kernels
