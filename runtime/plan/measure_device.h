// Measures how fast a device is, for a cluster file: it times every op of the steps of small jobs, and fits
// to these times what predictions are made of (runtime/predict).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "runtime/plan/step_tally.h"
#include "runtime/predict/cluster.h"

namespace trainctl {

/// An op with one shape: what one call counts, how long it takes, and how often a step calls it.
struct TimedOp {
  kernels::OpShape shape;
  kernels::OpCount one;
  double seconds = 0, calls = 0;
};
/// Those of a step.
struct TimedOps {
  bool f32 = true;  ///< the precision of its products
  double head_dim = 64;
  std::vector<TimedOp> ops;
  /// As a fast call of four takes: other work of a busy machine is a part of the slow ones.
  static TimedOps of(const TimedSteps& steps, bool f32, double head_dim);
};

/// `known` with all that these steps decide: products (product_share, depth_cost; the peaks, if an op is
/// faster than they are), attention, the rate of each other op. Pure.
predict::DeviceSpeed fit_device(predict::DeviceSpeed known, const std::vector<TimedOps>& steps);

/// The share by which the predicted time of all ops of these steps differs from the measured one, and the
/// mean of the single ops' differences, weighed by their time.
struct FitErrors {
  double total = 0, of_op = 0;
};
FitErrors fit_errors(const predict::DeviceSpeed& device, const std::vector<TimedOps>& steps);

struct CpuMeasurement {
  int threads = 1;                              ///< of a rank
  bool quick = false;                           ///< one small model, a few steps
  std::function<void(const std::string&)> say;  ///< gets what is measured now
};
struct MeasuredDevice {
  predict::DeviceSpeed speed;
  FitErrors errors;
};
/// Measures a rank of a CPU, in about a minute. `known`: what is not measured.
MeasuredDevice measure_cpu(const predict::DeviceSpeed& known, const CpuMeasurement& how);

}  // namespace trainctl
