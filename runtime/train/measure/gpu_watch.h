// GpuWatch reads the state of a GPU during training: a thread queries it once a second, and a step uses the
// last result without waiting.
#pragma once
#include <functional>
#include <memory>

#include "kernels/device.h"

namespace trainctl {

class GpuWatch {
 public:
  /// Starts a thread that calls `read` at once and then every `period_s`.
  explicit GpuWatch(std::function<kernels::GpuReadings()> read, double period_s = 1);
  /// Ends the thread. If a call of `read` blocks for more than two seconds (a failing driver), the thread is
  /// detached.
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  /// The last result; all values are nullopt before the first one. Never waits.
  kernels::GpuReadings last() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace trainctl
