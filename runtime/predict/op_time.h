// The time that an op takes on a device, from its shape, its FLOPs and its bytes. Pure.
#pragma once
#include "kernels/tally.h"
#include "runtime/predict/cluster.h"

namespace trainctl::predict {

/// Where the time of a step goes, in seconds.
struct TimeParts {
  double products = 0, attention = 0;
  double memory = 0;    ///< all other ops, and what products move apart from multiplying
  double launches = 0;  ///< the device waits for the host to enqueue the next op
  double sum() const { return products + attention + memory + launches; }
  TimeParts& operator+=(const TimeParts& other);
  friend TimeParts operator*(double times, TimeParts parts);
};

/// A product of m x n outputs over a depth of k in one precision: whole tiles are dealt to the processors;
/// few outputs of great depth are cut along the depth, too. Each tile costs `depth_cost` more depth. At least
/// what its bytes take.
double product_seconds(const DeviceSpeed& device, double m, double n, double k, double bytes, bool f32);
/// That of 8-bit numbers. The device knows their speed.
double fp8_product_seconds(const DeviceSpeed& device, double m, double n, double k, double bytes);

/// Products of `experts` experts of the same number of rows, as if `bytes` was what all of them move;
/// `shape`: of all rows together, as ops count it. Each expert has its own tiles, and of the gradient of
/// its weight its own depth.
double grouped_seconds(const DeviceSpeed& device, const kernels::OpShape& shape, int64_t experts,
                       double bytes, bool f32, bool fp8);

/// Peak of a job's products. Tensor cores multiply f32 that is rounded to TF32 at half of the rate of bf16.
double product_peak(const DeviceSpeed& device, bool f32, bool tf32);

/// What shapes of ops do not say.
struct WorkKind {
  bool f32 = false;  ///< of the operands of products and attention
  double head_dim = 64;
  double passes = 1;  ///< DeviceSpeed::passes
  /// In a job with precision.fp8: a tensor rank's part of the head's weight. Its products stay in bf16, and
  /// so do those of a layer's weight of just this shape, which are counted with it. 0: all products do.
  int64_t fp8_head_rows = 0, fp8_head_columns = 0;
  int64_t experts = 1;  ///< that a rank multiplies with, of the products of experts
};

/// All calls of one shape.
TimeParts op_seconds(const DeviceSpeed& device, const kernels::OpShape& shape, const kernels::OpCount& count,
                     const WorkKind& kind);

/// Of all ops of a tally, one behind the other. Where the host enqueues more slowly than the device computes,
/// it is the host's time.
TimeParts work_seconds(const DeviceSpeed& device, const kernels::WorkTally& work, const WorkKind& kind);

}  // namespace trainctl::predict
