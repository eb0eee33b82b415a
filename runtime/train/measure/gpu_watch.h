// How a rank's GPU is, read during training: one thread asks once a second, and the step takes
// the last answer without waiting for the next.
#pragma once
#include <functional>
#include <memory>

#include "kernels/device.h"

namespace trainctl {

class GpuWatch {
 public:
  /// Calls `read` at once and then every `period_s`, in a thread of its own.
  explicit GpuWatch(std::function<kernels::GpuReadings()> read, double period_s = 1);
  /// Ends the thread. One that is inside a read for more than two seconds (a driver in trouble) is left behind.
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  /// The last answer; empty before the first one. Never waits.
  kernels::GpuReadings last() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace trainctl
